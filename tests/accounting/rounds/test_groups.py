"""Rounds of groups with an ε0 each, against enumeration of all datasets and against what one group costs."""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from brute_force import Law, hockey_stick, shuffled_laws
from scipy import stats
from thinning import first_fast

from shuffle_plugins import mechanisms
from shuffle_plugins.accounting import (
    COARSE,
    FINE,
    EpsilonInterval,
    GroupsRound,
    LabelledRound,
    PrivacyLossDistribution,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
)
from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.accounting.pairs.groups import sign_types
from shuffle_plugins.accounting.rounds.round import lower_families, lower_losses, upper_losses

QUIET, LOUD = 0.7, 2.5
LEVELS = (QUIET, LOUD)


def groups_of(
    counts: tuple[int, ...], *, levels: tuple[float, ...] = LEVELS, mechanism: str, dim: int, **shared: object
) -> tuple[GroupsRound, ...]:
    def blanket(local_epsilon: float) -> mechanisms.registry.Blanket:
        return mechanisms.blanket(mechanism, local_epsilon=local_epsilon, dim=dim)

    shared = {"cohort": sum(counts), "sampling": Sampling.FULL, "channel_fixed": True} | shared
    found = GroupsRound.each_of(
        tuple(zip(levels, counts, strict=True)), blanket=blanket, mechanism=mechanism, **shared
    )
    return found


def epsilon_of(each: Round, steps: int = 1, *, delta: float = 1e-6) -> EpsilonInterval:
    accountant = ShuffleAccountant()
    accountant.step(each, num_steps=steps)
    return accountant.epsilon(delta)


def delta_of(law: PrivacyLossDistribution, epsilon: float) -> float:
    return float(np.maximum(law.p - math.exp(epsilon) * law.q, 0.0).sum())


def channel(mechanism: str, local_epsilon: float, records: int) -> Floats:
    """Laws of reports by their definition, shape (records, reports)."""
    e = math.exp(local_epsilon)
    if mechanism == "hadamard-response":  # rows of a Hadamard matrix of order 4, without the constant one
        signs = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])[:records]
        return np.where(signs > 0, e, 1.0) / (2 * (e + 1))
    return np.where(np.eye(records) > 0, e, 1.0) / (e + records - 1)


def datasets(counts: tuple[int, ...], own: int, records: int) -> Iterator[list[int]]:
    """What the others may hold, as rows of all groups' channels under each other."""
    each = [
        itertools.combinations_with_replacement(range(g * records, (g + 1) * records), count - (g == own))
        for g, count in enumerate(counts)
    ]
    for held in itertools.product(*each):
        yield [row for rows in held for row in rows]


SAMPLINGS = [
    {},
    {"cohort": 2, "sampling": "without-replacement"},
    {"cohort": 1.2, "sampling": "poisson"},
    {"cohort": 2, "sampling": "epoch"},
    {"cohort": 1.2, "sampling": "check-in"},
]


@first_fast(
    ("mechanism", "records", "counts"),
    [
        ("binary-rr", 2, (2, 2)),
        ("k-rr", 3, (2, 1)),
        ("binary-rr", 2, (1, 5)),
        ("binary-rr", 2, (4, 1)),
        ("binary-rr", 2, (3, 3)),
        ("binary-rr", 2, (1, 2, 2)),
        ("k-rr", 3, (1, 1, 2)),
        ("k-rr", 3, (2, 2)),
        ("k-rr", 3, (1, 3)),
        ("hadamard-response", 3, (2, 2)),
    ],
    fast=2,
)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_no_dataset_of_few_clients_tells_more(
    mechanism: str, records: int, counts: tuple[int, ...], sampling: dict[str, object]
) -> None:
    """Every dataset of the others, every pair of records, both groups; and both ends of δ(ε)."""
    levels = (QUIET, 1.4, LOUD) if len(counts) == 3 else LEVELS
    rows = np.vstack([channel(mechanism, level, records) for level in levels])
    drawn = {
        "without-replacement": {"cohort": 2},
        "poisson": {"rate": 1.2 / sum(counts)},
        "epoch": {"cohort": sum(counts) // 2 * 2},  # those of an epoch's full batches, put together
    }.get(str(sampling.get("sampling")), {})
    dim = 1 if mechanism == "binary-rr" else records
    for own, each in enumerate(groups_of(counts, levels=levels, mechanism=mechanism, dim=dim, **sampling)):
        epsilons = np.linspace(0.0, 0.98 * levels[own], 7)
        worst = np.zeros(len(epsilons))
        for others in datasets(counts, own, records):
            ends = [own * records + z for z in range(records)]
            laws = shuffled_laws(rows, others, ends, **drawn)
            for p, q in itertools.permutations(laws, 2):
                worst = np.maximum(worst, [hockey_stick(p, q, epsilon) for epsilon in epsilons])
        for fixed in (True, False):
            found = upper_losses(replace(each, channel_fixed=fixed), FINE)
            for epsilon, exact in zip(epsilons.tolist(), worst.tolist(), strict=True):
                assert exact <= delta_of(found, epsilon) + found.missing + 1e-12
        assert worst[0] > 0.25 * delta_of(upper_losses(each, FINE), 0.0)  # the bound says something even here
        families = lower_families(each)
        assert families
        for family in families:
            for exchanged in (False, True):
                found = lower_losses(each, family, FINE, exchanged=exchanged)
                for epsilon, exact in zip(epsilons.tolist(), worst.tolist(), strict=True):
                    assert delta_of(found, epsilon) <= exact * (1 + 1e-9) + 1e-12


def test_a_group_that_can_be_told_apart_is_hidden_by_itself_alone() -> None:
    """With a label on reports other groups hide nothing, so that their mixed bounds do not hold."""
    rows = np.zeros((4, 4))
    rows[:2, :2], rows[2:, 2:] = channel("k-rr", QUIET, 2), channel("k-rr", LOUD, 2)  # reports of their own
    *_, loud = groups_of((4, 1), mechanism="binary-rr", dim=1)
    p, q = shuffled_laws(rows, [0, 0, 0, 0], [2, 3])
    charged = upper_losses(loud, FINE)
    assert hockey_stick(p, q, 1.0) > 1.5 * (delta_of(charged, 1.0) + charged.missing)
    with pytest.raises(ValueError, match="ShuffleRound of each group's own clients"):
        groups_of((4, 1), mechanism="privunit-g", dim=10)


def test_categories_hide_a_loud_client_worse_than_any_formula_of_levels_alone() -> None:
    """Half a count more of one of K categories: the rest of 2312.14388 is short of it by far."""
    clients, categories = 3_000, 60
    _, loud = groups_of((clients, 1), levels=(0.01, 4.0), mechanism="k-rr", dim=categories)
    # Chen, Cao, Ge 2024, Theorem: μ² = 2/(Σ 1/(1 + e^ε) − max), of Gaussian differential privacy.
    told = clients / (1 + math.exp(0.01)) + 1 / (1 + math.exp(4.0))
    published = math.sqrt(2 / (told - 1 / (1 + math.exp(0.01))))
    # ε of a Gaussian of shift μ at δ = 1e-6, by its upper end ε = μ²/2 + μ·√(2·log(1/δ))
    claimed = published**2 / 2 + published * math.sqrt(2 * math.log(1e6))
    assert epsilon_of(loud).lower > 1.5 * claimed


def test_tests_of_what_one_client_sends_do_not_bound_what_it_loses() -> None:
    """arXiv 2407.18157 for bits, and for Laplace noise, of which two counts tell more than it says."""
    root = Path(__file__).parents[3]
    published = runpy.run_path(str(root / "benchmarks" / "certified.py"))["tested_clones"]
    of_bits, loud = partial(published, delta=1e-5, noise=False), {"mechanism": "binary-rr", "dim": 1}
    for level, exceeded in ((1.0, True), (2.0, False)):
        others = np.repeat([level / 2, level], [500, 499])
        *_, each = groups_of((500, 500), levels=(level / 2, level), **loud)
        found, claimed = epsilon_of(each, delta=1e-5), of_bits(others, level)
        assert claimed < found.lower if exceeded else claimed > 1.5 * found.upper

    clients, level, near = 20_000, 0.005, 1.3  # so far from 0 and from 1 reports are counted
    claimed = published(np.full(clients, level), 1.0, delta=1e-5, noise=True)
    edges = np.array([-near, 0.5, 1 + near])
    quiet, about_zero, about_one = (
        np.diff(stats.laplace.cdf((edges - at) * of)) for at, of in ((0, level), (0, 1.0), (1, 1.0))
    )
    left, right = np.ogrid[0:200, 0:200]
    others = stats.binom.pmf(left + right, clients, quiet.sum())
    others = others * stats.binom.pmf(left, left + right, quiet[0] / quiet.sum())
    p, q = (
        (1 - own.sum()) * others
        + own[0] * np.pad(others, ((1, 0), (0, 0)))[:-1]
        + own[1] * np.pad(others, ((0, 0), (1, 0)))[:, :-1]
        for own in (about_one, about_zero)
    )
    assert np.maximum(p - math.exp(1.25 * claimed) * q, 0.0).sum() > 1e-5


@pytest.mark.parametrize(("sampling", "seen"), [("epoch", 3), ("full", 3), ("without-replacement", 2)])
def test_reports_that_follow_from_earlier_ones_tell_no_more(sampling: str, seen: int) -> None:
    """Whole transcripts of three clients in a random order; inputs follow from what was released."""
    rng = np.random.default_rng(seen)
    quiet, loud = groups_of(
        (2, 1), mechanism="binary-rr", dim=1, sampling=sampling, cohort=seen, channel_fixed=False
    )
    for _ in range(60):
        maps = rng.integers(0, 2, size=(15, 2))  # the input to which a record leads, for each history
        for own, each in ((0, quiet), (2, loud)):
            levels = [QUIET, QUIET, LOUD]
            others = [int(z) for z in rng.integers(0, 2, size=2)]
            laws = []
            for record in (0, 1):
                held = [*others[:own], record, *others[own:]] if own < 2 else [*others, record]
                law: Law = {}
                for order in itertools.permutations(range(3), seen):
                    for bits in itertools.product((0, 1), repeat=seen):
                        mass, history = 1 / 6, 0
                        for client, bit in zip(order, bits, strict=True):
                            sent = maps[history, held[client]]
                            e = math.exp(levels[client])
                            mass *= (e if bit == sent else 1) / (e + 1)
                            history = 2 * history + 1 + bit
                        law[bits] = law.get(bits, 0.0) + mass
                laws.append(law)
            charged = upper_losses(each, FINE)
            for epsilon in (0.0, 0.3, 0.6, 1.5):
                for p, q in itertools.permutations(laws, 2):
                    assert hockey_stick(p, q, epsilon) <= delta_of(charged, epsilon) + charged.missing + 1e-12


def test_every_bit_is_below_one_of_two_types() -> None:
    """All the laws of section 3e: the other's bit, where x and x' differ or agree, at all E."""
    for own, other in itertools.product((0.3, 1.0, 4.0), repeat=2):
        types = sign_types(own, other)
        q1, q = (1 / (1 + math.exp(-level)) for level in (own, other))
        mine, theirs = np.array([[q1, 1 - q1], [1 - q1, q1]]), np.array([[q, 1 - q], [1 - q, q]])
        for factor in np.linspace(1.0, math.exp(own), 7):
            laws = [([u + 1 - factor * (v + 1) for u, v, _ in law], [m for *_, m in law]) for law in types]
            for x, y, z in itertools.product((0, 1), repeat=3):
                gains = (mine[x] - factor * mine[y]) / theirs[z]
                points = np.array([*gains, *laws[0][0], *laws[1][0]])
                small = 1e-12 * (1 + np.abs(points).max())
                calls = [
                    np.maximum(np.array(values) - points[:, None], 0.0) @ np.array(masses)
                    for values, masses in [(gains, theirs[z]), *laws]
                ]
                if (x, y) != (1, 0):  # x = 0, x' = 1 is what the types are of
                    assert any(np.all(calls[0] <= above + small) for above in calls[1:])


def test_one_group_alone_costs_what_it_costs_today() -> None:
    blanket = partial(mechanisms.blanket, "linf-coordinate", dim=10)
    for sampling, adversary in (("without-replacement", "model-observer"), ("poisson", "model-observer")):
        shared = {
            "mechanism": "linf-coordinate",
            "cohort": 300,
            "sampling": sampling,
            "adversary": adversary,
            "channel_fixed": True,
        }
        (alone,) = GroupsRound.each_of([(1.5, 2_000)], blanket=lambda e: blanket(local_epsilon=e), **shared)
        today = ShuffleRound(
            local_epsilon=1.5, population=2_000, blanket=blanket(local_epsilon=1.5), **shared
        )
        assert epsilon_of(alone, 20) == epsilon_of(today, 20)


@first_fast("mechanism", ["k-rr", "linf-coordinate"])
@pytest.mark.parametrize("sampling", [{}, {"cohort": 1_000, "sampling": "without-replacement"}])
@pytest.mark.parametrize("steps", [1, 100])
def test_two_groups_are_bounded_from_both_sides(
    mechanism: str, sampling: dict[str, object], steps: int
) -> None:
    """Within a tenth; and nobody is charged as if everybody were as loud as the loudest."""
    counts, levels = (5_000, 5_000), (1.0, 4.0)
    shared = {"cohort": 10_000, "sampling": "full", "mechanism": mechanism, "channel_fixed": True} | sampling
    loudest = ShuffleRound(
        local_epsilon=4.0,
        population=10_000,
        blanket=mechanisms.blanket(mechanism, local_epsilon=4.0, dim=10),
        **shared,
    )
    most = epsilon_of(loudest, steps)
    quiet, loud = (
        epsilon_of(each, steps)
        for each in groups_of(counts, levels=levels, mechanism=mechanism, dim=10, **sampling)
    )
    for found in (quiet, loud):
        assert found.lower <= found.upper <= 1.1 * found.lower
        assert found.upper < most.upper
    assert quiet.upper < loud.upper


def test_ten_groups_of_bits_are_bounded_from_both_sides() -> None:
    levels = tuple(np.linspace(0.5, 4.1, 10).tolist())
    *_, loudest = groups_of((200,) * 10, levels=levels, mechanism="binary-rr", dim=1)
    found = epsilon_of(loudest)
    assert found.lower <= found.upper <= 1.03 * found.lower


@pytest.mark.parametrize("sampling", ["epoch", "check-in"])
def test_a_pass_of_all_groups_is_bounded_from_both_sides(sampling: str) -> None:
    """Of 1,000 clients nobody is left out by batches of 100; by those of 300 a tenth of them is."""
    for cohort, most in ((100, 1.01), (300, 1.01 if sampling == "check-in" else 1.1)):
        counts = (300, 300, 400)
        *_, loud = groups_of(
            counts, levels=(0.5, 1.5, 3.0), mechanism="k-rr", dim=5, sampling=sampling, cohort=cohort
        )
        found = epsilon_of(loud)
        assert found.lower <= found.upper <= most * found.lower


def test_more_quiet_clients_hide_better_and_few_others_change_nothing() -> None:
    found = [
        groups_of((quiet, 200), levels=(0.5, 3.0), mechanism="linf-coordinate", dim=5)
        for quiet in (1, 100, 1_000)
    ]
    for of in (0, 1):
        ends = [epsilon_of(each[of], delta=1e-5).upper for each in found]
        assert ends == sorted(ends, reverse=True)
    blanket = mechanisms.blanket("linf-coordinate", local_epsilon=3.0, dim=5)
    alone = ShuffleRound(
        local_epsilon=3.0,
        population=200,
        cohort=200,
        sampling=Sampling.FULL,
        mechanism="linf-coordinate",
        blanket=blanket,
        channel_fixed=True,
    )
    today = epsilon_of(alone, delta=1e-5).upper
    assert 0.93 * today < epsilon_of(found[0][1], delta=1e-5).upper < today


def test_samplings_agree_where_they_are_the_same() -> None:
    """A cohort of all but one is next to everybody, and Poisson cohorts are like fixed ones of their mean."""
    everybody, nearly, fixed, poisson, epoch = (
        groups_of((300, 700), mechanism="k-rr", dim=5, **sampling)[1]
        for sampling in (
            {},
            {"cohort": 999, "sampling": "without-replacement"},
            {"cohort": 200, "sampling": "without-replacement"},
            {"cohort": 200, "sampling": "poisson"},
            {"cohort": 50, "sampling": "epoch"},
        )
    )
    ends = [epsilon_of(each, 10).upper for each in (everybody, nearly, epoch)]
    assert ends[1:] == pytest.approx(2 * [ends[0]], rel=0.05)
    assert epsilon_of(fixed, 10).upper == pytest.approx(epsilon_of(poisson, 10).upper, rel=0.05)


def test_many_groups_and_large_ones() -> None:
    levels = tuple(0.5 + 0.4 * i for i in range(10))
    for counts, cohort in (((50,) * 10, 100), ((10**8,) * 10, 10**6)):
        each = groups_of(
            counts, levels=levels, mechanism="k-rr", dim=5, cohort=cohort, sampling="without-replacement"
        )
        ends = [upper_losses(one, COARSE) for one in (each[0], each[-1])]
        assert delta_of(ends[0], 0.0) < delta_of(ends[1], 0.0) < 1


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"groups": ((1.0, 5), (1.0, 5))}, "an ε0 each"),
        ({"groups": ((2.0, 5), (3.0, 5))}, "one the members'"),
        ({"groups": ((1.0, 5), (3.0, 6))}, "make up the population"),
        ({"groups": ((1.0, 5), (300.0, 5))}, "30"),
        ({"adversary": "server", "sampling": "without-replacement", "cohort": 4}, "give these as groups"),
        ({"sampling": "single-pass", "cohort": 4}, "not accounted"),
        ({"cohort": 11}, "cohort"),
    ],
)
def test_what_is_no_round_of_groups_is_refused(changes: dict[str, object], refusal: str) -> None:
    fields = {
        "local_epsilon": 1.0,
        "groups": ((1.0, 5), (3.0, 5)),
        "population": 10,
        "cohort": 10,
        "sampling": "full",
        "mechanism": "k-rr",
        "blanket": mechanisms.blanket("k-rr", local_epsilon=1.0, dim=4),
    }
    GroupsRound(**fields)
    with pytest.raises(ValueError, match=refusal):
        GroupsRound(**fields | changes)


def test_a_saved_round_of_groups_is_read_as_it_was() -> None:
    for each in groups_of((4, 5), mechanism="linf-coordinate", dim=3):
        assert Round.from_state(each.state()) == each
        assert "no report may show which group" in each.secrecy
        assert "4 clients of local_epsilon=0.7 and 5 clients of local_epsilon=2.5" in str(each)


def labelled(*levels: float, steps: int = 20) -> tuple[LabelledRound, ShuffleAccountant]:
    """Groups of 400, 500, … clients, drawn each on its own with one probability, and rounds of them."""
    members = [
        ShuffleRound(
            local_epsilon=level, population=400 + 100 * i, cohort=40.0 + 10 * i, sampling=Sampling.POISSON
        )
        for i, level in enumerate(levels)
    ]
    together = LabelledRound.of(members)
    accountant = ShuffleAccountant()
    accountant.step(together, num_steps=steps)
    return together, accountant


def test_groups_that_can_be_told_apart_cost_what_each_costs_by_itself() -> None:
    together, accountant = labelled(0.5, 3.0)
    apart = [epsilon_of(each, 20, delta=1e-5) for each in together.members]
    for level, own in zip((0.5, 3.0), apart, strict=True):
        assert accountant.of_group(level).epsilon(1e-5) == own
    worst = accountant.epsilon(1e-5)
    assert worst.upper == pytest.approx(apart[1].upper, rel=2e-3)
    assert max(each.lower for each in apart) <= worst.lower <= worst.upper
    assert together.sampling_rate == 0.1
    assert (together.population, together.cohort) == (900, 90)
    assert Round.from_state(together.state()) == together
    with pytest.raises(ValueError, match="no group of local_epsilon=2"):
        accountant.of_group(2.0)


def test_who_loses_most_may_be_another_at_another_loss() -> None:
    """A loud member of a large group, and a quiet one of a small one: the envelope covers both everywhere."""
    members = [
        ShuffleRound(local_epsilon=level, population=count, cohort=count, sampling=Sampling.FULL)
        for level, count in ((1.0, 3), (4.0, 300))
    ]
    together = upper_losses(LabelledRound.of(members), FINE)
    ahead = set()
    for epsilon in np.linspace(0.0, 3.0, 13).tolist():
        each = [delta_of(upper_losses(member, FINE), epsilon) for member in members]
        assert delta_of(together, epsilon) + together.missing >= max(each) * (1 - 1e-9)
        ahead.add(int(np.argmax(each)))
    assert ahead == {0, 1}


def test_reports_with_a_delta_of_their_own_are_in_groups_that_can_be_told_apart() -> None:
    members = [
        ShuffleRound(
            local_epsilon=level, population=1_000, cohort=1_000, sampling=Sampling.FULL, local_delta=delta0
        )
        for level, delta0 in ((1.0, 0.0), (2.0, 1e-12))
    ]
    together = LabelledRound.of(members)
    assert together.local_delta == 1e-12
    assert together.replacement_distance == members[1].replacement_distance > 0
    assert epsilon_of(together).upper >= epsilon_of(members[1]).upper * (1 - 2e-3)
    server = replace(members[0], adversary="server")
    for wrong in ([], [members[0], members[0]], [members[0], server]):
        with pytest.raises(ValueError, match=r"group|members"):
            LabelledRound.of(wrong)
    for make in (LabelledRound.of, partial(LabelledRound, population=2, cohort=2, sampling=Sampling.FULL)):
        with pytest.raises(ValueError, match="members must be ShuffleRounds, got 1"):
            make(members=(1,))


@pytest.mark.parametrize(("mechanism", "records", "cohort"), [("binary-rr", 2, 4), ("k-rr", 3, 1)])
def test_the_lower_end_of_a_loud_client_keeps_its_digits(mechanism: str, records: int, cohort: int) -> None:
    """At ε0 = 30 a bit is flipped once in 1e13 times: 1 − e^30/(e^30 + 1) has three digits of that."""
    levels, third = (30.0, 29.9), records - 1  # what everybody else holds
    dim = 1 if mechanism == "binary-rr" else records
    sampling = {} if cohort == 4 else {"cohort": cohort, "sampling": "without-replacement"}
    each, _ = groups_of((3, 1), levels=levels, mechanism=mechanism, dim=dim, **sampling)
    rows = np.vstack([channel(mechanism, level, records) for level in levels])
    laws = shuffled_laws(rows, [third, third, records + third], [0, 1], cohort=cohort)
    for exchanged in (False, True):
        found = lower_losses(each, lower_families(each)[0], FINE, exchanged=exchanged)
        p, q = reversed(laws) if exchanged else laws
        for epsilon in (27.0, 28.5, 29.99):
            assert delta_of(found, epsilon) <= hockey_stick(p, q, epsilon) * (1 + 1e-9)


def test_types_are_not_asked_where_nobody_is_hidden() -> None:
    """A hundred clients of ε0 = 12 took half a minute, for no smaller ε."""
    quiet, _ = groups_of((50, 50), levels=(11.9, 12.0), mechanism="binary-rr", dim=1)
    assert not any(other.types for pair in quiet._pairs() for other in pair.others)


def test_the_order_of_groups_is_no_matter() -> None:
    shared = {"mechanism": "k-rr", "dim": 4, "cohort": 33, "sampling": "without-replacement"}
    _, loud = groups_of((30, 300), levels=(0.1, 2.0), **shared)
    turned, _ = groups_of((300, 30), levels=(2.0, 0.1), **shared)
    assert epsilon_of(turned, delta=1e-3) == epsilon_of(loud, delta=1e-3)
