"""Marks: how a later mixer of a cascade checks that it got one layer of each client, but not which is whose.

A client puts a random number, the *mark*, into the layer of every mixer but the first. Beside its envelope it
sends each of those mixers a signed *ticket* with the mark plus one random *mask* for every mixer before it,
modulo 2^128, and each of the mixers before it gets its mask alone. A mixer adds up what stands in the tickets
of all clients, takes off the marks that it finds in the layers, and compares the rest with the sums of masks
that the mixers before it have signed.

- A mixer that does not know a client's mark cannot take its layer out of the batch unnoticed: it would have
  to guess the mark, which succeeds with probability 2^-128.
- The masked mark in a ticket contains a mask of every mixer before. If one of these is honest, it gives out
  nothing but the sum of its masks. So tickets are independent of marks except for the sum over all clients,
  which the layers show anyway.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

MARK_BYTES = 16
"""Bytes of a mark, of a mask, and of the sum of both."""

_MODULUS = 1 << (8 * MARK_BYTES)


@dataclass(frozen=True, slots=True)
class Marks:
    """What a client draws for a mix cascade; positions are those in it, from 0.

    Attributes:
        marks: by the position of the mixer, but the first, whose layer it stands in; the first entry is 0.
        masked: what stands in that mixer's ticket: mark and masks together.
        masks: by the position of the mixer that gets the masks: one for each mixer after it, in order.
    """

    marks: tuple[int, ...]
    masked: tuple[int, ...]
    masks: tuple[tuple[int, ...], ...]


def draw_marks(
    mixers: int, *, modulus: int = _MODULUS, draw: Callable[[int], int] = secrets.randbelow
) -> Marks:
    """Marks and masks of one client.

    Args:
        mixers: how many there are in the cascade.
        modulus: marks are whole numbers below it.
        draw: gives a uniform whole number below its argument; the operating system's entropy by default.
    """
    marks = (0, *(draw(modulus) for _ in range(1, mixers)))
    masks = tuple(tuple(draw(modulus) for _ in range(holder + 1, mixers)) for holder in range(mixers))
    masked = [0]
    for position in range(1, mixers):
        given = sum(masks[holder][position - holder - 1] for holder in range(position))
        masked.append((marks[position] + given) % modulus)
    return Marks(marks=marks, masked=tuple(masked), masks=masks)


def agree(*, masked: int, marks: int, masks: int, modulus: int = _MODULUS) -> bool:
    """Whether the sum over all tickets is that of all layers' marks and of all masks."""
    return (masked - marks - masks) % modulus == 0


def mark_bytes(*values: int) -> bytes:
    """Marks or masks, or sums of them, as they travel."""
    return b"".join((value % _MODULUS).to_bytes(MARK_BYTES, "big") for value in values)


def read_marks(data: bytes) -> tuple[int, ...]:
    """What :func:`mark_bytes` wrote.

    Raises:
        ValueError: if it has another length.
    """
    if len(data) % MARK_BYTES:
        raise ValueError(f"a mark has {MARK_BYTES} bytes")
    return tuple(
        int.from_bytes(data[start : start + MARK_BYTES], "big") for start in range(0, len(data), MARK_BYTES)
    )
