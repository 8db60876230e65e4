"""Every published bound on T rounds of the subsampled shuffle, behind one signature.

The question is always the package's own: k of n clients without replacement (k = n: all of them), one ε0-LDP
randomizer per round, shuffled, T adaptively composed rounds, replace-one neighbours, one δ. A paper's module
gives its bound on one round; :class:`Composition` says how T of them are composed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any

from shuffle_plugins.accounting.composition.points import check_rounds, compose_points
from shuffle_plugins.accounting.numerics.orders import Vector
from shuffle_plugins.accounting.pairs.clones import ClonePair, binary_pair
from shuffle_plugins.accounting.published import (
    adaped,
    bbg19,
    check_ins,
    cheu19,
    clones,
    efm19,
    shuffle_rdp,
    stronger_clones,
    subsampled_rdp,
)
from shuffle_plugins.accounting.published.renyi_rounds import compose_renyi, compose_sampled_renyi
from shuffle_plugins.accounting.terms import Sampling


class Composition(StrEnum):
    """What a paper bounds of a round, and hence how rounds are sampled and composed.

    Attributes:
        POINTS: ε of one shuffle at any δ; amplified by sampling (Ullman), composed strongly.
        RENYI: the Rényi curve of one shuffle; amplified by sampling, added up, converted.
        SAMPLED_RENYI: the Rényi curve of a round, sampling included; added up, converted.
    """

    POINTS = "points"
    RENYI = "Rényi curves"
    SAMPLED_RENYI = "Rényi curves of sampled rounds"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedBound:
    """A bound from the literature on the package's question.

    Attributes:
        name: unique, in words.
        source: paper and theorem, and what composes it.
        bound: the paper's bound, called with ``local_epsilon`` and ``cohort``, and also: for ``POINTS`` with
            ``delta``, returns ε; for ``RENYI`` with ``orders``, returns divergences; for ``SAMPLED_RENYI``
            with ``orders`` and ``population``, returns divergences. It raises ValueError where the theorem
            behind it says nothing.
        compose: what the paper bounds, and hence how rounds are composed.
        sampling: the theorem that amplifies Rényi curves, k of n without replacement or Poisson's.
        valid: whether it is an upper bound for the question asked.
        adaptive: whether it also holds if a client's input and randomizer may depend on reports sent before
            (epoch sampling).
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
        """ε of T rounds.

        Args:
            population: n, the number of clients.
            cohort: k ≤ n, reports shuffled together; k = n is full participation.

        Returns:
            ε in nats for replace-one neighbours, never above T·ε0.

        Raises:
            ValueError: in a range in which the theorem says nothing.
        """
        rounds: dict[str, Any] = {
            "local_epsilon": local_epsilon,
            "population": population,
            "cohort": cohort,
            "num_steps": num_steps,
            "delta": delta,
        }
        check_rounds(**rounds)
        if self.compose is Composition.POINTS:
            return compose_points(
                shuffled=lambda shuffle_delta: self.bound(
                    local_epsilon=local_epsilon, cohort=cohort, delta=shuffle_delta
                ),
                **rounds,
            )
        if self.compose is Composition.RENYI:
            curve = _curve(self.bound, local_epsilon, cohort)
            return compose_renyi(curve=curve, sampling=self.sampling, **rounds)
        return compose_sampled_renyi(
            curve=lambda orders: self.bound(
                orders=orders, local_epsilon=local_epsilon, population=population, cohort=cohort
            ),
            **rounds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedClaim:
    """A published answer to another question than the catalogue's, with arguments of its own.

    Attributes:
        name: unique, in words.
        source: paper and theorem.
        epsilon: the claimed ε, called with ``delta`` and the arguments that its docstring names.
        valid: whether it is an upper bound for the question that it asks. Nothing that gives a guarantee may
            use a claim that is not.
        note: what it answers; why it is not valid.
    """

    name: str
    source: str
    epsilon: Callable[..., float]
    valid: bool
    note: str


def published_bound(name: str) -> PublishedBound:
    """The bound of this name.

    Raises:
        ValueError: if no published bound is called so.
    """
    for bound in PUBLISHED_BOUNDS:
        if bound.name == name:
            return bound
    raise ValueError(
        f"no published bound is called {name!r}; there are {[bound.name for bound in PUBLISHED_BOUNDS]}"
    )


@lru_cache(maxsize=256)
def _curve(bound: Callable[..., Vector], local_epsilon: float, cohort: int) -> Callable[[Vector], Vector]:
    """One and the same object for one and the same shuffle, so that its values are computed once."""
    return lambda orders: bound(orders=orders, local_epsilon=local_epsilon, cohort=cohort)


def _point_of_pair(
    pair: Callable[..., ClonePair], *, local_epsilon: float, cohort: int, delta: float
) -> float:
    """ε of a clone pair, rounded up."""
    return pair(local_epsilon=local_epsilon, cohort=cohort).upper_epsilon(delta)


def _curve_of_pair(
    pair: Callable[..., ClonePair], *, orders: Vector, local_epsilon: float, cohort: int
) -> Vector:
    """Rényi divergences of a clone pair, rounded up."""
    return pair(local_epsilon=local_epsilon, cohort=cohort).rdp(orders)


def _second_shuffle_rdp(*, orders: Vector, local_epsilon: float, cohort: int) -> Vector:
    """The second bound, which is stated from order 2.

    Rényi divergence never decreases with the order, so for smaller orders its value at 2 is valid.
    """
    return shuffle_rdp.second_shuffle_rdp(orders=orders.clip(2.0), local_epsilon=local_epsilon, cohort=cohort)


def _generic_blanket_bound(
    inequality: bbg19.Inequality, *, local_epsilon: float, cohort: int, delta: float
) -> float:
    """An inequality on the privacy blanket of any ε0-LDP randomizer."""
    return bbg19.blanket_bound(
        inequality=inequality,
        variable_at=partial(bbg19.generic_variable, local_epsilon=local_epsilon),
        local_epsilon=local_epsilon,
        cohort=cohort,
        delta=delta,
    )


def _erlingsson_bound(*, local_epsilon: float, cohort: int, delta: float) -> float:
    """Erlingsson et al. 2019, Theorem 7, which is stated up to ``efm19.LARGEST_DELTA``.

    For a larger δ its value there is valid: an (ε, δ) guarantee holds for every larger δ.
    """
    return efm19.erlingsson_bound(
        local_epsilon=local_epsilon, cohort=cohort, delta=min(delta, efm19.LARGEST_DELTA)
    )


_POINTS = "sampling (Ullman), strong composition (KOV 2015)"
_RENYI = "sampling by Wang et al. 2019, RDP"
_ERRATUM = (
    "the paper's erratum withdraws it for adaptive randomizers; here Claims 2 and 6 of "
    "docs/proofs/accounting.md carry it"
)
_DISCRETE = "stated for randomizers with discrete outputs"

_by_points = partial(PublishedBound, compose=Composition.POINTS)
_by_renyi = partial(PublishedBound, compose=Composition.RENYI)

PUBLISHED_BOUNDS: tuple[PublishedBound, ...] = (
    PublishedBound(
        name="subsampled shuffle RDP, published",
        source="Girgis et al. 2021, Thm 1",
        bound=subsampled_rdp.subsampled_rdp_bound,
        compose=Composition.SAMPLED_RENYI,
        note=_DISCRETE,
    ),
    _by_renyi(
        name="shuffle RDP, first bound",
        source=f"Girgis et al. 2021 (CCS), Thm 5.3.1, {_RENYI}",
        bound=shuffle_rdp.first_shuffle_rdp,
        note=_DISCRETE,
    ),
    _by_renyi(
        name="shuffle RDP, second bound",
        source=f"Girgis et al. 2021 (CCS), Thm 5.3.2, {_RENYI}",
        bound=_second_shuffle_rdp,
        note=_DISCRETE,
    ),
    _by_renyi(
        name="shuffle RDP, Poisson sampling",
        source="Girgis et al. 2021 (CCS), Thm 5.3.1, sampling by Zhu and Wang 2019, RDP",
        bound=shuffle_rdp.first_shuffle_rdp,
        sampling=Sampling.POISSON,
        valid=False,
        note="its sampling theorem is for Poisson cohorts and add/remove neighbours, not for replace-one",
    ),
    _by_points(
        name="clones, closed form",
        source=f"Feldman et al. 2021, Thm 3.1, {_POINTS}",
        bound=clones.clone_bound,
        adaptive=True,
    ),
    _by_points(
        name="clones, numerical",
        source=f"Feldman et al. 2021, Thm 3.2 and App. F, {_POINTS}",
        bound=partial(_point_of_pair, clones.clone_pair),
        adaptive=True,
    ),
    _by_renyi(
        name="clones, RDP",
        source=f"Feldman et al. 2021, Sec. 6.1, {_RENYI}",
        bound=partial(_curve_of_pair, clones.clone_pair),
        adaptive=True,
    ),
    _by_points(
        name="stronger clones, closed form",
        source=f"Feldman et al. 2022, Thm 3.2, {_POINTS}",
        bound=stronger_clones.stronger_clone_bound,
        adaptive=True,
        note=f"{_ERRATUM}: this closed form is never below the numerical bound of the binary pair",
    ),
    _by_points(
        name="stronger clones, numerical",
        source=f"Feldman et al. 2022, binary pair, {_POINTS}",
        bound=partial(_point_of_pair, binary_pair),
        adaptive=True,
        note=_ERRATUM,
    ),
    _by_renyi(
        name="stronger clones, RDP",
        source=f"Feldman et al. 2022, binary pair, {_RENYI}",
        bound=partial(_curve_of_pair, binary_pair),
        adaptive=True,
        note=_ERRATUM,
    ),
    _by_points(
        name="privacy blanket, Bennett",
        source=f"Balle et al. 2019, generic blanket, {_POINTS}",
        bound=partial(_generic_blanket_bound, bbg19.bennett),
    ),
    _by_points(
        name="privacy blanket, Hoeffding",
        source=f"Balle et al. 2019, generic blanket, {_POINTS}",
        bound=partial(_generic_blanket_bound, bbg19.hoeffding),
    ),
    _by_points(
        name="random check-ins, shuffling",
        source=f"Balle et al. 2020, Thm 5.1, {_POINTS}",
        bound=check_ins.check_in_shuffle_bound,
        adaptive=True,
    ),
    _by_points(
        name="amplification by shuffling",
        source=f"Erlingsson et al. 2019, Thm 7, {_POINTS}",
        bound=_erlingsson_bound,
        adaptive=True,
    ),
    _by_renyi(
        name="amplification by shuffling, RDP",
        source=f"Erlingsson et al. 2019, Remark 1, {_RENYI}",
        bound=efm19.erlingsson_rdp,
        adaptive=True,
    ),
    _by_points(
        name="binary response, closed form",
        source=f"Cheu et al. 2019, Thm 4.11 as cited, {_POINTS}",
        bound=cheu19.binary_response_bound,
        valid=False,
        note="for binary randomized response alone, not for every ε0-LDP randomizer; its paper was not read",
    ),
)

PUBLISHED_CLAIMS: tuple[PublishedClaim, ...] = (
    PublishedClaim(
        name="DP-AdaPeD, as printed",
        source="Girgis 2023 (thesis), Thm 4.5.1, RDP",
        epsilon=adaped.printed_epsilon,
        valid=False,
        note="Gaussian noise in the local steps of federated clients. No bound: " + "; ".join(adaped.REASONS),
    ),
)
