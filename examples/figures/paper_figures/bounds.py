"""The curves: published bounds by name, this package's own, and what papers draw that bounds nothing here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from paper_figures.data import Curve, Role
from shuffle_plugins.accounting import (
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    epsilon_from_rdp,
)
from shuffle_plugins.accounting.published import (
    compose_points,
    compose_renyi,
    divergences,
    published_bound,
    shuffles,
)

Vector = NDArray[np.float64]

OURS = "certified, this package"
OURS_BELOW = "attained by a mechanism, this package"
_OWN_SOURCE = "blanket pair, docs/proofs/accounting.md"
_INSTANCE_SOURCE = "K-ary randomized response, docs/proofs/accounting.md"
_PAPER_SPLIT = 0.5
_LAST_EVERY_ORDER = 2048
_LAST_ORDER = 2**21


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """ε of T rounds at δ: k of n clients, ε0 each."""

    local_epsilon: float
    population: int
    cohort: int
    num_steps: int
    delta: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A curve's name, role and source, and the number it gives; ValueError where it says nothing."""

    name: str
    role: Role
    source: str
    epsilon: Callable[[Question], float]


def published(name: str, *, called: str = "") -> Bound:
    """A bound of the catalogue."""
    entry = published_bound(name)

    def epsilon(question: Question) -> float:
        return entry.epsilon(
            local_epsilon=question.local_epsilon,
            population=question.population,
            cohort=question.cohort,
            num_steps=question.num_steps,
            delta=question.delta,
        )

    role = Role.UPPER if entry.valid else Role.NEITHER
    return Bound(name=called or name, role=role, source=entry.source, epsilon=epsilon)


def certified(question: Question, *, sampling: Sampling | None = None) -> tuple[float, float]:
    """(lower, upper) of the accountant; by default k of n without replacement, or everybody."""
    everybody = question.cohort == question.population
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=question.local_epsilon,
            population=question.population,
            cohort=question.cohort,
            sampling=sampling or (Sampling.FULL if everybody else Sampling.WITHOUT_REPLACEMENT),
            channel_fixed=True,
        ),
        num_steps=question.num_steps,
    )
    interval = accountant.epsilon(question.delta)
    return interval.lower, interval.upper


def curves(
    *, questions: Sequence[Question], bounds: Sequence[Bound], sampling: Sampling | None = None
) -> tuple[Curve, ...]:
    """The bounds' curves over the questions, this package's interval last."""
    found = [
        Curve(
            name=bound.name,
            role=bound.role,
            source=bound.source,
            values=tuple(_or_none(bound.epsilon, question) for question in questions),
        )
        for bound in bounds
    ]
    intervals = [certified(question, sampling=sampling) for question in questions]
    return (*found, *own_curves(lower=[low for low, _ in intervals], upper=[up for _, up in intervals]))


def own_curves(*, lower: Sequence[float], upper: Sequence[float], series: str = "") -> tuple[Curve, Curve]:
    """This package's two curves, from values already computed."""
    return (
        Curve(
            name=OURS_BELOW, role=Role.ATTAINED, source=_INSTANCE_SOURCE, values=tuple(lower), series=series
        ),
        Curve(name=OURS, role=Role.CERTIFIED, source=_OWN_SOURCE, values=tuple(upper), series=series),
    )


def over_rounds(question: Question, num_steps: Sequence[int]) -> list[Question]:
    """The question at several T."""
    return [replace(question, num_steps=steps) for steps in num_steps]


def over_populations(question: Question, populations: Sequence[int]) -> list[Question]:
    """The question at several n, the cohort fixed."""
    return [replace(question, population=population) for population in populations]


SUBSAMPLED_RDP = published("subsampled shuffle RDP, published", called="subsampled shuffle RDP, Thm 1")
SHUFFLE_RDP = published("shuffle RDP, first bound", called="shuffle RDP, best c")
SHUFFLE_RDP_2 = published("shuffle RDP, second bound")
SHUFFLE_RDP_POISSON = published(
    "shuffle RDP, Poisson sampling", called="shuffle RDP, Poisson sampling (not for replace-one)"
)
CLONES = published("clones, closed form")
CLONES_NUMERICAL = published("clones, numerical")
CLONES_RDP = published("clones, RDP")
BLANKET = published("privacy blanket, Bennett")
CHECK_INS = published("random check-ins, shuffling")
EFM19_RDP = published("amplification by shuffling, RDP")


def _closed_form_or_nothing(question: Question) -> float:
    def shuffled(delta: float) -> float:
        try:
            return shuffles.clone_bound(
                local_epsilon=question.local_epsilon, cohort=question.cohort, delta=delta
            )
        except ValueError:
            return question.local_epsilon

    return compose_points(
        shuffled=shuffled,
        local_epsilon=question.local_epsilon,
        population=question.population,
        cohort=question.cohort,
        num_steps=question.num_steps,
        delta=question.delta,
    )


CLONES_OR_NOTHING = Bound(
    name="clones, closed form (ε0 where silent)",
    role=Role.UPPER,
    source="Feldman et al. 2021, Thm 3.1, or no shuffling; sampling (Ullman), strong composition (KOV)",
    epsilon=_closed_form_or_nothing,
)


def _simple_composition(question: Question, *, shuffle_delta: Callable[[float, float], float]) -> float:
    """Numerical clones, sampled, by the thesis's Lemma 2.1.2 (Dwork, Rothblum, Vadhan) with half of δ."""
    steps, half = question.num_steps, question.delta / 2
    rate = question.cohort / question.population
    pair = shuffles.clone_pair(local_epsilon=question.local_epsilon, cohort=question.cohort)
    shuffled = min(pair.upper_epsilon(shuffle_delta(half / steps, rate)), question.local_epsilon)
    epsilon = math.log1p(rate * math.expm1(shuffled))
    composed = math.sqrt(2 * steps * math.log(1 / half)) * epsilon + steps * epsilon * math.expm1(epsilon)
    return min(composed, steps * question.local_epsilon)


CLONES_SIMPLE = Bound(
    name="clones, numerical, simple strong composition",
    role=Role.UPPER,
    source="Feldman et al. 2021, App. F; sampling (Ullman); thesis, Lemma 2.1.2",
    epsilon=partial(_simple_composition, shuffle_delta=lambda delta, rate: delta / rate),
)
CLONES_SPLIT = Bound(
    name="the same, δ of a shuffle γδ/2T instead of δ/2γT",
    role=Role.UPPER,
    source="Feldman et al. 2021, App. F; sampling (Ullman) with a needlessly small δ; thesis, Lemma 2.1.2",
    epsilon=partial(_simple_composition, shuffle_delta=lambda delta, rate: delta * rate),
)


def _paper_split(question: Question) -> float:
    def curve(orders: Vector) -> Vector:
        return divergences.first_shuffle_rdp(
            orders=orders,
            local_epsilon=question.local_epsilon,
            cohort=question.cohort,
            split=_PAPER_SPLIT,
        )

    return compose_renyi(
        curve=curve,
        local_epsilon=question.local_epsilon,
        population=question.population,
        cohort=question.cohort,
        num_steps=question.num_steps,
        delta=question.delta,
    )


SHUFFLE_RDP_AS_PRINTED = Bound(
    name="shuffle RDP, c = 1/2",
    role=Role.UPPER,
    source="Girgis et al. 2021 (CCS), Thm 5.3.1 as printed, sampling by Wang et al. 2019, RDP",
    epsilon=_paper_split,
)


@lru_cache(maxsize=32)
def _every_order(local_epsilon: float, cohort: int) -> Vector:
    orders = np.arange(2, _LAST_EVERY_ORDER + 1, dtype=np.float64)
    curve = divergences.first_shuffle_rdp(
        orders=orders, local_epsilon=local_epsilon, cohort=cohort, split=_PAPER_SPLIT
    )
    return np.minimum(curve, local_epsilon)


def _without_sharper_branch(question: Question) -> float:
    """Wang, Balle, Kasiviswanathan's Theorem 9 with 2·e^ε(2) alone in its second-order term."""
    curve = _every_order(question.local_epsilon, question.cohort)
    every = np.arange(2, _LAST_EVERY_ORDER + 1, dtype=np.float64)
    log_chi = math.log(2) + (every - 1) * curve
    orders = np.unique(np.geomspace(2, _LAST_EVERY_ORDER, 160).round())
    rdp = divergences.subsample_ternary_chi(
        orders=orders, log_chi=log_chi, sampling_rate=question.cohort / question.population
    )
    rdp = question.num_steps * np.minimum(rdp, curve[orders.astype(np.int64) - 2])
    value, _ = epsilon_from_rdp(orders=orders, rdp=rdp, delta=question.delta)
    return min(value, question.num_steps * question.local_epsilon)


SHUFFLE_RDP_BLUNT = Bound(
    name="shuffle RDP, c = 1/2, sharper sampling branch left out",
    role=Role.UPPER,
    source="Girgis et al. 2021 (CCS), Thm 5.3.1 as printed, Wang et al. 2019 without 4(e^ε(2) − 1)",
    epsilon=_without_sharper_branch,
)


def _converted_lower(question: Question) -> float:
    orders = np.unique(np.geomspace(2, _LAST_ORDER, 120).round())
    rdp = question.num_steps * divergences.subsampled_rdp_lower_bound(
        orders=orders,
        local_epsilon=question.local_epsilon,
        population=question.population,
        cohort=question.cohort,
    )
    value, _ = epsilon_from_rdp(orders=orders, rdp=rdp, delta=question.delta)
    return min(value, question.num_steps * question.local_epsilon)


LOWER_CONVERTED = Bound(
    name="lower Rényi bound, converted (bounds nothing)",
    role=Role.NEITHER,
    source="Girgis et al. 2021, Thm 2 (at k = n: CCS, Thm 5.3.3), converted like an upper bound",
    epsilon=_converted_lower,
)


def _or_none(epsilon: Callable[[Question], float], question: Question) -> float | None:
    try:
        return epsilon(question)
    except ValueError:
        return None
