"""Reads reports from the bytes that clients sent, and adds them up; leaves out those that are not valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import TypeVar

import torch
from torch import Tensor

from flwr_shuffle.stages.stage import Total
from shuffle_plugins.core import ReportLayout, Reports
from shuffle_plugins.mechanisms import PrivateSum

_Items = TypeVar("_Items", bound=Sized)
_Made = TypeVar("_Made")


def readable_reports(encoded: Sequence[bytes], *, layout: ReportLayout) -> Reports | None:
    """The reports among messages of one report each, in their order; None if there is none.

    A report bears the mechanism's name, the dimension and the layout of its parts. A message that differs in
    any of them, in length or in its checksum is left out.
    """
    header, size = layout.header(1), layout.report_bytes
    alike = [data for data in encoded if len(data) == size and data.startswith(header)]
    parts = [reports for reports, _ in _by_halves(Reports.from_each, alike, lambda all, i, j: all[i:j])]
    return Reports.concat(parts) if parts else None


def valid_sum(mechanism: PrivateSum, reports: Reports) -> Total:
    """The mechanism's sum over those reports that it accepts, and how many those are.

    A client can send well-formed bytes that the mechanism never makes, and then the mechanism refuses the
    whole sum. Such reports are found by trying each half of the reports, and each half of a half, so a few
    forgeries among many reports cost only a few more sums. The totals of the good groups are added up, and
    the estimate is made once, from all of them: adding estimates up would leave rounding errors that depend
    on how the reports were grouped.
    """
    found: list[tuple[Tensor, int]] = list(_by_halves(mechanism.total, reports, Reports.narrow))
    count = sum(size for _, size in found)
    if count == 0:
        return Total(sum=torch.zeros(mechanism.dim), reports=0)
    first, *others = (total for total, _ in found)
    return Total(sum=mechanism.estimate(sum(others, start=first), reports=count), reports=count)


def _by_halves(
    make: Callable[[_Items], _Made], items: _Items, cut: Callable[[_Items, int, int], _Items]
) -> Iterator[tuple[_Made, int]]:
    """``make(items)`` and the number of items; if that raises ValueError, the same of each half, and so on.

    A single item that ``make`` refuses is left out. ``cut(items, i, j)`` gives the items from i up to j.
    """
    size = len(items)
    try:
        yield make(items), size
    except ValueError:
        if size > 1:
            yield from _by_halves(make, cut(items, 0, size // 2), cut)
            yield from _by_halves(make, cut(items, size // 2, size), cut)
