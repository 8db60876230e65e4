"""What block mechanisms share: one block of numbers, rounded to a pattern of signs, then randomized.

The cap is the set of patterns that agree with the true one in at least t places; they are sent more often, by
a factor e^ε0 (:mod:`~shuffle_plugins.mechanisms.signs.sign_patterns`). g is its gain: the mean of what is
sent is g times the true pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from typing_extensions import override

from shuffle_plugins.accounting import Atoms, Blanket, diluted
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.mechanisms.signs.randomized_response import LOUDEST_EXACT
from shuffle_plugins.mechanisms.signs.sign_patterns import (
    MAX_SIGNS,
    CapParameters,
    cap_blanket,
    cap_parameters,
    pattern_likelihood,
    pattern_signs,
    round_to_patterns,
    send_patterns,
    three_patterns,
)
from shuffle_plugins.mechanisms.signs.unit_numbers import NumberRandomizer
from shuffle_plugins.randomness import Randomness

_DEFAULT_MOST_BITS = 15  # of a report, unless one coordinate takes more


def block_count(*, dim: int, signs: int) -> int:
    """Blocks of that many coordinates, the last one padded: ceil(dim/signs)."""
    return -(-dim // signs)


def report_bits(*, dim: int, signs: int) -> int:
    """ceil(log2 of the number of blocks) for which block, and its signs."""
    return (block_count(dim=dim, signs=signs) - 1).bit_length() + signs


def best_block(*, local_epsilon: float, dim: int, max_bits: int | None = None) -> int:
    """Length of block, up to 20, of least variance: of least ceil(dim/s)/g_s², shortest first.

    Args:
        local_epsilon: ε0 in nats.
        dim: length of a vector.
        max_bits: most bits of a report; by default 15, or what one coordinate takes if that is more.

    Raises:
        ValueError: if an argument is out of range, or no report has so few bits.
    """
    checks.local_epsilon(local_epsilon)
    one = report_bits(dim=checks.dim(dim), signs=1)
    limit = max(_DEFAULT_MOST_BITS, one) if max_bits is None else checks.whole("max_bits", max_bits)
    return _best_block(local_epsilon, dim, limit)


@lru_cache(maxsize=1024)
def _best_block(local_epsilon: float, dim: int, limit: int) -> int:
    lengths = range(1, min(dim, MAX_SIGNS) + 1)
    allowed = [s for s in lengths if report_bits(dim=dim, signs=s) <= limit]
    if not allowed:
        least = min(report_bits(dim=dim, signs=s) for s in lengths)
        raise ValueError(f"a report on {dim} coordinates takes at least {least} bits, got max_bits={limit}")

    def cost(signs: int) -> float:
        gain = cap_parameters(local_epsilon=local_epsilon, signs=signs).gain
        return block_count(dim=dim, signs=signs) / gain**2

    return min(allowed, key=cost)


def block_blanket(*, local_epsilon: float, dim: int, signs: int) -> Blanket:
    """Blanket of ``linf-block`` with blocks of that many coordinates.

    Rows whose blocks all have one pattern make the lower bound. A last block that is padded, and so has
    random signs for any row, is read as telling nothing.
    """
    whole = (dim // signs) / block_count(dim=dim, signs=signs)
    instances: tuple[Atoms, ...] = ()
    if whole > 0 and signs > 1 and local_epsilon < LOUDEST_EXACT:
        instances = (diluted(three_patterns(local_epsilon=local_epsilon, signs=signs), whole),)
    return cap_blanket(local_epsilon=local_epsilon, signs=signs, exact=dim % signs == 0, instances=instances)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignBlocks:
    """One of B = ceil(dim/s) blocks of s coordinates of a vector of [-1, 1], as a pattern of s signs.

    Coordinates beyond ``dim`` are zero. A sign stands for ±B/g at its coordinate.

    Attributes:
        dim: length of a vector.
        cap: parameters of the pattern's randomizer.
        public: whether everybody knows each client's block, so that it is no part of a report.
    """

    dim: int
    cap: CapParameters
    public: bool = False

    @property
    def blocks(self) -> int:
        """B, the number of blocks."""
        return block_count(dim=self.dim, signs=self.cap.signs)

    @property
    def index_bits(self) -> int:
        """Bits that say which block."""
        return 0 if self.public else (self.blocks - 1).bit_length()

    @property
    def bits(self) -> int:
        """ceil(log2 B) + s; s if blocks are public."""
        return self.index_bits + self.cap.signs

    @property
    def layout(self) -> tuple[FieldLayout, ...]:
        """The form of a report: the block, unless blocks are public, and the pattern of its signs."""
        pattern = FieldLayout(self.cap.signs)
        return (pattern,) if self.public else (FieldLayout(self.index_bits), pattern)

    @property
    def limits(self) -> tuple[int, ...]:
        """Exclusive upper limit of each field's values."""
        patterns = 1 << self.cap.signs
        return (patterns,) if self.public else (self.blocks, patterns)

    @property
    def sign_value(self) -> float:
        """B/g, what a sign stands for at its coordinate, for vectors in [-1, 1]."""
        return self.blocks / self.cap.gain

    @property
    def coordinate_second_moment(self) -> float:
        """Second moment of every coordinate of the estimate, B/g²; the same for all vectors."""
        return self.blocks / self.cap.gain**2

    def columns(self, blocks: Tensor) -> Tensor:
        """Coordinates (clients, s) of blocks (clients,); may be dim or more in the last block."""
        return blocks.unsqueeze(1) * self.cap.signs + torch.arange(self.cap.signs, device=blocks.device)

    def encode(self, values: Tensor, *, randomness: Randomness) -> Tensor:
        """Patterns (clients,) to send for values (clients, s) in [-1, 1]."""
        patterns = round_to_patterns(values, randomness=randomness)
        return send_patterns(patterns, cap=self.cap, randomness=randomness)

    def sum(self, blocks: Tensor, patterns: Tensor) -> Tensor:
        """Unbiased estimate of the sum of vectors in [-1, 1], (dim,) float64, from whole counts."""
        signs = pattern_signs(patterns, signs=self.cap.signs)
        counts = torch.zeros(self.blocks, self.cap.signs, dtype=torch.int64, device=signs.device)
        counts.index_add_(0, blocks, signs)
        return counts.flatten()[: self.dim].double() * self.sign_value

    def outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Every possible report as (blocks, patterns).

        None if there are more than 2**16, or if blocks are public.
        """
        count = self.blocks << self.cap.signs
        if self.public or count > MOST_OUTCOMES:
            return None
        every = torch.arange(count)
        return every >> self.cap.signs, every & ((1 << self.cap.signs) - 1)

    def log_likelihood(self, blocks: Tensor, patterns: Tensor, values: Tensor) -> Tensor:
        """Log-probability of each report for one vector (dim,) in [-1, 1], (reports,) float64."""
        columns = self.columns(blocks)
        at = values[columns.clamp(max=self.dim - 1)].double().masked_fill_(columns >= self.dim, 0.0)
        law = pattern_likelihood(patterns, at, cap=self.cap).log()
        return law if self.public else law - math.log(self.blocks)


class SignBlockRandomizer(NumberRandomizer):
    """A randomizer that sends one block of the numbers that stand for a row, as a pattern of signs.

    A subclass sets ``_blocks`` when it is built.
    """

    _blocks: SignBlocks

    @property
    def agreements(self) -> int:
        """t, least agreements of a likely pattern."""
        return self._blocks.cap.agreements

    @property
    def layout(self) -> ReportLayout:
        """The block's index, unless blocks are public, and the pattern of its signs."""
        return ReportLayout(self.name, self.dim, self._blocks.layout)

    @override
    def sum(self, reports: Reports) -> Tensor:
        return self._in_units(self._blocks.sum(*self._parse(reports))).to(torch.float32)

    def outcomes(self) -> Reports | None:
        """Every pattern of every block, where they are at most 2**16; none with public blocks."""
        every = self._blocks.outcomes()
        return None if every is None else self.layout.reports(*every)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        blocks, patterns = self._parse(reports)
        return self._blocks.log_likelihood(blocks, patterns, self._numbers_of(x))

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A block of numbers of each row, and the pattern of their signs."""
        blocks = self._chosen(x, randomness)
        columns = self._blocks.columns(blocks)
        values = self._sampled_numbers(x, norms, columns.clamp(max=self._blocks.dim - 1))
        values.masked_fill_(columns >= self._blocks.dim, 0.0)
        patterns = self._blocks.encode(values, randomness=randomness)
        return self.layout.reports(*((patterns,) if self._blocks.public else (blocks, patterns)))

    def _chosen(self, x: Rows, randomness: Randomness) -> Tensor:
        """The block of each client, (clients,) int64."""
        return randomness.integers(self._blocks.blocks, x.num_rows, device=x.device)

    def _parse(self, reports: Reports) -> tuple[Tensor, ...]:
        """Blocks and patterns, (reports,) int64."""
        return self.read_reports(reports, *self._blocks.limits)
