r"""Noise on a public grid: what the additive mechanisms share.

A real number plus real noise, computed in floating point, shows the number in its low digits (Mironov 2012).
So nothing here leaves a client but whole numbers, multiples of a public step: a code in [0, 2·limit], the
coordinate's multiple plus ``limit``. Multiples beyond ±limit are moved onto it, which is post-processing:
privacy is untouched, and it happens to a coordinate with a probability that each mechanism states.
"""

from __future__ import annotations

from abc import abstractmethod

from typing_extensions import override

from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, compact_dtype, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import LocalRandomizer, Norm
from shuffle_plugins.randomness import Randomness

_ORDERS = {Norm.L1: 1.0, Norm.L2: 2.0}


class GridNoise(LocalRandomizer):
    """A randomizer whose report is, per coordinate, a noisy multiple of a public step."""

    @property
    @abstractmethod
    def step(self) -> float:
        """The grid's step, in the units of a row."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """How many bits a report spends on each coordinate."""

    @abstractmethod
    def _noisy(self, scaled: Tensor, randomness: Randomness) -> Tensor:
        """Whole numbers, int64: the float64 rows in units of the step, with noise."""

    @property
    def limit(self) -> int:
        """The largest multiple of the step that is sent, 2**(bits - 1) - 1."""
        return (1 << (self.bits - 1)) - 1

    @property
    def layout(self) -> ReportLayout:
        """A whole number of ``bits`` bits for each coordinate."""
        return ReportLayout(self.name, self.dim, (FieldLayout(self.bits, self.dim),))

    @override
    def sum(self, reports: Reports) -> Tensor:
        codes = self._codes(reports)
        total = torch.zeros(self.dim, dtype=torch.int64, device=codes.device)
        for start, stop in self._chunks(len(codes), codes.device):
            total += codes[start:stop].sum(dim=0, dtype=torch.int64)
        return self._value(total.sub_(len(codes) * self.limit))

    def sum_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Tensor:
        """``sum(randomize(x))``, (dim,), from the same random bits, without holding the reports."""
        total = torch.zeros(self.dim, dtype=torch.int64, device=x.device)
        for start, stop in self._chunks(x.num_rows, x.device):
            total += self._cut(x.narrow(start, stop), randomness).sum(dim=0)
        return self._value(total)

    def _value(self, multiple: Tensor) -> Tensor:
        return multiple.double().mul_(self.step).to(torch.float32)

    def _multiples(self, reports: Reports) -> Tensor:
        """The multiples of the step in reports, (reports, dim) int64, checked."""
        return self._codes(reports).to(torch.int64, copy=True).sub_(self.limit)

    def _codes(self, reports: Reports) -> Tensor:
        """The codes of reports, (reports, dim), as compact as they came, checked."""
        self.check_reports(reports)
        codes = reports.fields[0].values.reshape(len(reports), self.dim)
        if codes.numel() and not (int(codes.min()) >= 0 and int(codes.max()) <= 2 * self.limit):
            raise ValueError("a report holds a code that does not exist: it was altered or forged; drop it")
        return codes

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """The code of a noisy multiple of the step for each coordinate of each row."""
        codes = torch.empty(x.num_rows, self.dim, dtype=compact_dtype(self.bits), device=x.device)
        for start, stop in self._chunks(x.num_rows, x.device):
            codes[start:stop] = self._cut(x.narrow(start, stop), randomness).add_(self.limit)
        return self.layout.reports(codes)

    def _cut(self, x: Rows, randomness: Randomness) -> Tensor:
        """Noisy multiples of the step, those beyond ±limit moved onto it, (clients, dim) int64."""
        return self._noisy(self._scaled(x), randomness).clamp_(-self.limit, self.limit)

    def _chunks(self, count: int, device: torch.device) -> list[tuple[int, int]]:
        size = rows_at_once(self.dim, device=device)
        return [(start, min(start + size, count)) for start in range(0, count, size)]

    def _scaled(self, x: Rows) -> Tensor:
        """Rows in units of the step, float64, none outside the ball by more than float64's own rounding."""
        rows = x.dense().to(torch.float64, copy=True)
        largest = rows.abs().amax(dim=1, keepdim=True).clamp_(min=torch.finfo(torch.float64).tiny)
        lengths = torch.linalg.vector_norm(rows / largest, ord=_ORDERS[self.norm], dim=1, keepdim=True)
        filled = lengths.mul_(largest / self.radius).clamp_(min=1.0)
        return rows.div_(self.step).div_(filled)

    def _rounding_variance(self, x: Rows) -> Tensor:
        """Variance of rounding each row to neighbouring multiples without bias, in squared steps."""
        spread = torch.zeros(x.num_rows, dtype=torch.float64, device=x.device)
        for start, stop in self._chunks(x.num_rows, x.device):
            fraction = self._scaled(x.narrow(start, stop))
            fraction.sub_(fraction.floor())
            spread[start:stop] = fraction.mul_(1 - fraction).sum(dim=1)
        return spread
