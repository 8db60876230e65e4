"""Labelled bits and their tallies: the same messages, once one by one and once as counts.

Once shuffled, messages that are a label and a bit say nothing but how many ones, and how many bits, came
under each label: every order of them is equally likely. So who wants the shuffled multiset may be handed the
totals, and a client may hand the shuffler its counts, one number per label, instead of its bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.core.reports import Field, Reports, compact_dtype

MOST_MESSAGES = 1 << 28
"""Of all clients together, that are listed one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """What is left of shuffled labelled bits. Tallies of disjoint groups of clients add up.

    Attributes:
        ones: ones under each label, int64 (labels,).
        bits: bits under each label, int64 (labels,).
        foreign: messages with a label that does not exist, which no honest client sends.
    """

    ones: Tensor
    bits: Tensor
    foreign: int = 0

    def __add__(self, other: Tally) -> Tally:
        if not isinstance(other, Tally):
            return NotImplemented
        if self.ones.shape != other.ones.shape:
            raise ValueError(f"tallies of {len(self.ones)} and of {len(other.ones)} labels do not add up")
        return Tally(
            ones=self.ones + other.ones, bits=self.bits + other.bits, foreign=self.foreign + other.foreign
        )

    def __radd__(self, other: int) -> Tally:
        """For ``sum(tallies)``, which starts from 0."""
        return self if other == 0 else NotImplemented


def label_bits(labels: int) -> int:
    """Bits that name one of so many labels."""
    return (labels - 1).bit_length()


def as_messages(counts: Tensor, *, each: int, clients: int, mechanism: str) -> Reports:
    """A client's counts as its messages: ``each`` bits under every label, ``counts`` of them ones.

    Args:
        counts: int64 (labels,), entries in [0, each].
        each: bits per label.
        clients: who will send as many.
        mechanism: name that the reports bear.

    Raises:
        ValueError: if a count is out of range, or there are more than 2**28 messages of all clients.
    """
    labels = counts.numel()
    if clients * labels * each > MOST_MESSAGES:
        raise ValueError(
            f"{labels * each:,} messages from each of {clients:,} clients are too many to list: hand the "
            "shuffler counts, as total(encode(x)) does, or calibrate with a larger overhead"
        )
    if counts.dim() != 1 or (labels and not (int(counts.min()) >= 0 and int(counts.max()) <= each)):
        raise ValueError(f"counts must be in [0, {each}], one per label")
    label = torch.arange(labels).to(compact_dtype(label_bits(labels))).repeat_interleave(each)
    bit = (torch.arange(each)[None, :] < counts[:, None]).reshape(-1).to(compact_dtype(1))
    return Reports(mechanism=mechanism, dim=labels, fields=(Field(label, label_bits(labels)), Field(bit, 1)))


def tally(messages: Reports, *, labels: int) -> Tally:
    """Count shuffled messages under each label; impossible labels are set aside and counted.

    Raises:
        ValueError: if the reports are not labelled bits.
    """
    if len(messages.fields) != 2 or messages.fields[1].bits != 1:
        raise ValueError("these reports are not labelled bits")
    label, bit = (field.values.to(torch.int64) for field in messages.fields)
    known = label < labels
    label, bit = label[known], bit[known]
    return Tally(
        ones=torch.bincount(label[bit == 1], minlength=labels),
        bits=torch.bincount(label, minlength=labels),
        foreign=int((~known).sum()),
    )
