"""A kind of round that this package does not know, as the page on extending shows it."""

import importlib
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from histories import accountant_of
from scipy.optimize import brentq
from scipy.special import ndtr

from shuffle_plugins.accounting import (
    FederatedRound,
    LaplaceRound,
    PrivacyLossDistribution,
    PrivacyTarget,
    Resolution,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    SumRound,
    finite_losses,
)

PAGE = (Path(__file__).parents[3] / "docs/guides/extending.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.split("## A round of your own")[1], re.M | re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The page's module, imported as a user would."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "gaussian_round.py").write_text(BLOCKS[0])
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("gaussian_round")
    finally:
        sys.path.remove(str(folder))


def exact_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """Of Gaussian mechanisms composed, in closed form: Balle, Wang 2018, Theorem 8."""
    mu = math.sqrt(steps) / noise_multiplier

    def excess(epsilon: float) -> float:
        tail = math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        return float(ndtr(mu / 2 - epsilon / mu) - tail - delta)

    return float(brentq(excess, 0.0, 200.0, xtol=1e-12))


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(1.0, 1), (4.0, 1), (4.0, 50), (30.0, 1000)])
def test_its_interval_holds_the_closed_form(page: ModuleType, noise_multiplier: float, steps: int) -> None:
    accountant = ShuffleAccountant()
    own = page.GaussianRound(noise_multiplier=noise_multiplier, population=100, cohort=100)
    accountant.step(own, num_steps=steps)
    exact, found = exact_epsilon(noise_multiplier, steps, 1e-6), accountant.epsilon(1e-6)
    assert 0.98 * exact < found.lower <= exact <= found.upper < 1.01 * exact
    assert accountant.epsilon(1e-6, lower=False).upper == found.upper
    assert found.upper_bound == "gaussian-sum, PLD"
    assert str(own) == "gaussian-sum round (n=100, k=100, full)"


def test_sampling_and_renyi_orders_apply_to_it(page: ModuleType) -> None:
    fields = {"noise_multiplier": 2.0, "population": 1000, "cohort": 10, "sampling": "without-replacement"}
    found = {}
    for method in ("pld", "rdp"):
        accountant = accountant_of((page.GaussianRound(**fields), 100), method=method)
        found[method] = accountant.epsilon(1e-6)
    assert (
        0 < found["pld"].lower < found["pld"].upper < found["rdp"].upper < exact_epsilon(2.0, 100, 1e-6) / 10
    )


def test_it_composes_with_rounds_of_the_package(page: ModuleType) -> None:
    own = page.GaussianRound(noise_multiplier=5.0, population=500, cohort=500)
    shuffled = ShuffleRound(
        local_epsilon=1.0, population=500, cohort=500, sampling=Sampling.FULL, channel_fixed=True
    )
    coins = SumRound(sensitivity=20.0, trials=40_000, dim=1, population=500, cohort=500, attained=20)
    accountant = ShuffleAccountant()
    for each in (own, shuffled, coins, own):
        accountant.step(each)
    both = accountant.epsilon(1e-5)
    assert both.upper_bound == "covering Gaussian and crowd pair and gaussian-sum, PLD"
    sources = {bound.source for bound in accountant.bounds(1e-5)}
    assert sources == {f"{page.GaussianRound.SOURCE}; {ShuffleRound.SOURCE}"}
    assert 0 < both.lower < both.upper
    assert both.upper > PrivacyTarget(epsilon=9.0, delta=1e-5, num_steps=2).cost(own)
    assert not accountant.would_exceed(own, target_epsilon=2 * both.upper, delta=1e-5)
    assert accountant.would_exceed(own, target_epsilon=both.upper, delta=1e-5)


def test_its_state_is_saved_and_read(page: ModuleType) -> None:
    exec(BLOCKS[1], {})
    own = page.GaussianRound(noise_multiplier=5.0, population=500, cohort=500)
    assert own.state() == ("gaussian-sum", 500, 500, "full", "model-observer", 5.0)
    assert Round.from_state(own.state()) == page.GaussianRound.from_state(list(own.state())) == own
    for damaged in (own.state()[:-1], (*own.state(), 1), ("gaussian-sum", 500, 500, "full", "nobody", 5.0)):
        with pytest.raises(ValueError, match=r"not the state|adversary"):
            Round.from_state(damaged)
    with pytest.raises(ValueError, match="not the state of a SumRound"):
        SumRound.from_state(own.state())


def test_a_state_of_a_kind_that_is_not_imported_says_so() -> None:
    with pytest.raises(ValueError, match=r"no kind of round is called 'staircase'.*import its module"):
        Round.from_state(("staircase", "full", "model-observer", 9, 9))
    for damaged in ((), None, (3, 4)):
        with pytest.raises(ValueError, match="not the state"):
            Round.from_state(damaged)
    damaged = ("poisson-binomial", 3, 3, "full", "model-observer", 2, None, 2, 0.3, 2.0, None, 5)
    with pytest.raises(ValueError, match="not the state of a PoissonBinomialRound"):
        Round.from_state(damaged)  # 5 stands for a list


def test_two_kinds_cannot_have_one_name() -> None:
    with pytest.raises(TypeError, match="'laplace' already"):

        @dataclass(frozen=True, kw_only=True)
        class Another(Round):
            KIND = "laplace"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sampling": "epoch"}, "epoch"),
        ({"sampling": "poisson"}, "known size"),
        ({"sampling": "single-pass"}, "known size"),
        ({"adversary": "local"}, "local_epsilon"),
        ({"cohort": 99}, "full participation"),
        ({"cohort": 101}, "cohort"),
        ({"population": 0}, "population"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
    ],
    ids=str,
)
def test_the_fields_of_every_round_are_checked(page: ModuleType, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        page.GaussianRound(**({"noise_multiplier": 2.0, "population": 100, "cohort": 100} | wrong))


@dataclass(frozen=True, kw_only=True)
class LouderSum(LaplaceRound):
    """A kind made of one of the package's, with a field more."""

    times: int = 1
    KIND = "louder-sum"

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        louder = replace(SILENT, noise_epsilon=self.noise_epsilon * self.times)
        return louder.upper_losses(resolution)


@dataclass(frozen=True, kw_only=True)
class Nameless(LouderSum):
    """No KIND: its states would be read as those of a LouderSum."""


@dataclass(frozen=True, kw_only=True)
class LouderShuffle(ShuffleRound):
    """Another mechanism's losses under the name of the same one."""

    KIND = "louder-shuffle"


@dataclass(frozen=True, kw_only=True)
class Careless(Round):
    """Bits told truthfully with odds e to one, and mistakes that are easily made."""

    wrong: str = ""
    KIND = "careless"

    def __post_init__(self) -> None:
        if self.wrong != "unchecked":
            Round.__post_init__(self)

    @classmethod
    def fields_from_state(cls, saved: dict[str, object]) -> dict[str, object]:
        if saved.get("wrong") == "unread":
            raise ValueError("nobody knows how")
        return saved

    @property
    def local_epsilon(self) -> float:
        return math.nan if self.wrong == "local_epsilon" else math.inf

    @property
    def own_delta(self) -> float:
        return -1.0 if self.wrong == "own_delta" else 0.0

    @property
    def replacement_distance(self) -> float:
        return math.nan if self.wrong == "replacement_distance" else 0.0

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        p = np.array([math.e, 1.0]) / (1 + math.e) * (0.5 if self.wrong == "forgotten" else 1.0)
        return finite_losses(
            None,
            p,
            p[::-1],
            missing=math.nan if self.wrong == "missing" else 0.0,
            kind="lower" if self.wrong == "below" else "upper",
            resolution=resolution,
            symmetric=True,
        )


SILENT = LaplaceRound(population=50, cohort=50, noise_epsilon=0.5, sensitivity=1)


def test_a_kind_made_of_another_saves_the_fields_it_adds() -> None:
    own = LouderSum(population=50, cohort=50, noise_epsilon=0.5, sensitivity=1, times=4)
    assert own.state()[-1] == 4
    accountant, restored = ShuffleAccountant(), ShuffleAccountant()
    accountant.step(own)
    restored.load_state_dict(accountant.state_dict())
    assert restored.history == accountant.history
    assert restored.epsilon(1e-6, lower=False).upper == accountant.epsilon(1e-6, lower=False).upper > 1.99


def test_a_kind_whose_state_is_another_rounds_is_not_recorded() -> None:
    own = Nameless(population=50, cohort=50, noise_epsilon=0.5, sensitivity=1, times=4)
    with pytest.raises(ValueError, match="would be read as another round"):
        ShuffleAccountant().step(own)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("unchecked", r"call super\(\)\.__post_init__"),
        ("unread", "saved state of a Careless could not be read: nobody knows how"),
        ("local_epsilon", "local_epsilon=nan"),
        ("own_delta", r"own_delta=-1\.0"),
        ("replacement_distance", "replacement_distance=nan"),
        ("missing", "missing=nan"),
        ("forgotten", "P mass"),
        ("below", "make them with kind='upper'"),
    ],
)
def test_answers_that_are_none_are_refused(wrong: str, said: str) -> None:
    def epsilon(wrong: str) -> float:
        accountant = accountant_of(Careless(population=9, cohort=9, sampling="full", wrong=wrong))
        return accountant.epsilon(1e-6, lower=False).upper

    assert 0.999 < epsilon("") < 1.001
    with pytest.raises(ValueError, match=said):
        epsilon(wrong)


@pytest.mark.parametrize("side", ["p", "q"])
def test_what_a_law_leaves_out_unsaid_is_charged_every_round(side: str) -> None:
    short, steps = 9e-7, 10

    @dataclass(frozen=True, kw_only=True)
    class Short(Careless):
        KIND = f"test-short-{side}"

        def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
            whole = super().upper_losses(resolution)
            return replace(whole, **{side: getattr(whole, side) * (1 - short)}, symmetric=False)

    def delta(kind: type[Careless]) -> float:
        accountant = accountant_of((kind(population=9, cohort=9, sampling="full"), steps))
        return accountant.delta(9.99).upper

    assert delta(Short) >= delta(Careless) * (1 - short) ** steps + 0.99 * steps * short


def test_a_kind_made_of_shuffles_is_no_shuffle_in_a_federated_history() -> None:
    made = {}
    for kind in (ShuffleRound, LouderShuffle):
        each = kind(local_epsilon=1.0, population=50, cohort=50, sampling=Sampling.FULL)
        made[kind] = FederatedRound(observer=each, server=each, local_epsilon=1.0, local_delta=0.0)
    assert made[ShuffleRound].kind != made[LouderShuffle].kind
