"""Reports out of the bytes that clients sent: what is no report of the round is dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import PrivateSum, Spec


def readable_reports(encoded: Sequence[bytes], *, mechanism: Spec, dim: int) -> tuple[list[Reports], int]:
    """One batch of one report for each of ``encoded`` that is such, and how many are not.

    A report bears the mechanism's name, the dimension and the layout of its parts; one that differs in any of
    them, or in length, is not of this round.
    """
    layout = mechanism.layout(dim=dim)
    header, size = layout.header(1), layout.report_bytes
    alike = [data for data in encoded if len(data) == size and data.startswith(header)]
    batches = _one_by_one(alike)
    return batches, len(encoded) - len(batches)


def _one_by_one(encoded: Sequence[bytes]) -> list[Reports]:
    """A batch of one for each that is intact; all in one go if all are, else those of each half."""
    if not encoded:
        return []
    try:
        reports = Reports.from_each(encoded)
    except ValueError:
        middle = len(encoded) // 2
        return _one_by_one(encoded[:middle]) + _one_by_one(encoded[middle:]) if middle else []
    return [reports.narrow(i, i + 1) for i in range(len(reports))]


def valid_sum(mechanism: PrivateSum, reports: Reports) -> tuple[Tensor, int]:
    """The mechanism's sum over those reports that it accepts, and how many those are.

    A client can send well-formed bytes that no run of the mechanism makes. Such reports are found by halving,
    so a few forgeries among many reports cost a few sums more. Parts of a multi-message sum are added up in
    whole numbers and decoded once: floating point would tell of the parts.
    """
    total, count = _valid(mechanism.total, reports)
    found = torch.zeros(mechanism.dim) if total is None else mechanism.estimate(total, reports=count)
    return found, count


def _valid(add: Callable[[Reports], Tensor], reports: Reports) -> tuple[Tensor | None, int]:
    """The sum over what can be added, and how many those are; None if nothing can."""
    try:
        return add(reports), len(reports)
    except ValueError:
        if len(reports) <= 1:
            return None, 0
    middle = len(reports) // 2
    first, first_count = _valid(add, reports.narrow(0, middle))
    second, second_count = _valid(add, reports.narrow(middle, len(reports)))
    both = [part for part in (first, second) if part is not None]
    return sum(both[1:], start=both[0]) if both else None, first_count + second_count
