from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows
from shuffle_plugins.mechanisms import LocalRandomizer, Norm
from shuffle_plugins.randomness import Randomness


class Transparent(LocalRandomizer):
    """Clips and adds up, without any randomness: what a step computes can be compared number by number."""

    name: ClassVar[str] = "transparent"
    norm: ClassVar[Norm] = Norm.L2
    batches: ClassVar[list[tuple[int, int]]] = []

    @property
    def layout(self) -> ReportLayout:
        return ReportLayout(self.name, self.dim, (FieldLayout(32, self.dim, floating=True),))

    def variance(self, x: Tensor | Rows) -> Tensor:
        return torch.zeros(Rows.of(x).num_rows)

    def blanket(self) -> Blanket:
        return Blanket.generic(self.local_epsilon)

    def sum(self, reports: Reports) -> Tensor:
        raise AssertionError("the optimizer asks for the sum directly")

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        raise AssertionError("the optimizer asks for the sum directly")

    def randomize_sum(
        self, x: Tensor | Rows, *, randomness: Randomness | None = None, clip: bool = True
    ) -> Tensor:
        rows = self.check_rows(x)
        type(self).batches.append((rows.num_rows, rows.dim))
        norms = self.row_norms(rows)
        rows, norms = self.admitted(rows, norms, clip=True)
        return rows.weighted_sum(self.clip_factors(norms))
