"""Every published bound on T rounds of the subsampled shuffle, behind one signature, and what composes them.

The question is always the package's own: k of n clients without replacement (k = n: all of them), one ε0-LDP
randomizer per round, shuffled, T adaptively composed rounds, replace-one neighbours, one δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

import numpy as np

from shuffle_plugins.accounting.composition.renyi import epsilon_from_rdp
from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.accounting.published import divergences, shuffles
from shuffle_plugins.accounting.published.shuffles import ClonePair, binary_pair
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks

_LARGEST_ORDER = 2**15  # at which a curve is amplified: memory and time grow with it


# -- (ε, δ) points -------------------------------------------------------------------------------------------


def amplify_by_sampling(*, epsilon: float, delta: float, sampling_rate: float) -> tuple[float, float]:
    """(ε', δ') of an (ε, δ)-DP mechanism run on a uniform k = γn of n records, for replace-one neighbours.

    ε' = log(1 + γ(e^ε − 1)), δ' = γδ: Ullman 2017; Balle, Barthe, Gaboardi 2018, Theorem 9. Tight for a
    black-box mechanism, loose for one that is known.
    """
    checks.number("epsilon", epsilon, at_least=0)
    checks.fraction("delta", delta)
    checks.number("sampling_rate", sampling_rate, above=0, at_most=1)
    # log(1 + γ(e^ε − 1)) = ε + log(γ + (1 − γ)e^−ε), which cannot overflow; small ε takes the other form
    if epsilon < 1:
        amplified = math.log1p(sampling_rate * math.expm1(epsilon))
    else:
        amplified = epsilon + math.log(sampling_rate + (1 - sampling_rate) * math.exp(-epsilon))
    return amplified, sampling_rate * delta


def strong_composition(*, epsilon: float, num_steps: int, delta_slack: float) -> float:
    r"""ε of T adaptively composed (ε, δ)-DP steps, at total δ of 1 − (1 − δ)^T (1 − δ̃) ≤ T·δ + δ̃.

    Kairouz, Oh, Viswanath 2015, Theorem 3.4: the smallest of

        Tε,   Tε·(e^ε − 1)/(e^ε + 1) + ε·√(2T·log(e + √T·ε/δ̃)),   Tε·(e^ε − 1)/(e^ε + 1) + ε·√(2T·log(1/δ̃)).

    with δ̃, ``delta_slack``, in (0, 1).
    """
    checks.number("epsilon", epsilon, at_least=0)
    checks.whole("num_steps", num_steps, at_least=0)
    checks.delta(delta_slack, name="delta_slack")
    mean = num_steps * epsilon * math.tanh(epsilon / 2)
    logarithm = min(
        math.log(math.e + math.sqrt(num_steps) * epsilon / delta_slack), math.log(1 / delta_slack)
    )
    return min(num_steps * epsilon, mean + epsilon * math.sqrt(2 * num_steps) * math.sqrt(logarithm))


def compose_points(
    *,
    shuffled: Callable[[float], float],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
) -> float:
    """ε of T rounds from one (ε, δ) point of the shuffle, k-of-n amplification and strong composition.

    As most papers compose their bounds. Half of δ pays for strong composition and the rounds share the
    other half; or the rounds' ε add up, and they share all of δ; or the rounds count without their shuffle,
    as ε0 amplified by sampling, and composition gets all of δ. The smallest is returned, T·ε0 at most.
    ``shuffled`` is ε of one shuffle of k reports as a function of its δ in (0, 1].
    """
    _check_rounds(local_epsilon, population, cohort, num_steps, delta)
    sampling_rate = cohort / population

    def sampled(round_delta: float) -> float:
        shuffle_delta = min(1.0, round_delta / sampling_rate)
        point, _ = amplify_by_sampling(
            epsilon=min(shuffled(shuffle_delta), local_epsilon),
            delta=shuffle_delta,
            sampling_rate=sampling_rate,
        )
        return point

    unshuffled, _ = amplify_by_sampling(epsilon=local_epsilon, delta=0.0, sampling_rate=sampling_rate)
    found = [
        num_steps * local_epsilon,  # the next is no larger, but for roundoff where k = n
        strong_composition(epsilon=unshuffled, num_steps=num_steps, delta_slack=delta),
        num_steps * sampled(delta / num_steps),
    ]
    if num_steps > 1:
        half = sampled(delta / (2 * num_steps))
        found.append(strong_composition(epsilon=half, num_steps=num_steps, delta_slack=delta / 2))
    return min(found)


# -- Rényi curves --------------------------------------------------------------------------------------------


def compose_renyi(
    *,
    curve: Callable[[Floats], Floats],
    local_epsilon: float,
    population: int,
    cohort: int,
    num_steps: int,
    delta: float,
    sampling: Sampling | None = Sampling.WITHOUT_REPLACEMENT,
) -> float:
    """ε of T rounds from the shuffle's Rényi curve, its amplification by sampling and their sum.

    Sampling never raises the divergence, so at each order the smaller of the curve and the sampled one is
    taken. ε may then have several local minima in the order: orders are scanned all the way; elsewhere twice
    past the best one found. Between orders (α − 1)·ε(α) is bounded by its chord, because it is convex (van
    Erven, Harremoës 2014).

    Args:
        curve: upper bounds on the divergence of one shuffle of k reports, as a function of whole orders from
            2 on; or of real orders above 1 where k = n. What it gives is kept for the same object.
        sampling: which theorem amplifies, k of n without replacement or Poisson's, which is not for
            replace-one neighbours. None if the curve, at whole orders, is that of the sampled round.
    """
    _check_rounds(local_epsilon, population, cohort, num_steps, delta)
    amplified = sampling is not None and cohort < population
    real = sampling is not None and not amplified

    def best(orders: Floats) -> tuple[float, float]:
        if amplified:
            rdp = _amplified(orders, curve, local_epsilon, cohort / population, sampling)
        else:
            rdp = np.minimum(curve(orders), local_epsilon)
        return epsilon_from_rdp(orders=orders, rdp=num_steps * rdp, delta=delta)

    largest, most = (_LARGEST_ORDER, _LARGEST_ORDER) if amplified else (64, 4 * _LARGEST_ORDER)
    while True:
        orders = 1.0 + np.geomspace(1e-2 if real else 1.0, largest - 1, 96)
        orders = orders if real else np.unique(orders.round())
        value, order = best(orders)
        if 2 * order <= largest or largest >= most:
            break
        largest *= 4
    place = int(np.argmin(np.abs(orders - order)))
    near = np.linspace(orders[max(place - 1, 0)], orders[min(place + 1, orders.size - 1)], 96)
    whole = np.unique(np.maximum(near.round(), 2.0))
    refined, _ = best(np.concatenate([near, whole]) if real else whole)
    return min(value, refined, num_steps * local_epsilon)


def _amplified(
    orders: Floats,
    curve: Callable[[Floats], Floats],
    local_epsilon: float,
    sampling_rate: float,
    sampling: Sampling | None,
) -> Floats:
    """The sampling theorem on the curve, or the curve itself where that is smaller."""
    every = _at_every_order(curve, local_epsilon)
    if sampling is Sampling.POISSON:
        found = divergences.poisson(orders=orders, rdp=every, sampling_rate=sampling_rate)
    else:
        found = divergences.without_replacement(
            orders=orders, rdp=every, sampling_rate=sampling_rate, pure_epsilon=local_epsilon
        )
    return np.minimum(found, every[orders.astype(np.int64) - 2])


@lru_cache(maxsize=32)
def _at_every_order(curve: Callable[[Floats], Floats], local_epsilon: float) -> Floats:
    """The curve at 2, 3, …: evaluated at some orders, by chords of (α − 1)·ε(α) between."""
    every = np.arange(2, _LARGEST_ORDER + 1, dtype=np.float64)
    small = every[:24]  # where a curve bends most; above, ratios of 1.06 cost less than a part in 10³
    points = np.unique(np.append(small, np.geomspace(small[-1], _LARGEST_ORDER, 126).round()))
    values = np.minimum(curve(points), local_epsilon)
    chords: Floats = np.interp(every, points, (points - 1) * values) / (every - 1) * (1 + 1e-12)
    chords.setflags(write=False)
    return chords


def _check_rounds(local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float) -> None:
    checks.number("local_epsilon", local_epsilon, above=0)
    checks.whole("population", population)
    checks.whole("cohort", cohort, at_most=population)
    checks.whole("num_steps", num_steps)
    checks.delta(delta)


# -- the catalogue -------------------------------------------------------------------------------------------


class Composition(StrEnum):
    """What a paper bounds of a round, and hence how rounds are sampled and composed."""

    POINTS = "points"
    """ε of one shuffle at any δ; amplified by sampling (Ullman), composed strongly."""

    RENYI = "Rényi curves"
    """Of one shuffle; amplified by sampling, added up, converted."""

    SAMPLED_RENYI = "Rényi curves of sampled rounds"
    """Sampling included; added up, converted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedBound:
    """A bound from the literature on the package's question.

    Attributes:
        source: paper and theorem, and what composes it.
        bound: the paper's bound, called with ``local_epsilon`` and ``cohort``, and: for ``POINTS`` with
            ``delta``, returns ε; for ``RENYI`` with ``orders``, and for ``SAMPLED_RENYI`` with ``population``
            too, returns divergences. ValueError where its theorem says nothing.
        valid: whether it is an upper bound for the question asked.
        adaptive: whether a client's input and randomizer may depend on reports sent before (epochs).
        note: what proof makes it valid here, or why it is not valid; also what the theorem is limited to.
    """

    name: str
    source: str
    bound: Callable[..., Any]
    compose: Composition
    sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    valid: bool = True
    adaptive: bool = False
    note: str = ""

    def epsilon(
        self, *, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float
    ) -> float:
        """ε of T rounds for replace-one neighbours, never above T·ε0."""
        rounds: dict[str, Any] = {
            "local_epsilon": local_epsilon,
            "population": population,
            "cohort": cohort,
            "num_steps": num_steps,
            "delta": delta,
        }
        if self.compose is Composition.POINTS:
            return compose_points(
                shuffled=lambda share: self.bound(local_epsilon=local_epsilon, cohort=cohort, delta=share),
                **rounds,
            )
        if self.compose is Composition.RENYI:
            curve = _curve(self.bound, local_epsilon, cohort)
            return compose_renyi(curve=curve, sampling=self.sampling, **rounds)
        of_round = partial(self.bound, local_epsilon=local_epsilon, population=population, cohort=cohort)
        return compose_renyi(curve=lambda orders: of_round(orders=orders), sampling=None, **rounds)


def published_bound(name: str) -> PublishedBound:
    """The bound of this name."""
    known = {bound.name: bound for bound in PUBLISHED_BOUNDS}
    if name not in known:
        raise ValueError(f"no published bound is called {name!r}; there are {list(known)}")
    return known[name]


@lru_cache(maxsize=256)
def _curve(bound: Callable[..., Floats], local_epsilon: float, cohort: int) -> Callable[[Floats], Floats]:
    """One and the same object for one and the same shuffle, so that its values are computed once."""
    return lambda orders: bound(orders=orders, local_epsilon=local_epsilon, cohort=cohort)


def _pair_epsilon(
    pair: Callable[..., ClonePair], *, local_epsilon: float, cohort: int, delta: float
) -> float:
    return pair(local_epsilon=local_epsilon, cohort=cohort).upper_epsilon(delta)


def _pair_rdp(pair: Callable[..., ClonePair], *, orders: Floats, local_epsilon: float, cohort: int) -> Floats:
    return pair(local_epsilon=local_epsilon, cohort=cohort).rdp(orders)


_ERRATUM = (
    "the paper's erratum withdraws it for adaptive randomizers; here Claims 2 and 6 of "
    "docs/proofs/accounting.md carry it"
)
_DISCRETE = "stated for randomizers with discrete outputs"


def _points(name: str, source: str, bound: Callable[..., float], **about: Any) -> PublishedBound:
    source = f"{source}, sampling (Ullman), strong composition (KOV 2015)"
    return PublishedBound(name=name, source=source, bound=bound, compose=Composition.POINTS, **about)


def _renyi(name: str, source: str, bound: Callable[..., Floats], **about: Any) -> PublishedBound:
    source = f"{source}, sampling by {about.pop('by', 'Wang et al. 2019')}, RDP"
    return PublishedBound(name=name, source=source, bound=bound, compose=Composition.RENYI, **about)


_CCS = "Girgis et al. 2021 (CCS), Thm"
_CLONES, _BINARY = "Feldman et al. 2021", "Feldman et al. 2022, binary pair"

PUBLISHED_BOUNDS: tuple[PublishedBound, ...] = (
    PublishedBound(
        name="subsampled shuffle RDP, published",
        source="Girgis et al. 2021, Thm 1",
        bound=divergences.subsampled_rdp_bound,
        compose=Composition.SAMPLED_RENYI,
        note=_DISCRETE,
    ),
    _renyi("shuffle RDP, first bound", f"{_CCS} 5.3.1", divergences.first_shuffle_rdp, note=_DISCRETE),
    _renyi("shuffle RDP, second bound", f"{_CCS} 5.3.2", divergences.second_shuffle_rdp, note=_DISCRETE),
    _renyi(
        "shuffle RDP, Poisson sampling",
        f"{_CCS} 5.3.1",
        divergences.first_shuffle_rdp,
        by="Zhu and Wang 2019",
        sampling=Sampling.POISSON,
        valid=False,
        note="its sampling theorem is for Poisson cohorts and add/remove neighbours, not for replace-one",
    ),
    _points("clones, closed form", f"{_CLONES}, Thm 3.1", shuffles.clone_bound, adaptive=True),
    _points(
        "clones, numerical",
        f"{_CLONES}, Thm 3.2 and App. F",
        partial(_pair_epsilon, shuffles.clone_pair),
        adaptive=True,
    ),
    _renyi("clones, RDP", f"{_CLONES}, Sec. 6.1", partial(_pair_rdp, shuffles.clone_pair), adaptive=True),
    _points(
        "stronger clones, closed form",
        "Feldman et al. 2022, Thm 3.2",
        shuffles.stronger_clone_bound,
        adaptive=True,
        note=f"{_ERRATUM}: this closed form is never below the numerical bound of the binary pair",
    ),
    _points(
        "stronger clones, numerical",
        _BINARY,
        partial(_pair_epsilon, binary_pair),
        adaptive=True,
        note=_ERRATUM,
    ),
    _renyi("stronger clones, RDP", _BINARY, partial(_pair_rdp, binary_pair), adaptive=True, note=_ERRATUM),
    *(
        _points(
            f"privacy blanket, {name}",
            "Balle et al. 2019, generic blanket",
            partial(shuffles.blanket_bound, inequality=inequality),
        )
        for name, inequality in (("Bennett", shuffles.bennett), ("Hoeffding", shuffles.hoeffding))
    ),
    _points(
        "random check-ins, shuffling",
        "Balle et al. 2020, Thm 5.1",
        shuffles.check_in_shuffle_bound,
        adaptive=True,
    ),
    _points(
        "amplification by shuffling",
        "Erlingsson et al. 2019, Thm 7",
        shuffles.erlingsson_bound,
        adaptive=True,
    ),
    _renyi(
        "amplification by shuffling, RDP",
        "Erlingsson et al. 2019, Remark 1",
        divergences.erlingsson_rdp,
        adaptive=True,
    ),
    _points(
        "binary response, closed form",
        "Cheu et al. 2019, Thm 4.11 as cited",
        shuffles.binary_response_bound,
        valid=False,
        note="for binary randomized response alone, not for every ε0-LDP randomizer; its paper was not read",
    ),
)
