"""Every published bound on T rounds of the subsampled shuffle, behind one signature.

The question is always the package's own: k of n clients without replacement (k = n: all of them), one ε0-LDP
randomizer per round, shuffled, T adaptively composed rounds, replace-one neighbours, one δ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from shuffle_plugins.accounting.published import (
    bbg19,
    check_ins,
    clones,
    efm19,
    shuffle_rdp,
    stronger_clones,
    subsampled_rdp,
)


class RoundsBound(Protocol):
    """ε in nats of T rounds; raises ValueError where the theorem behind it says nothing."""

    def __call__(
        self, *, local_epsilon: float, population: int, cohort: int, num_steps: int, delta: float
    ) -> float:
        """ε of T rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedBound:
    """A bound from the literature on the package's question.

    Attributes:
        name: unique, in words.
        source: paper and theorem, and what composes it.
        epsilon: the bound.
        valid: whether it is an upper bound for the question asked.
        adaptive: whether it also covers a round of everybody in random order in which inputs and randomizers
            follow from earlier reports: an epoch.
        note: what carries it, or why it is not valid.
    """

    name: str
    source: str
    epsilon: RoundsBound
    valid: bool = True
    adaptive: bool = False
    note: str = ""


_POINTS = "sampling (Ullman), strong composition (KOV 2015)"
_RENYI = "sampling by Wang et al. 2019, RDP"
_CLAIM_2 = (
    "the paper's erratum withdraws it for adaptive randomizers; here Claims 2 and 6 of "
    "docs/proofs/accounting.md carry it"
)
_DISCRETE = "stated for randomizers with discrete outputs"

PUBLISHED_BOUNDS: tuple[PublishedBound, ...] = (
    PublishedBound(
        name="subsampled shuffle RDP, published",
        source="Girgis et al. 2021, Thm 1",
        epsilon=subsampled_rdp.epsilon,
        note=_DISCRETE,
    ),
    PublishedBound(
        name="shuffle RDP, first bound",
        source=f"Girgis et al. 2021 (CCS), Thm 5.3.1, {_RENYI}",
        epsilon=shuffle_rdp.epsilon,
        note=_DISCRETE,
    ),
    PublishedBound(
        name="shuffle RDP, second bound",
        source=f"Girgis et al. 2021 (CCS), Thm 5.3.2, {_RENYI}",
        epsilon=shuffle_rdp.epsilon_2,
        note=_DISCRETE,
    ),
    PublishedBound(
        name="shuffle RDP, Poisson sampling",
        source="Girgis et al. 2021 (CCS), Thm 5.3.1, sampling by Zhu and Wang 2019, RDP",
        epsilon=shuffle_rdp.poisson_epsilon,
        valid=False,
        note="its sampling theorem is for Poisson cohorts and add/remove neighbours, not for replace-one",
    ),
    PublishedBound(
        name="clones, closed form",
        source="Feldman et al. 2021, Thm 3.1, composed",
        epsilon=clones.epsilon,
        adaptive=True,
    ),
    PublishedBound(
        name="clones, numerical",
        source=f"Feldman et al. 2021, Thm 3.2 and App. F, {_POINTS}",
        epsilon=clones.numerical_epsilon,
        adaptive=True,
    ),
    PublishedBound(
        name="clones, RDP",
        source=f"Feldman et al. 2021, Sec. 6.1, {_RENYI}",
        epsilon=clones.rdp_epsilon,
        adaptive=True,
    ),
    PublishedBound(
        name="stronger clones, closed form",
        source=f"Feldman et al. 2022, Thm 3.2, {_POINTS}",
        epsilon=stronger_clones.epsilon,
        adaptive=True,
        note=f"{_CLAIM_2}, because it lies above that pair",
    ),
    PublishedBound(
        name="stronger clones, numerical",
        source=f"Feldman et al. 2022, binary pair, {_POINTS}",
        epsilon=stronger_clones.numerical_epsilon,
        adaptive=True,
        note=_CLAIM_2,
    ),
    PublishedBound(
        name="stronger clones, RDP",
        source=f"Feldman et al. 2022, binary pair, {_RENYI}",
        epsilon=stronger_clones.rdp_epsilon,
        adaptive=True,
        note=_CLAIM_2,
    ),
    PublishedBound(
        name="privacy blanket, Bennett",
        source=f"Balle et al. 2019, generic blanket, {_POINTS}",
        epsilon=bbg19.bennett_epsilon,
    ),
    PublishedBound(
        name="privacy blanket, Hoeffding",
        source=f"Balle et al. 2019, generic blanket, {_POINTS}",
        epsilon=bbg19.hoeffding_epsilon,
    ),
    PublishedBound(
        name="random check-ins, shuffling",
        source=f"Balle et al. 2020, Thm 5.1, {_POINTS}",
        epsilon=check_ins.epsilon,
        adaptive=True,
    ),
    PublishedBound(
        name="amplification by shuffling",
        source=f"Erlingsson et al. 2019, Thm 7, {_POINTS}",
        epsilon=efm19.epsilon,
        adaptive=True,
    ),
    PublishedBound(
        name="amplification by shuffling, RDP",
        source=f"Erlingsson et al. 2019, Remark 1, {_RENYI}",
        epsilon=efm19.rdp_epsilon,
        adaptive=True,
    ),
)
