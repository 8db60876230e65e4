"""Rounds of several messages per client, against enumeration of everything that can be seen."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from histories import accountant_of
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, Sampling, ShuffleAccountant, Tag, TaggedRound
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.composition.sampled import sampled_instance
from shuffle_plugins.accounting.losses import COARSE, FINE, finite_losses

EPSILONS = (0.0, 0.1, 0.4, 1.0, 2.0)
Kind = tuple[float, int]  # ε0 and number of places
Record = tuple[tuple[int, ...], ...]  # under each tag, the bit held at each place


def message_law(bits: Sequence[int], local_epsilon: float) -> dict[tuple[int, int], float]:
    """A place drawn uniformly, and the bit there, flipped."""
    kept = 1 / (1 + math.exp(-local_epsilon))
    return {
        (place, sent): (kept if sent == held else 1 - kept) / len(bits)
        for place, held in enumerate(bits)
        for sent in (0, 1)
    }


def multiset_law(laws: Sequence[dict[tuple[int, int], float]]) -> dict[tuple[object, ...], float]:
    found: Counter[tuple[object, ...]] = Counter({(): 1.0})
    for law in laws:
        after: Counter[tuple[object, ...]] = Counter()
        for seen, mass in found.items():
            for message, share in law.items():
                after[tuple(sorted((*seen, message)))] += mass * share
        found = after
    return found


def view_law(cohort: Sequence[Record], kinds: Sequence[Kind]) -> dict[tuple[object, ...], float]:
    """The multisets under all tags together; tags are independent given the data."""
    by_tag = [
        multiset_law([message_law(record[t], kinds[t][0]) for record in cohort]) for t in range(len(kinds))
    ]
    return {
        tuple(view for view, _ in combined): math.prod(mass for _, mass in combined)
        for combined in itertools.product(*(law.items() for law in by_tag))
    }


def sampled_law(people: Sequence[Record], cohort: int, kinds: Sequence[Kind]) -> Counter[tuple[object, ...]]:
    """One draw of the cohort for all tags."""
    total: Counter[tuple[object, ...]] = Counter()
    subsets = list(itertools.combinations(people, cohort))
    for subset in subsets:
        for view, mass in view_law(subset, kinds).items():
            total[view] += mass / len(subsets)
    return total


def records(kinds: Sequence[Kind]) -> list[Record]:
    return list(itertools.product(*(itertools.product((0, 1), repeat=places) for _, places in kinds)))


def profiles(
    population: int, cohort: int, kinds: Sequence[Kind], own: Sequence[tuple[Record, Record]]
) -> Iterator[np.ndarray]:
    """δ at EPSILONS of every dataset."""
    for first, second in own:
        for others in itertools.combinations_with_replacement(records(kinds), population - 1):
            p = sampled_law((first, *others), cohort, kinds)
            q = sampled_law((second, *others), cohort, kinds)
            a = np.array([p[view] for view in p | q])
            b = np.array([q[view] for view in p | q])
            yield np.array([np.maximum(a - math.exp(e) * b, 0).sum() for e in EPSILONS])


def tagged(kinds: Sequence[Kind], *, population: int, cohort: int) -> TaggedRound:
    return TaggedRound(
        tags=tuple(Tag(local_epsilon=e, count=1, places=places > 1) for e, places in kinds),
        population=population,
        cohort=cohort,
        opposite=True,
        sampling=Sampling.FULL if population == cohort else Sampling.WITHOUT_REPLACEMENT,
    )


@first_fast(
    ("population", "cohort", "kinds"),
    [
        (3, 3, [(1.0, 2)]),
        (3, 1, [(1.0, 1), (2.0, 1)]),
        (2, 2, [(2.0, 3)]),
        (3, 2, [(1.0, 2)]),
        (4, 4, [(1.0, 1), (0.5, 1)]),
        (3, 3, [(0.7, 2), (1.5, 1)]),
        (4, 2, [(1.0, 1), (0.5, 1)]),
    ],
    fast=4,
)
def test_no_dataset_costs_more_than_certified_and_one_as_much_as_attained(
    population: int, cohort: int, kinds: list[Kind]
) -> None:
    every = records(kinds)
    pairs = [(every[-1], every[0]), (every[0], every[-1])]
    pairs += [pair for pair in itertools.permutations(every, 2) if len(every) <= 4]
    found = np.array(list(profiles(population, cohort, kinds, pairs)))
    worst = found.max(axis=0)
    accountant = accountant_of(tagged(kinds, population=population, cohort=cohort))
    bounds = [accountant.delta(e) for e in EPSILONS]
    assert worst.max() > 0.05
    for exact, bound in zip(worst, bounds, strict=True):
        assert bound.lower <= exact * (1 + 1e-9) + 1e-15
        assert exact <= bound.upper * (1 + 1e-9) + 1e-15
    # Nor is it far from it: tiny groups are the least favourable to a bound for all datasets.
    assert bounds[0].upper <= 1.35 * worst[0]
    assert bounds[0].lower >= 0.6 * worst[0]


def test_sampling_each_tag_anew_would_promise_too_much() -> None:
    """Whoever is in a cohort of one is in it under all ten tags."""
    accountant, apart = ShuffleAccountant(), ShuffleAccountant()
    accountant.step(
        replace(
            tagged([(1.5, 1)], population=20, cohort=1),
            tags=(Tag(local_epsilon=1.5, count=10, places=False),),
        )
    )
    apart.step(tagged([(1.5, 1)], population=20, cohort=1), num_steps=10)
    kept = 1 / (1 + math.exp(-1.5))
    held = np.array([math.comb(10, k) * kept**k * (1 - kept) ** (10 - k) for k in range(11)])
    exact = np.maximum(held / 20 + held[::-1] * 19 / 20 - math.e * held[::-1], 0).sum()
    assert apart.delta(1.0).upper < exact / 2
    assert exact <= accountant.delta(1.0).upper <= 1.001 * exact


def test_sampling_composition_and_the_server() -> None:
    tags = (Tag(local_epsilon=0.5, count=50, places=False),)
    alone = TaggedRound(tags=tags, population=500, cohort=500, opposite=True)
    sampled = replace(alone, population=10_000, sampling=Sampling.WITHOUT_REPLACEMENT)

    def spent(tagged_round: TaggedRound, steps: int) -> tuple[float, float]:
        accountant = accountant_of((tagged_round, steps))
        found = accountant.epsilon(1e-6)
        return found.lower, found.upper

    assert spent(sampled, 1)[1] < 0.4 * spent(alone, 1)[1]
    low, high = spent(sampled, 400)
    assert 0.5 * high < low < high < spent(alone, 400)[0]
    seen = replace(sampled, adversary=Adversary.SERVER)
    assert spent(seen, 1) == spent(alone, 1)
    robust = replace(alone, honest=250)
    assert spent(robust, 1)[1] == pytest.approx(1.45 * spent(alone, 1)[1], rel=0.1)


def test_what_a_client_reveals_to_all_is_the_cap() -> None:
    tiny = tagged([(0.01, 1)] * 2, population=2, cohort=2)
    accountant = accountant_of(tiny)
    assert tiny.local_epsilon == pytest.approx(0.02)
    assert accountant.epsilon(1e-12).upper <= 0.02


@pytest.mark.parametrize("method", ["pld", "rdp"])
@first_fast(("local_epsilon", "count"), [(100.0, 8), (249.0, 3), (400.0, 3), (10.0, 40)], fast=3)
def test_loud_tags_protect_nobody(method: str, local_epsilon: float, count: int) -> None:
    # Together their Q masses leave the range of floats. One message alone tells the record with probability
    # 1 − 2/(e^ε0 + 1), so δ(1) is close to 1.
    tag = Tag(local_epsilon=local_epsilon, count=count, places=False)
    accountant = ShuffleAccountant(method=method)  # type: ignore[arg-type]
    accountant.step(TaggedRound(tags=(tag,), population=2, cohort=2, opposite=True))
    assert accountant.delta(1.0).upper > 0.99
    assert 0.9 * local_epsilon * count < accountant.epsilon(1e-6, lower=False).upper <= local_epsilon * count
    assert accountant.epsilon(1e-6).upper == accountant.epsilon(1e-6, lower=False).upper


@pytest.mark.slow
def test_tags_too_many_or_too_quiet_for_a_law_cost_their_local_guarantees() -> None:
    for tag, most in (
        (Tag(local_epsilon=1.0, count=10**9, places=False), 1e9),
        (Tag(local_epsilon=1e-9, count=1, places=False), 1e-9),
    ):
        accountant = accountant_of(TaggedRound(tags=(tag,), population=1, cohort=1, opposite=True))
        assert 0 <= accountant.epsilon(1e-12, lower=False).upper <= most
        assert accountant.epsilon(1e-12).upper == accountant.epsilon(1e-12, lower=False).upper


@pytest.mark.parametrize("places", [False, True])
def test_a_single_tag_on_a_sample_costs_no_more_than_the_shuffle_of_its_messages(places: bool) -> None:
    """Composing first and sampling after it is up to five times as much."""
    tag = Tag(local_epsilon=2.0, count=1, places=places)
    tagged = TaggedRound(
        population=10_000, cohort=500, sampling=Sampling.WITHOUT_REPLACEMENT, tags=(tag,), opposite=True
    )
    found = []
    for each in (tagged, tag.sampled(population=10_000, cohort=500)):
        accountant = accountant_of(each)
        found.append(accountant.epsilon(1e-6))
    assert found[0].upper <= found[1].upper * (1 + 1e-6)
    assert found[0].upper <= 1.05 * found[0].lower


def test_a_secret_coin_is_one_more_sample_of_the_clients() -> None:
    """Half of 100 of 1,000 know what it is about as do 100 of 2,000: sampled once, after composition."""
    tags = (Tag(local_epsilon=0.5, count=2, places=False),)
    sampled = TaggedRound(tags=tags, population=2_000, cohort=100, sampling=Sampling.WITHOUT_REPLACEMENT)
    coin = replace(sampled, population=1_000, participation=0.5)
    found, wanted = coin.upper_losses(COARSE), sampled.upper_losses(COARSE)
    np.testing.assert_allclose(found.p, wanted.p, rtol=1e-12)
    np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-12)


def test_two_records_are_told_apart_by_the_tags_that_tell_them() -> None:
    blind, telling = (Tag(local_epsilon=0.5, count=2, places=False, lean=lean) for lean in (0.0, 1.0))
    round_of = {tags: TaggedRound(tags=tags, population=9, cohort=9, opposite=True)
                for tags in ((blind,), (telling,), (blind, telling))}  # fmt: skip
    assert round_of[(blind,)].lower_families == ()
    (family,) = round_of[(blind, telling)].lower_families
    both, one = (round_of[tags].lower_losses(family, COARSE) for tags in ((blind, telling), (telling,)))
    np.testing.assert_array_equal(both.p, one.p)


@pytest.mark.parametrize("sampling_rate", [0.3, 1.0])
@pytest.mark.parametrize("exchanged", [False, True])
def test_an_instance_is_that_of_its_two_laws(sampling_rate: float, exchanged: bool) -> None:
    """P is x with the probability of taking part, and else x'; Q is x'. Both ways, never above, and close."""
    x, other = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.05, 0.15, 0.3, 0.5])
    law = finite_losses(None, x, other, missing=0.0, kind="lower", resolution=FINE, symmetric=True)
    made = sampled_instance([law], [2], sampling_rate=sampling_rate, resolution=FINE, exchanged=exchanged)
    p, q = np.outer(x, x).ravel(), np.outer(other, other).ravel()
    p = sampling_rate * p + (1 - sampling_rate) * q
    if exchanged:
        p, q = q, p
    assert not made.symmetric
    for epsilon in (0.0, 0.2, 0.7, 1.5):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
        assert 0.98 * exact - 1e-3 <= LossComposition([made], [1]).delta(epsilon) <= exact + 1e-12
