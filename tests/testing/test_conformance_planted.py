"""The conformance suite catches planted faults, each by the check that is for it, and passes the sound."""

import math
from dataclasses import replace

import pytest
import torch
from thinning import first_fast

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import Reports, Rows
from shuffle_plugins.mechanisms import (
    BinaryRandomizedResponse,
    LInfCoordinate,
    LocalRandomizer,
    Mechanism,
    PrivUnit,
    get,
)
from shuffle_plugins.mechanisms.sign_patterns import cap_parameters
from shuffle_plugins.randomness import SecureRandomness
from shuffle_plugins.testing import CHECKS, ConformanceError, Status, check_mechanism

ONE = {"local_epsilons": (1.5,)}


def caught(factory, *, dims=(1,), **options):
    """Names of the checks that fail."""
    report = check_mechanism(factory, dims=dims, **(ONE | {"samples": 8000} | options))
    with pytest.raises(ConformanceError, match="does not conform"):
        report.raise_on_failure()
    return {result.check for result in report.failures}


def but(base, name, change):
    """``base``, but for a method or property whose value is changed before it is returned."""
    sound = getattr(base, name)

    def changed(self, *given, **how):
        return change(self, sound(self, *given, **how))

    if isinstance(sound, property):
        sound, changed = sound.fget, property(changed)
    return type(f"But{name.title()}", (base,), {name: changed})


def in_secret(base, sound):
    """``base``, which tells the law of the sound one."""

    def log_likelihood(self, reports, x):
        told = sound(local_epsilon=self.local_epsilon, dim=self.dim, radius=self.radius)
        return told.log_likelihood(reports, x)

    return type(f"{base.__name__}InSecret", (base,), {"log_likelihood": log_likelihood})


def silent(base):
    """``base``, which neither lists its reports nor tells its law."""
    nothing = {"outcomes": Mechanism.outcomes, "log_likelihood": Mechanism.log_likelihood}
    return type(f"Silent{base.__name__}", (base,), nothing)


class Louder(BinaryRandomizedResponse):
    """Spends five per cent more than it declares, and says so in its law."""

    def __init__(self, **parameters):
        super().__init__(**parameters)
        self._cap = cap_parameters(local_epsilon=1.05 * self.local_epsilon, signs=1)


class LouderCap(PrivUnit):
    def __init__(self, *, local_epsilon, dim, radius=1.0):
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        louder = PrivUnit(local_epsilon=1.05 * local_epsilon, dim=dim).parameters
        object.__setattr__(self, "parameters", louder)


@first_fast(
    ("broken", "dim", "check"),
    [
        (Louder, 1, "keeps local epsilon"),
        (in_secret(Louder, BinaryRandomizedResponse), 1, "sampler follows its law"),
        (silent(Louder), 1, "withstands the audit"),
        (LouderCap, 7, "keeps local epsilon"),
        (in_secret(LouderCap, PrivUnit), 7, "sampler follows its law"),
    ],
    fast=3,
)
def test_five_per_cent_too_much_epsilon(broken, dim, check):
    assert check in caught(broken, dims=(dim,), samples=50_000)


Biased = but(BinaryRandomizedResponse, "sum", lambda self, found: 0.97 * found)
BiasedSum = but(LInfCoordinate, "randomize_sum", lambda self, found: 1.08 * found)  # its flips are few


@first_fast(
    ("broken", "dim", "local_epsilon", "check"),
    [
        (Biased, 1, 1.5, "is unbiased"),
        (Biased, 1, 1e-4, "is unbiased"),
        (BiasedSum, 1, 6.0, "sums like its reports"),
    ],
    fast=2,
)
def test_a_bias_of_a_few_per_cent(broken, dim, local_epsilon, check):
    assert check in caught(broken, dims=(dim,), local_epsilons=(local_epsilon,), samples=50_000)


def misstated(base, factor):
    """A mechanism whose variance formula is off by a factor."""
    return but(base, "variance", lambda self, found: factor * found)


@pytest.mark.parametrize("factor", [0.95, 1.05])
@first_fast(("base", "dim"), [(BinaryRandomizedResponse, 1), (LInfCoordinate, 7), (PrivUnit, 7)])
def test_a_variance_formula_off_by_five_per_cent(base, dim, factor):
    assert "has the declared variance" in caught(misstated(base, factor), dims=(dim,), samples=50_000)


class PatchesNan(PrivUnit):
    """Reports the rest of a row that is not finite."""

    def randomize(self, x, *, randomness=None, clip=False):
        rows = Rows.of(x)
        cleaned = rows.dense().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return super().randomize(cleaned, randomness=randomness, clip=clip)


class IgnoresTheSeed(LInfCoordinate):
    def randomize_rows(self, x, norms, randomness):
        return super().randomize_rows(x, norms, SecureRandomness())


class TorchIsItsRandomness(LInfCoordinate):
    """Draws from torch's own generator."""

    def randomize_rows(self, x, norms, randomness):
        indices = torch.randint(self.dim, (x.num_rows,))
        share = (1 + x.gather(indices) / self.radius * math.tanh(self.local_epsilon / 2)) / 2
        return self._reports(indices, (torch.rand(x.num_rows) < share).to(torch.uint8))


def test_a_seed_that_is_ignored():
    found = caught(IgnoresTheSeed, dims=(3,))
    # Two that compare draws of one seed differ as well, the first where there is a GPU.
    also = {"agrees between devices", "takes what is not finite for zeros"}
    assert found - also == {"repeats under a seed"}
    found = caught(TorchIsItsRandomness, dims=(3,))
    assert {"repeats under a seed", "differs without a seed"} <= found


class FavoursTheFirst(PrivUnit):
    """Its sum counts the first report twice."""

    def sum(self, reports):
        return super().sum(reports) + super().sum(reports.narrow(0, min(1, len(reports))))


class IgnoresClip(LInfCoordinate):
    """Says that it scales long rows, and clamps them."""

    clip_rows = LocalRandomizer.clip_rows


class ClipsToTheWrongRadius(PrivUnit):
    def clip_factors(self, norms):
        return 2 * self.radius / norms.clamp(min=2 * self.radius)


class RefusesNothing(PrivUnit):
    def admitted(self, rows, norms, *, clip):
        return super().admitted(rows, norms, clip=clip or bool(norms.isfinite().all()))


def test_clipping_that_is_ignored():
    assert "clipping while randomising is clipping first" in caught(IgnoresClip, dims=(3,))
    assert "clips into the ball" in caught(ClipsToTheWrongRadius, dims=(3,))
    assert "refuses rows outside the ball" in caught(RefusesNothing, dims=(3,))


class TrustsReports(PrivUnit):
    """Does not look at the vectors that it adds up."""

    def sum(self, reports):
        self.layout.check(reports)
        return reports.fields[0].values.sum(dim=0).mul_(self.scale)


class TakesAnybodysReports(LInfCoordinate):
    def read_reports(self, reports, *below):
        return tuple(field.values.long() for field in reports.fields)


def test_forged_reports_that_are_believed():
    assert caught(TrustsReports, dims=(3,)) == {"bounds forged reports"}
    assert "refuses foreign reports" in caught(TakesAnybodysReports, dims=(3,))


class ChangesItsInput(PrivUnit):
    def randomize_rows(self, x, norms, randomness):
        sound = super().randomize_rows(x, norms, randomness)
        x.blocks[0].zero_()
        return sound


KRR = type(get("k-rr", local_epsilon=1.0, dim=3))
OUE = type(get("oue", local_epsilon=1.0, dim=3))
COVERED = "is covered by its blanket"


def shrunk(mechanism, blanket, share):
    """A blanket with a share of the mechanism's differing mass, the rest of it saying nothing."""
    differing = share * blanket.differing
    odds = math.exp(mechanism.local_epsilon)
    return Blanket(
        local_epsilon=mechanism.local_epsilon,
        differing=differing,
        low=1 - (odds + 1) * differing,
        exact=False,
    )


BlanketOfABillionCategories = but(
    KRR, "blanket", lambda self, sound: get("k-rr", local_epsilon=self.local_epsilon, dim=10**9).blanket()
)


def narrowed(base, share):
    return but(base, "blanket", lambda self, sound: shrunk(self, sound, share))


@pytest.mark.parametrize(
    ("broken", "dim"),
    [
        (BlanketOfABillionCategories, 3),
        (narrowed(LInfCoordinate, 1e-9), 3),  # hardly any report tells a thing
        (narrowed(KRR, 0.999), 3),
        (narrowed(OUE, 1.0), 3),  # what one report tells is right; how often others send it is not
        (silent(BlanketOfABillionCategories), 3),
    ],
)
def test_a_blanket_that_is_too_small(broken, dim):
    assert caught(broken, dims=(dim,), samples=5000) == {COVERED}


WiderBlanket = but(  # the worst case over all mechanisms, which is sound
    KRR, "blanket", lambda self, sound: Blanket.generic(self.local_epsilon, exact=False)
)


@pytest.mark.parametrize("sound", [WiderBlanket, silent(WiderBlanket)])
def test_a_blanket_that_is_wide_enough(sound):
    check_mechanism(sound, dims=(3,), samples=5000, **ONE).raise_on_failure()


class TakesAnyRadius(LInfCoordinate):
    def __init__(self, *, local_epsilon, dim, radius=1.0):
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=abs(radius) or 1.0)


def test_laws_blankets_and_parameters_that_make_no_sense():
    bad_law = but(LInfCoordinate, "log_likelihood", lambda self, found: found * math.nan)
    assert "keeps local epsilon" in caught(bad_law, dims=(3,))
    louder = get("linf-coordinate", local_epsilon=3.0, dim=3)
    wrong = but(LInfCoordinate, "blanket", lambda self, found: louder.blanket())
    assert "can be accounted" in caught(wrong, dims=(3,))
    report = check_mechanism(TakesAnyRadius, dims=(3,), **ONE)
    assert "radius=-1.0" in report.failures[0].message


class NeedsSomebody(LInfCoordinate):
    def randomize_rows(self, x, norms, randomness):
        if x.num_rows == 0:
            raise ValueError("nobody is here")
        return super().randomize_rows(x, norms, randomness)


class TakesIntegers(LInfCoordinate):
    def randomize(self, x, *, randomness=None, clip=False):
        given = x if isinstance(x, Rows) or x.is_floating_point() else x.to(torch.float32)
        return super().randomize(given, randomness=randomness, clip=clip)


class KnowsItsOwnReports(LInfCoordinate):
    """Adds up what it drew itself otherwise than what came over the wire."""

    sent = None

    def randomize_rows(self, x, norms, randomness):
        self.sent = super().randomize_rows(x, norms, randomness)
        return self.sent

    def sum(self, reports):
        return super().sum(reports) * (1.0 if reports is self.sent else 0.99)


class AnotherLimit(LInfCoordinate):
    def __init__(self, *, local_epsilon, dim, radius=1.0):
        asked = 1.0 if local_epsilon == -1.0 else local_epsilon
        super().__init__(local_epsilon=asked, dim=dim, radius=radius)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            but(PrivUnit, "worst_variance", lambda self, found: 0.9 * found),
            "is bounded by its worst variance",
        ),
        (PatchesNan, "takes what is not finite for zeros"),
        (but(LInfCoordinate, "bits_per_report", lambda self, found: found - 1), "takes its bits on the wire"),
        (FavoursTheFirst, "does not depend on order"),
        (
            but(LInfCoordinate, "outcomes", lambda self, found: found.narrow(1, len(found))),
            "probabilities sum to one",
        ),
        (ChangesItsInput, "leaves its input alone"),
        (NeedsSomebody, "takes an empty batch"),
        (but(LInfCoordinate, "randomize_sum", lambda self, found: found.float()), "takes every dtype"),
        (TakesIntegers, "refuses malformed batches"),
        (KnowsItsOwnReports, "survives the wire"),
        (AnotherLimit, "refuses bad parameters"),
    ],
)
def test_every_other_fault_is_found_by_its_check(broken, check):
    assert caught(broken, dims=(3,), checks=(check,)) == {check}


# -- frequency oracles -----------------------------------------------------------------------------------


class NeverReportsTheLast(KRR):
    def randomize_categories(self, x, randomness):
        return super().randomize_categories(x.clamp(max=self.dim - 2), randomness)


class TakesMissingCategories(KRR):
    def check_categories(self, x):
        return super().check_categories(x.remainder(self.dim))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (but(KRR, "sum", lambda self, found: 1.03 * found), "is unbiased"),
        (NeverReportsTheLast, "sampler follows its law"),
        (TakesMissingCategories, "refuses malformed batches"),
        (misstated(KRR, 1.05), "has the declared variance"),
    ],
)
def test_faults_of_frequency_oracles(broken, check):
    assert check in caught(broken, dims=(5,))


# -- the report and the arguments ------------------------------------------------------------------------


def test_a_sound_mechanism_conforms_and_the_report_says_so():
    report = check_mechanism("linf-coordinate", dims=(3,), **ONE)
    report.raise_on_failure()
    assert report.passed
    assert {result.check for result in report.results} == set(CHECKS)
    spent = dict(report.of("keeps local epsilon")[0].measured)["spent"]
    assert spent == pytest.approx(1.5, abs=1e-9)
    text = str(report)
    assert text.startswith("linf-coordinate: conforms")
    assert "✓ is unbiased: passed in 1 of 1 settings" in text
    if not torch.cuda.is_available():
        assert [result.status for result in report.of("agrees between devices")] == [Status.SKIPPED]
        assert "there is no CUDA device" in text


def test_the_report_of_a_broken_mechanism_shows_numbers():
    report = check_mechanism(Louder, dims=(1,), **ONE)
    assert not report.passed
    (failure,) = report.of("keeps local epsilon")
    assert dict(failure.measured) == pytest.approx({"spent": 1.575, "declared": 1.5})
    assert "✗ keeps local epsilon (ε0=1.5, dim=1)" in str(report)
    assert "DOES NOT CONFORM" in str(report)


def test_dimensions_that_the_mechanism_refuses_are_reported_as_skipped():
    report = check_mechanism("binary-rr", dims=(1, 2), **ONE)
    report.raise_on_failure()
    assert [result.status for result in report.of("builds")] == [Status.PASSED, Status.SKIPPED]
    assert "one number per client" in str(report)
    nowhere = check_mechanism("binary-rr", dims=(2, 3), **ONE)
    with pytest.raises(ConformanceError, match="cannot be built in any setting"):
        nowhere.raise_on_failure()


def test_a_factory_that_builds_something_else_in_size_or_kind():
    def deaf(*, local_epsilon, dim):
        return LInfCoordinate(local_epsilon=local_epsilon, dim=3)

    report = check_mechanism(deaf, dims=(3, 4), **ONE)
    assert "asked for ε0=1.5, dim=4" in report.of("builds")[1].message
    with pytest.raises(TypeError, match="subclass one"):
        check_mechanism(lambda *, local_epsilon, dim: object(), dims=(3,), **ONE)


def test_single_checks_and_bad_arguments():
    report = check_mechanism(LInfCoordinate, dims=(3,), checks=["is unbiased"], **ONE)
    assert {result.check for result in report.results} == {"builds", "is unbiased"}
    with pytest.raises(ValueError, match="no check named is lovely"):
        check_mechanism(LInfCoordinate, checks=["is lovely"])
    with pytest.raises(ValueError, match="samples"):
        check_mechanism(LInfCoordinate, samples=10)
    with pytest.raises(ValueError, match="no mechanism named"):
        check_mechanism("nobody")


class HalfTheBall(LocalRandomizer):
    """Numbers in [0, radius] alone, through binary randomized response of 2x - radius."""

    name = "half-the-ball"
    norm = BinaryRandomizedResponse.norm

    def __init__(self, *, local_epsilon, dim=1, radius=1.0):
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._whole = BinaryRandomizedResponse(local_epsilon=local_epsilon, dim=dim, radius=radius)

    @property
    def layout(self):
        return replace(self._whole.layout, mechanism=self.name)

    @property
    def worst_variance(self):
        return self._whole.worst_variance / 4

    def _shift(self, x):
        values = Rows.of(x).dense()
        if bool((values < 0).any()):
            raise ValueError("a number is negative")
        return 2 * values - self.radius

    def variance(self, x):
        return self._whole.variance(self._shift(self.check_rows(x))) / 4

    def blanket(self):
        return self._whole.blanket()

    def randomize_rows(self, x, norms, randomness):
        inner = self._whole.randomize(self._shift(x), randomness=randomness)
        return Reports(mechanism=self.name, dim=1, fields=inner.fields)

    def sum(self, reports):
        self.layout.check(reports)
        inner = Reports(mechanism=self._whole.name, dim=1, fields=reports.fields)
        return (self._whole.sum(inner) + len(reports) * self.radius) / 2


def test_a_domain_smaller_than_the_ball_is_declared():
    def ends(mechanism):
        return mechanism.radius * torch.tensor([[0.0], [1.0], [0.5]], dtype=torch.float64)

    report = check_mechanism(HalfTheBall, dims=(1,), records=ends, **ONE)
    report.raise_on_failure()
    assert not check_mechanism(HalfTheBall, dims=(1,), **ONE).passed
