"""Exact laws of small shuffled rounds, straight from their definition, and bounds, straight from theirs."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import optimize, stats

from shuffle_plugins.accounting import Atoms
from shuffle_plugins.accounting.pairs.others import MixPair

Histogram = tuple[int, ...]
Law = dict[Histogram, float]


def shuffled_law(
    channel: np.ndarray, dataset: Sequence[int], *, cohort: int | None = None, rate: float | None = None
) -> Law:
    """Law of the histogram of shuffled reports, for a channel (inputs, outputs).

    ``cohort`` samples that many clients without replacement, ``rate`` samples each on its own.
    With neither, everybody takes part.
    """
    *others, record = dataset
    return shuffled_laws(channel, others, [record], cohort=cohort, rate=rate)[0]


def shuffled_laws(
    channel: np.ndarray,
    others: Sequence[int],
    records: Iterable[int],
    *,
    cohort: int | None = None,
    rate: float | None = None,
) -> list[Law]:
    """The same for each record of one client beside the others."""
    if rate is None and cohort is None:
        cohort = len(others) + 1
    laws: Law = {(0,) * channel.shape[1]: 1.0}
    for record in others:
        laws = _joined(laws, channel[record], cohort=cohort, rate=rate)
    found = [_joined(laws, channel[record], cohort=cohort, rate=rate) for record in records]
    if cohort is None:
        return found
    subsets = math.comb(len(others) + 1, cohort)
    return [{h: mass / subsets for h, mass in law.items() if sum(h) == cohort} for law in found]


def _joined(laws: Law, report: np.ndarray, *, cohort: int | None, rate: float | None) -> Law:
    """With one more client, whose report has this law."""
    grown: dict[Histogram, float] = defaultdict(float)
    stays, joins = (1.0, 1.0) if rate is None else (1.0 - rate, rate)
    likely = [(output, joins * float(mass)) for output, mass in enumerate(report) if mass > 0]
    for histogram, mass in laws.items():
        grown[histogram] += mass * stays
        if cohort is not None and sum(histogram) == cohort:
            continue
        for output, share in likely:
            grown[(*histogram[:output], histogram[output] + 1, *histogram[output + 1 :])] += mass * share
    return dict(grown)


def hockey_stick(first: Law, second: Law, epsilon: float) -> float:
    """Σ (P − e^ε Q)₊."""
    factor = math.exp(epsilon)
    return sum(max(0.0, first.get(h, 0.0) - factor * second.get(h, 0.0)) for h in {*first, *second})


def mixed_bound(pair: MixPair, factors: np.ndarray) -> np.ndarray:
    """The bound of section 3c of the proofs at each E of ``factors``, which rise: all shares and mixes."""
    draws = min(pair.slots, pair.population - 1) - pair.stands_in
    buckets, left_out = pair.buckets()
    growth = factors - 1
    visible = pair.slots / pair.population
    total = np.full(len(factors), left_out)

    def seen_of(atoms: Atoms, kept: float) -> tuple[np.ndarray, np.ndarray]:
        """G less its mean, for (R_x, R_x') over that share of R_z, or over nothing; and the masses."""
        u, v, mass = np.array(atoms).T
        gain = ((1 + u)[:, None] - factors * (1 + v)[:, None]) / kept
        return np.vstack([gain, np.zeros(len(factors))]) + growth, np.append(kept * mass, 1 - kept)

    for bucket in buckets:
        types = [seen_of(atoms, pair.kept(bucket)) for atoms in pair.others.types]
        gains, own = seen_of(pair.others.shared, 1.0)
        worst = np.zeros(len(factors))
        for mix in itertools.product(range(draws + 1), repeat=3):
            if sum(mix) != draws:
                continue
            value = (
                np.concatenate([pair.own_weight(bucket) * gains, np.zeros((1, len(growth)))])
                - pair.population * growth
            )
            mass = np.append(visible * own, 1 - visible)
            if pair.stands_in:
                rest, chances = seen_of(pair.others.shared, pair.kept(bucket) * pair.others.common)
                value = np.vstack([value[:-1], pair.weight * rest - pair.population * growth])
                mass = np.append(visible * own, (1 - visible) * chances)
            for (values, masses), count in zip(types, mix, strict=True):
                lazy = pair.weight * values
                for _ in range(count):
                    value = (value[:, None] + lazy[None]).reshape(-1, len(growth))
                    mass = np.outer(mass, masses).ravel()
            worst = np.maximum(worst, mass @ np.maximum(value, 0.0))
        # Given the share, what the mix tells is (A − E·B)₊ of A, B ≥ 0, so it falls in E, and its bounds may.
        total += bucket.mass * np.minimum.accumulate(worst) / pair.population
    return total


def generic_delta(*, local_epsilon: float, population: int, cohort: int, epsilon: float) -> float:
    """δ of the generic k-of-n pair from binomial tails: given m active slots, the heads count is linear."""
    e, bound = math.exp(local_epsilon), math.exp(epsilon)
    gamma = cohort / population
    counts = np.arange(cohort + 1)
    weights = stats.binom.pmf(counts, cohort, 2 / (e + 1))
    counts, weights = counts[weights > 1e-30], weights[weights > 1e-30]
    constant = (1 - gamma) * (1 - bound) + gamma / cohort * counts * (1 - e * bound)
    slope = gamma / cohort * (e - 1) * (1 + bound)
    least = np.floor(-constant / slope) + 1
    above = stats.binom.sf(least - 1, counts, 0.5)
    mean_above = counts / 2 * stats.binom.sf(least - 2, np.maximum(counts - 1, 0), 0.5)
    return float(np.sum(weights * (constant * above + slope * mean_above)))


def neighbours(records: int, clients: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs of datasets that differ in the first client."""
    for others in itertools.combinations_with_replacement(range(records), clients - 1):
        for one, two in itertools.permutations(range(records), 2):
            yield (one, *others), (two, *others)


def extreme_channel(
    rng: np.random.Generator, *, local_epsilon: float, records: int, outputs: int
) -> np.ndarray:
    """A random ε0-LDP channel each of whose outputs has only likelihoods c and c·e^ε0."""
    while True:
        shape = np.where(rng.random((records, outputs)) < 0.5, math.exp(local_epsilon), 1.0)
        solution = optimize.linprog(
            rng.random(outputs), A_eq=shape, b_eq=np.ones(records), bounds=[(0, None)] * outputs
        )
        if solution.success:
            channel = shape * solution.x
            return channel / channel.sum(axis=1, keepdims=True)


def k_ary_response(local_epsilon: float, categories: int) -> np.ndarray:
    """K-ary randomized response as a channel."""
    e = math.exp(local_epsilon)
    return (np.ones((categories, categories)) + (e - 1) * np.eye(categories)) / (e + categories - 1)


def sampled_records_law(
    channel: np.ndarray,
    dataset: Sequence[Sequence[int]],
    *,
    samples: int,
    cohort: int | None = None,
    rate: float | None = None,
) -> Law:
    """As :func:`shuffled_law`, of clients with several records, who report on so many, drawn uniformly."""
    outputs = channel.shape[1]
    places = [tuple(int(i == j) for i in range(outputs)) for j in range(outputs)]
    nothing: Law = {(0,) * outputs: 1.0}
    bundles = []
    for records in dataset:
        drawn = list(itertools.combinations(records, samples))
        bundle: Law = defaultdict(float)
        for chosen in drawn:
            law = nothing
            for record in chosen:
                law = _added(law, dict(zip(places, channel[record].tolist(), strict=True)))
            for histogram, mass in law.items():
                bundle[histogram] += mass / len(drawn)
        bundles.append(bundle)
    sizes = range(len(dataset) + 1) if cohort is None else [cohort]
    total: Law = defaultdict(float)
    for size in sizes:
        cohorts = list(itertools.combinations(range(len(dataset)), size))
        weight = 1 / len(cohorts) if rate is None else rate**size * (1 - rate) ** (len(dataset) - size)
        for members in cohorts:
            law = nothing
            for member in members:
                law = _added(law, bundles[member])
            for histogram, mass in law.items():
                total[histogram] += mass * weight
    return dict(total)


def _added(first: Law, second: Law) -> Law:
    total: Law = defaultdict(float)
    for (one, p), (two, q) in itertools.product(first.items(), second.items()):
        total[tuple(a + b for a, b in zip(one, two, strict=True))] += p * q
    return total
