"""One public report for analysts of several privacy levels, each with a key that undoes part of the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from shuffle_plugins.core import Field, Reports
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.limited_hadamard import LimitedHadamard, binary_entropy
from shuffle_plugins.mechanisms.categories.mixture_oracle import odds_below, whole_numbers
from shuffle_plugins.randomness import WHOLE, Randomness, secure


@dataclass(frozen=True, slots=True, eq=False)
class LayeredReports:
    """What the clients of a round make.

    Attributes:
        public: reports of the last level; anybody may see them.
        keys: uint8 (clients, levels): column j is the key that turns public reports into those of level j.
            The last column is zero. A column gives away as much as the level it opens: send it to that
            analyst alone.
    """

    public: Reports
    keys: Tensor


class MultilevelHadamard:
    r"""Successive refinement of one-bit Hadamard response (Girgis's thesis, section 7.4, Theorem 7.4.1).

    For :math:`ε_1 > \dots > ε_d` let :math:`z_j = 1/(e^{ε_j}+1)`. A client takes the report of ``levels[0]``,
    a :class:`~.LimitedHadamard` at ε_1 whose answer :math:`Y^1` is
    flipped with probability z_1, and flips the answer further by independent bits :math:`U^j \sim
    \mathrm{Ber}(q_j)`, :math:`q_j = (z_j - z_{j-1})/(1 - 2z_{j-1})`: :math:`Y^j = Y^1 ⊕ U^2 ⊕ \dots ⊕ U^j` is
    in all flipped with probability z_j, a report of ``levels[j - 1]``. :math:`Y^d` is public; the analyst of
    level j gets the key :math:`L^j = U^{j+1} ⊕ \dots ⊕ U^d`, for :math:`Y^j = Y^d ⊕ L^j`. Each level's
    mechanism sums, averages and accounts its reports.

    What an analyst sees, (Y^d, L^j), is a function of Y^j and of noise that owes nothing to x: it costs ε_j.
    Analysts who pool their keys learn the lowest Y^j among theirs and further noise: a coalition learns what
    its most trusted member knows, and no more.

    The noise is Σ H2(q_j) bits of randomness per client. A report for every analyst on its own would take Σ
    H2(z_j), and cost Σ ε_j where they meet. q_j is a multiple of 2**-62, rounded up from where the level
    before really is, so no level exceeds its ε; the flip that a level's estimator takes out differs by less
    than 2**-61.

    A key belongs to its report: put both in one order, or leave reports unshuffled.

    Args:
        local_epsilons: ε_1 > … > ε_d in nats, each in [1e-9, 500].
        dim: K, the number of categories, at least 2.

    Raises:
        ValueError: if a parameter is out of range, or the levels do not fall.
    """

    def __init__(self, *, local_epsilons: Sequence[float], dim: int) -> None:
        if not local_epsilons:
            raise ValueError("local_epsilons needs at least one level")
        self._levels = tuple(LimitedHadamard(local_epsilon=epsilon, dim=dim) for epsilon in local_epsilons)
        epsilons = [level.local_epsilon for level in self._levels]
        if any(late >= early for early, late in pairwise(epsilons)):
            raise ValueError(f"local_epsilons must fall from level to level, got {epsilons}")
        self._steps, self._flips = _cascade(epsilons)

    def __repr__(self) -> str:
        epsilons = tuple(level.local_epsilon for level in self._levels)
        return f"{type(self).__name__}(local_epsilons={epsilons!r}, dim={self.dim})"

    @property
    def levels(self) -> tuple[LimitedHadamard, ...]:
        """The mechanism of each level, which reads its reports; from the most trusted one to the public."""
        return self._levels

    @property
    def dim(self) -> int:
        """K, the number of categories."""
        return self._levels[0].dim

    @property
    def flip_probabilities(self) -> tuple[Fraction, ...]:
        """Exact probability with which each level's answer is flipped, at least 1/(e^ε + 1)."""
        return self._flips

    @property
    def randomness_bits(self) -> float:
        """Σ H2(q_j): entropy of a client's noise, in bits."""
        return math.fsum(binary_entropy(step / WHOLE) for step in self._steps)

    @property
    def separate_randomness_bits(self) -> float:
        """Σ H2(z_j): what a report for every analyst on its own would take, in bits."""
        return math.fsum(binary_entropy(float(flip)) for flip in self._flips)

    def randomize(self, x: Tensor, *, randomness: Randomness | None = None) -> LayeredReports:
        """Report each client's category once, for all levels.

        Args:
            x: (clients,) integers in [0, dim); may be empty.
            randomness: source of all random bits; a fresh :class:`SecureRandomness` by default.

        Raises:
            TypeError: if x is not a tensor.
            ValueError: if x is not a vector of integers, or names a category that does not exist.
        """
        randomness = secure(randomness)
        reports = self._levels[0].randomize(x, randomness=randomness)
        steps = torch.tensor([*self._steps[1:], 0], device=x.device).expand(len(x), len(self._levels))
        noise = randomness.bernoulli(steps).to(torch.uint8)
        keys = noise.flip(1).cumsum(dim=1, dtype=torch.int64).flip(1).bitwise_and_(1).to(torch.uint8)
        return LayeredReports(public=_flipped(reports, keys[:, 0]), keys=keys)

    def unlock(self, public: Reports, key: Tensor) -> Reports:
        """The reports of the level that a key belongs to: Y^j = Y^d ⊕ L^j.

        Args:
            public: as published.
            key: 0 and 1, (clients,), in the order of the reports.

        Raises:
            ValueError: if the reports are not of these levels, or the key is not a bit for each of them.
        """
        self._levels[0].check_reports(public)
        bits = whole_numbers(Field(key, 1), below=2)
        if len(bits) != len(public):
            raise ValueError(f"a key has a bit for each of {len(public)} reports, got {len(bits)}")
        return _flipped(public, bits)


def _flipped(reports: Reports, bits: Tensor) -> Reports:
    groups, answers = (field.values for field in reports.fields)
    return reports.layout.reports(groups, answers.to(torch.int64) ^ bits.to(answers.device))


def _cascade(local_epsilons: Sequence[float]) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
    """Thresholds of the steps, and the exact probability of a flip after each."""
    steps, flips = [], []
    flip = Fraction(0)
    for epsilon in local_epsilons:
        target = 1 / (odds_below(epsilon) + 1)
        step = max(math.ceil(WHOLE * (target - flip) / (1 - 2 * flip)), 0)
        flip += Fraction(step, WHOLE) * (1 - 2 * flip)
        steps.append(step)
        flips.append(flip)
    return tuple(steps), tuple(flips)
