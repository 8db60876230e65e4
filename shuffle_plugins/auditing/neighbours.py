"""Two datasets that differ in one client's record, as an adversary would choose them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.mechanisms import FrequencyOracle, LocalRandomizer, Norm

AuditedMechanism = LocalRandomizer | FrequencyOracle
"""What can be audited: a randomizer of vectors or of categories."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Neighbours:
    """A pair of replace-one neighbours: client 1 holds ``original`` in D and ``replacement`` in D'.

    Attributes:
        name: what the choice is, for reports.
        original: (dim,), or () for a category: client 1's record in D.
        replacement: likewise, client 1's record in D'.
        others: (records, dim), or (records,) for categories, at least one; the other n - 1 clients hold these
            in turn, in both datasets.
    """

    name: str
    original: Tensor
    replacement: Tensor
    others: Tensor

    def __post_init__(self) -> None:
        one, two, rest = self.original, self.replacement, self.others
        fits = two.shape == one.shape and rest.dim() == one.dim() + 1 and rest.shape[1:] == one.shape
        if one.dim() > 1 or not fits:
            raise ValueError(
                "neighbours are two records (dim,) and the others' records (records, dim), or two categories "
                "() and the others' categories (records,), got shapes "
                f"{tuple(one.shape)}, {tuple(two.shape)}, {tuple(rest.shape)}"
            )
        if rest.shape[0] == 0:
            raise ValueError("neighbours need at least one record for the other clients")
        if not one.dtype == two.dtype == rest.dtype:
            raise ValueError("the records of neighbours differ in dtype")


def extreme_neighbours(mechanism: AuditedMechanism) -> tuple[Neighbours, ...]:
    """Records as far apart as the mechanism's domain has them, before several choices of everybody else.

    For categories: the first two, before the second, the first, half of each, or the last.

    For vectors: antipodal records on the boundary of the ball, float32. Everybody else holds the replacement,
    or the original (the mirror image, unless the mechanism is broken in one direction), or the origin, or
    half of them each of the two records, or, from dimension 2 on, a record of the boundary between the two,
    as far from one as from the other (in an odd number of ±radius coordinates, as nearly as can be).
    """
    if isinstance(mechanism, FrequencyOracle):
        return _two_categories(mechanism.dim)
    dim = mechanism.dim
    unit = {
        Norm.L1: torch.eye(1, dim)[0],
        Norm.L2: torch.full((dim,), dim**-0.5),
        Norm.LINF: torch.ones(dim),
    }
    original: Tensor = mechanism.radius * unit[mechanism.norm]
    replacement = -original
    choices = {
        "antipodal records, everybody else at the replacement": replacement.unsqueeze(0),
        "antipodal records, everybody else at the original": original.unsqueeze(0),
        "antipodal records, everybody else at the origin": torch.zeros(1, mechanism.dim),
        "antipodal records, everybody else at one of the two": torch.stack([replacement, original]),
    }
    if mechanism.dim > 1:
        between = _between(original, norm=mechanism.norm)
        choices["antipodal records, everybody else between the two"] = between.unsqueeze(0)
    return tuple(
        Neighbours(name=name, original=original, replacement=replacement, others=others)
        for name, others in choices.items()
    )


def _two_categories(dim: int) -> tuple[Neighbours, ...]:
    choices = {"at the replacement": [1], "at the original": [0], "at one of the two": [1, 0]}
    if dim > 2:
        choices["at a third"] = [dim - 1]
    return tuple(
        Neighbours(
            name=f"two categories, everybody else {place}",
            original=torch.tensor(0),
            replacement=torch.tensor(1),
            others=torch.tensor(others),
        )
        for place, others in choices.items()
    )


def estimand(record: Tensor, *, dim: int) -> Tensor:
    """What a report of a record estimates, (dim,) float64: the vector itself, or a category's unit vector."""
    if record.dim() == 1:
        return record.double()
    unit = torch.zeros(dim, dtype=torch.float64)
    unit[record] = 1
    return unit


def _between(original: Tensor, *, norm: Norm) -> Tensor:
    if norm is Norm.L1:
        return original.roll(1)
    turned = original.clone()
    turned[1::2] *= -1
    if norm is Norm.L2 and len(original) % 2:
        turned[-1] = 0
        turned *= (len(original) / (len(original) - 1)) ** 0.5
    return turned
