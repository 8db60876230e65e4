"""The dominating pairs against exhaustive enumeration of small rounds."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from brute_force import extreme_channel, hockey_stick, k_ary_response, neighbours, shuffled_law

from shuffle_plugins.accounting import (
    FINE,
    Blanket,
    PrivacyLossDistribution,
    ShuffleAccountant,
    ShuffleRound,
    pair_losses,
)
from shuffle_plugins.accounting.losses import BoundKind, profile_losses
from shuffle_plugins.accounting.pairs import shuffle
from shuffle_plugins.accounting.pairs.bits import BitPair, BitResponse
from shuffle_plugins.accounting.pairs.others import MixPair
from shuffle_plugins.accounting.pairs.reports import RecordTypes
from shuffle_plugins.accounting.pairs.shuffle import outcomes_of

VIOLATION = 1e-12


def delta_of(law: PrivacyLossDistribution, epsilon: float) -> float:
    return float(np.maximum(law.p - math.exp(epsilon) * law.q, 0.0).sum()) + (
        law.missing if law.kind == "upper" else 0.0
    )


def pair_delta(shuffle_round: ShuffleRound, epsilon: float) -> float:
    return delta_of(pair_losses(shuffle_round.dominating_pair(), kind="upper"), epsilon)


def epsilons(local_epsilon: float) -> np.ndarray:
    return np.linspace(-1.0, local_epsilon, 9)


def channels(seed: int, count: int, local_epsilon: float) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    found: list[np.ndarray] = []
    while len(found) < count:
        channel = extreme_channel(
            rng, local_epsilon=local_epsilon, records=int(rng.integers(2, 4)), outputs=int(rng.integers(2, 5))
        )
        if channel is not None:
            found.append(channel)
    return found


def k_ary_blanket(local_epsilon: float, categories: int) -> Blanket:
    e = math.exp(local_epsilon)
    size = e + categories - 1
    atoms = [(e, 1.0, 1 / size), (1.0, e, 1 / size), (1.0, 1.0, (categories - 2) / size)]
    return Blanket.from_atoms(local_epsilon=local_epsilon, atoms=atoms)


def own_blanket(channel: np.ndarray, one: int, two: int, local_epsilon: float) -> Blanket:
    """Blanket of a channel by definition: ω is the smallest likelihood of each output."""
    omega = channel.min(axis=0)
    keep = omega > 0
    atoms = zip(channel[one, keep] / omega[keep], channel[two, keep] / omega[keep], omega[keep], strict=True)
    return Blanket.from_atoms(local_epsilon=local_epsilon, atoms=[tuple(map(float, a)) for a in atoms])


def check_dominated(
    law: PrivacyLossDistribution,
    channel: np.ndarray,
    *,
    local_epsilon: float,
    population: int,
    records: tuple[int, int] | None = None,
    **draw: float,
) -> None:
    """Of all datasets that differ in the first client's record, or in these two records of its."""
    for one, two in neighbours(len(channel), population):
        if records is None or (one[0], two[0]) == records:
            p, q = shuffled_law(channel, one, **draw), shuffled_law(channel, two, **draw)
            for epsilon in epsilons(local_epsilon):
                assert hockey_stick(p, q, epsilon) <= delta_of(law, epsilon) + VIOLATION


def sampled(population: int, cohort: float, *, poisson: bool) -> tuple[dict[str, object], dict[str, float]]:
    """The fields of a round, and the draw of the enumeration."""
    fields = {"population": population, "cohort": cohort}
    if poisson:
        return fields | {"sampling": "poisson"}, {"rate": cohort / population}
    return fields, {"cohort": int(cohort)}


@pytest.mark.parametrize("local_epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize(
    ("population", "cohort", "poisson"),
    [
        *((2, 1, False), (3, 2, False), (4, 2, False), (4, 4, False), (5, 3, False), (5, 5, False)),
        *((3, 0.9, True), (4, 2.0, True), (4, 3.6, True)),
    ],
)
def test_generic_pair_dominates_random_channels(
    local_epsilon: float, population: int, cohort: float, poisson: bool
) -> None:
    fields, draw = sampled(population, cohort, poisson=poisson)
    law = pair_losses(ShuffleRound(local_epsilon=local_epsilon, **fields).dominating_pair(), kind="upper")
    for channel in channels(population * 10 + int(cohort), 3, local_epsilon):
        check_dominated(law, channel, local_epsilon=local_epsilon, population=population, **draw)


@pytest.mark.parametrize(("population", "cohort"), [(3, 2), (4, 4), (5, 3)])
def test_own_blanket_dominates_its_records_and_is_never_above_generic(population: int, cohort: int) -> None:
    given = {"local_epsilon": 1.5, "population": population}
    generic = ShuffleRound(cohort=cohort, **given)
    for channel in channels(7, 4, 1.5):
        for records in itertools.permutations(range(len(channel)), 2):
            specific = ShuffleRound(
                cohort=cohort, mechanism="test", blanket=own_blanket(channel, *records, 1.5), **given
            )
            law = pair_losses(specific.dominating_pair(), kind="upper")
            check_dominated(law, channel, records=records, cohort=cohort, **given)
            for epsilon in epsilons(1.5):
                assert delta_of(law, epsilon) <= pair_delta(generic, epsilon) + VIOLATION


def test_merging_one_clients_rest_with_the_others_would_be_invalid() -> None:
    """The variation-ratio shortcut gives 0.02355 here; the truth and the blanket pair are above it."""
    local_epsilon, population, categories, epsilon = 2.0, 12, 5, 1.2
    channel = k_ary_response(local_epsilon, categories)
    p = shuffled_law(channel, (0, *[2] * 11))
    q = shuffled_law(channel, (1, *[2] * 11))
    exact = hockey_stick(p, q, epsilon)
    assert exact == pytest.approx(0.02877, abs=5e-6)
    shuffle_round = ShuffleRound(
        local_epsilon=local_epsilon,
        population=population,
        cohort=population,
        sampling="full",
        mechanism="k-rr",
        blanket=k_ary_blanket(local_epsilon, categories),
    )
    assert pair_delta(shuffle_round, epsilon) >= exact
    assert exact > 0.02355 + 0.005


@pytest.mark.parametrize("poisson", [False, True])
@pytest.mark.parametrize(("family", "categories"), [("3-RR instance", 3), ("binary-RR instance", 2)])
def test_lower_pairs_are_exact_instances(poisson: bool, family: str, categories: int) -> None:
    fields, draw = sampled(5, 3, poisson=poisson)
    law = pair_losses(ShuffleRound(local_epsilon=1.3, **fields).instances()[family], kind="lower")
    channel = k_ary_response(1.3, categories)
    p, q = (shuffled_law(channel, [own, *[categories - 1] * 4], **draw) for own in (0, 1))
    for epsilon in epsilons(1.3):
        # Merging in cells of the loss costs a lower law a little of δ, never adds to it.
        assert delta_of(law, epsilon) <= hockey_stick(p, q, epsilon) + VIOLATION
        assert delta_of(law, epsilon) == pytest.approx(hockey_stick(p, q, epsilon), abs=2e-3)
        assert delta_of(law.reversed(), epsilon) == pytest.approx(hockey_stick(q, p, epsilon), abs=2e-3)


@pytest.mark.parametrize("local_epsilon", [0.5, 2.0])
def test_server_adversary_costs_a_participant_its_whole_cohort(local_epsilon: float) -> None:
    seen = ShuffleRound(local_epsilon=local_epsilon, population=30, cohort=5, adversary="server")
    full = ShuffleRound(local_epsilon=local_epsilon, population=5, cohort=5, sampling="full")
    for epsilon in epsilons(local_epsilon):
        assert pair_delta(seen, epsilon) == pair_delta(full, epsilon)


def test_poisson_cohorts_before_a_server_dominate_enumeration() -> None:
    local_epsilon, population, rate = 1.0, 4, 0.5
    shuffle_round = ShuffleRound(
        local_epsilon=local_epsilon,
        population=population,
        cohort=rate * population,
        sampling="poisson",
        adversary="server",
    )
    law = pair_losses(shuffle_round.dominating_pair(), kind="upper")
    channel = k_ary_response(local_epsilon, 2)
    for one, two in neighbours(2, population):
        for epsilon in epsilons(local_epsilon):
            exact = 0.0
            for others in range(population):
                # The server sees which others joined; by symmetry any set of that size will do.
                weight = (
                    math.comb(population - 1, others) * rate**others * (1 - rate) ** (population - 1 - others)
                )
                values = [
                    hockey_stick(
                        shuffled_law(channel, [one[0], *chosen]),
                        shuffled_law(channel, [two[0], *chosen]),
                        epsilon,
                    )
                    for chosen in itertools.combinations(one[1:], others)
                ]
                exact += weight * max(values)
            assert exact <= delta_of(law, epsilon) + VIOLATION


@pytest.mark.parametrize("local_epsilon", [1e-6, 1e-9])
def test_one_sign_of_very_many_clients_is_accounted(local_epsilon: float) -> None:
    """The largest ratio of its likelihoods is one but for rounding; its loss is not zero."""
    own = Blanket.sign(local_epsilon)
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=local_epsilon,
            population=10**12,
            cohort=1,
            mechanism="linf-coordinate",
            blanket=own,
        ),
        num_steps=10,
    )
    found = accountant.epsilon(1e-18 * local_epsilon).upper
    assert 0.99 < found / (10e-12 * local_epsilon) < 1 + 1e-6


def test_pairs_over_all_datasets_have_no_law_from_below() -> None:
    """They are above every round's profile: as a lower end they would claim too much."""
    bits = BitPair(response=BitResponse.symmetric(1.0), others=19)
    mixes = MixPair(local_epsilon=1.0, population=20, slots=20, others=RecordTypes.generic(1.0))
    for pair in (bits, mixes):
        with pytest.raises(ValueError, match="bounded from above only"):
            outcomes_of(pair, kind="lower", tolerance=1e-2)


def test_types_of_others_and_third_records_are_of_pure_reports() -> None:
    types, share = RecordTypes.generic(1.0), 1 / (math.e + 1)
    assert dataclasses.replace(Blanket.generic(1.0), others=types).others == types
    cut = Blanket(local_epsilon=1.0, differing=0.9 * share, tail=0.1)
    for blanket, wrong, said in (
        (Blanket.clones(1.0), {"others": types}, "only pure reports have types"),
        (cut, {"others": types}, "only pure reports have types"),
        (Blanket.generic(0.9), {"others": types}, "further apart than"),
        (Blanket.generic(1.0), {"outside": 1.1 * share}, "no third record can be outside"),
        (Blanket.bit(1.0), {"outside": 0.5 * share}, "no third record can be outside"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(blanket, **wrong)


def test_what_is_no_state_of_a_blanket_is_refused() -> None:
    state = Blanket.generic(1.0).state()
    assert Blanket.from_state(state) == Blanket.generic(1.0)
    for wrong in ((), None, (1.0, 0.3), (*state[:4], 5, *state[5:]), (*state[:8], "new", *state[9:])):
        with pytest.raises(ValueError, match=r"not the state of a Blanket|form must be"):
            Blanket.from_state(wrong)


def test_types_of_others_are_two_or_three_that_turn_into_each_other() -> None:
    types = RecordTypes.generic(1.0)
    one, two, third = types.types
    assert dataclasses.replace(types, types=(one, two)).types == (one, two)
    for wrong, said in (
        ({"types": (third,)}, "two or three types of others"),
        ({"types": (one, third)}, "must turn the types of others into each other"),
        ({"types": (one, one)}, "must turn the types of others into each other"),
        ({"common": 1.1}, "common must be"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(types, **wrong)


def test_small_gains_of_others_have_no_mean_either() -> None:
    """However small it is, a mean grows with the number of reports."""
    types = RecordTypes.generic(1.0)
    for gain in (1.0, 1e-18):
        even = ((gain, -gain, 0.5), (-gain, gain, 0.5))
        dataclasses.replace(types, shared=even)
        leaning_first = ((gain, -gain, 0.5), (-gain / 2, gain, 0.5))
        leaning_second = ((gain, -gain, 0.5), (-gain, 0.0, 0.5))
        for leaning in (leaning_first, leaning_second):
            with pytest.raises(ValueError, match="mean 0"):
                dataclasses.replace(types, shared=leaning)


@pytest.mark.parametrize("local_epsilon", [36.0, 40.75, 46.0, 60.0])
def test_reports_that_have_next_to_nothing_in_common_are_types_too(local_epsilon: float) -> None:
    """What they do not have in common is then one but for rounding, and no more than one."""
    size = math.exp(local_epsilon) + 2
    shares = dict.fromkeys([(1, 0, 0), (0, 1, 0), (0, 0, 1)], 1 / size)
    types = RecordTypes.two_level(local_epsilon=local_epsilon, shares=shares)
    assert types.common == pytest.approx(3 / size, rel=1e-12, abs=0)
    assert min(min(u, v) for u, v, _ in types.shared) == pytest.approx(-1)
    assert all(min(u, v) >= -1 for u, v, _ in types.shared)


@pytest.mark.parametrize("seed", range(5))
def test_loose_bounds_on_a_symmetric_pair_still_bound_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4))
    both = np.concatenate([p, p[::-1] * np.exp(-rng.uniform(0.1, 2.0, 4))[[0, 1, 1, 0]]])
    both /= both.sum()
    mirror = both[::-1]
    losses = np.array([0.0, 0.05, 0.3, 1.0, 3.0])
    true = np.array([np.maximum(both - math.exp(loss) * mirror, 0.0).sum() for loss in losses])
    law = profile_losses(losses, np.minimum(true * [9.0, 1.0, 1.1, 1.0, 1.0], 1.0), resolution=FINE)
    for loss in np.linspace(-3.0, 3.0, 61):
        assert delta_of(law, loss) >= np.maximum(both - math.exp(loss) * mirror, 0.0).sum() - 1e-12
    assert delta_of(law, 0.0) < 1.5 * true[0] + 0.03


@pytest.mark.parametrize(
    ("kind", "kept", "said"),
    [("upper", 0.999, "do not make up a probability law"), ("lower", 0.0, "within floating-point range")],
)
def test_outcomes_that_went_missing_are_noticed(
    kind: BoundKind, kept: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = ShuffleRound(local_epsilon=1.0, population=50, cohort=50).dominating_pair()
    parts = shuffle._parts

    def fewer(*given: object, **more: object) -> list[shuffle.Outcomes]:
        return [(loss, kept * p, kept * q, lost) for loss, p, q, lost in parts(*given, **more)]

    monkeypatch.setattr(shuffle, "_parts", fewer)
    with pytest.raises(ArithmeticError, match=said):
        pair_losses(mixture, kind=kind)
