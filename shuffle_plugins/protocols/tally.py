"""Labelled bits and their tallies: the same messages, once one by one and once as counts.

Once shuffled, messages that are a label and a bit say nothing but how many ones, and how many bits, came
under each label: every order of them is equally likely. So who wants the shuffled multiset may be handed the
totals, and a client may hand the shuffler its counts, one number per label, instead of its bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.core import FieldLayout, ReportLayout, Reports

MOST_MESSAGES = 1 << 28
"""Messages of all clients together that are listed one by one."""


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

    @classmethod
    def of(cls, label: Tensor, bit: Tensor, *, labels: int) -> Tally:
        """Count messages under each label; impossible labels are set aside and counted as foreign.

        Args:
            label: integers (messages,); those outside of [0, labels) do not exist.
            bit: 0 or 1, (messages,).
            labels: how many labels there are.
        """
        label, bit = label.to(torch.int64), bit.to(torch.int64)
        known = (label >= 0) & (label < labels)
        label, bit = label[known], bit[known]
        return cls(
            ones=torch.bincount(label[bit == 1], minlength=labels),
            bits=torch.bincount(label, minlength=labels),
            foreign=int((~known).sum()),
        )

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


def labelled_bits(mechanism: str, *, labels: int) -> ReportLayout:
    """The form of messages that are a label and a bit."""
    return ReportLayout(mechanism, labels, (FieldLayout(label_bits(labels)), FieldLayout(1)))


def as_messages(counts: Tensor, *, each: int, layout: ReportLayout) -> Reports:
    """A client's counts as its messages: ``each`` bits under every label, ``counts`` of them ones.

    Args:
        counts: int64 (labels,), entries in [0, each].
        each: bits per label.
        layout: of :func:`labelled_bits`.
    """
    label = torch.arange(counts.numel()).repeat_interleave(each)
    bit = (torch.arange(each)[None, :] < counts[:, None]).reshape(-1)
    return layout.reports(label, bit)
