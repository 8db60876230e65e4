"""Labelled bits and their tallies: the same messages, once one by one and once as counts.

Once shuffled, messages that are a label and a bit say nothing but how many ones, and how many bits, came
under each label: every order of them is equally likely. So who wants the shuffled multiset may be handed the
totals, and a client may hand the shuffler its counts, one number per label, instead of its bits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, checks
from shuffle_plugins.protocols.shuffle_protocol import SummingProtocol

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


class LabelledSum(SummingProtocol):
    """A sum in which every client sends equally many bits under each label: its report is a count for each.

    A subclass says how many labels and messages there are, and reads counts out of reports.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def labels(self) -> int:
        """How many labels there are, and counts of a client."""

    @property
    @abstractmethod
    def messages_per_coordinate(self) -> int:
        """Bits that a client sends under each label."""

    @property
    def messages_per_client(self) -> int:
        """Labelled bits that a client sends."""
        return self.labels * self.messages_per_coordinate

    @property
    def bits_per_message(self) -> int:
        """A label and a bit."""
        return label_bits(self.labels) + 1

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        if self.cohort * self.messages_per_client > MOST_MESSAGES:
            raise ValueError(
                f"{self.messages_per_client:,} messages from each of {self.cohort:,} clients are too many to "
                "list: hand the shuffler whole reports, or take a protocol of fewer messages"
            )
        layout = labelled_bits(self.name, labels=self.labels)
        each = self.messages_per_coordinate
        return [as_messages(counts, each=each, layout=layout) for counts in self._read(reports)]

    def total(self, reports: Reports) -> Tensor:
        """Ones under each label in all reports, int64 (labels,); totals of several groups of clients add up.

        Raises:
            ValueError: if the reports are not this protocol's, or one holds what no client that follows the
                protocol sends.
        """
        return self._read(reports).sum(dim=0, dtype=torch.int64).cpu()

    def tally(self, messages: Reports) -> Tally:
        """Count shuffled messages under each label; impossible labels are set aside and counted as foreign.

        Raises:
            ValueError: if the reports are not this protocol's messages.
        """
        labelled_bits(self.name, labels=self.labels).check(messages)
        label, bit = (part.values for part in messages.fields)
        return Tally.of(label, bit, labels=self.labels)

    def senders(self, total: Tensor | Tally) -> int:
        """How many clients' messages a tally is of.

        Raises:
            ValueError: if it does not say so: its labels have different numbers of bits, or not the messages
                of a whole number of clients, or it is ones alone.
        """
        if not isinstance(total, Tally):
            raise ValueError("ones alone do not say how many clients sent them: pass reports=")
        count, rest = divmod(int(total.bits[0]), self.messages_per_coordinate)
        if rest or bool((total.bits != total.bits[0]).any()):
            raise ValueError(
                f"every client sends {self.messages_per_coordinate} messages under each label; these are not "
                "those of a whole number of clients: pass reports="
            )
        return count

    def _ones(self, total: Tensor | Tally) -> Tensor:
        """The ones of a total or a tally, (labels,)."""
        ones = total.ones if isinstance(total, Tally) else total
        if ones.shape != (self.labels,):
            raise ValueError(f"a total is ({self.labels},), got {tuple(ones.shape)}")
        return ones

    def _number(self, total: Tensor | Tally, reports: int | None) -> int:
        """Of how many clients a total is, as is said or as it says by itself."""
        return checks.whole("reports", self.senders(total) if reports is None else reports, at_least=0)

    def _read(self, reports: Reports) -> Tensor:
        """The reports' counts, whole numbers (clients, labels), each of which a client can send."""
        self.layout.check(reports)
        counts = reports.fields[0].values.to(torch.int64).reshape(-1, self.labels)
        most = self.messages_per_coordinate
        if counts.numel() and not (int(counts.min()) >= 0 and int(counts.max()) <= most):
            raise ValueError(f"a client sent a count outside [0, {most}]: leave its messages out")
        return counts
