"""Histograms by a plain shuffle in about one message a client: its category, and now and then a decoy.

What it costs, and that the number of messages of a client tells nothing: docs/proofs/tags.md, "Decoys".
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import DecoyRound
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.checks import Dim, Flag, Positive, Radius
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.mechanisms.base import CountRange, Norm, PrivateSum
from shuffle_plugins.protocols.draws import PoissonLaw, drawn_poisson
from shuffle_plugins.protocols.lattices import Categories, drawn_coordinates
from shuffle_plugins.protocols.sums import HistogramProtocol, SummingProtocol, WantedNoise
from shuffle_plugins.randomness.sources import Randomness, secure
from shuffle_plugins.shuffler import InMemoryShuffler, Shuffler

_RARE = 2.0**-64  # probability that anybody of the cohort would send more decoys than fit into a report


@dataclass(frozen=True, kw_only=True)
class DecoyCounts(SummingProtocol[DecoyRound]):
    """Every client sends a category, or none, and a few decoys, each a message; what is seen is shuffled.

    A client draws a Poisson number of decoys, each of a uniform category (Luo, Wang, Yi 2022, "Frequency
    estimation in the shuffle model with almost a single message"; Ghazi, Kumar, Manurangsi, Pagh 2020).
    Shuffled, messages tell how often each category was sent, and no more.

    Attributes:
        decoys: λ, of each category, expected of the :attr:`honest_cohort` together: the variance of a count.
    """

    decoys: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.most_decoys, self.round()

    @property
    @abstractmethod
    def labels(self) -> int:
        """K, how many categories there are."""

    @property
    def _sent(self) -> int:
        """How many kinds of messages there are, all with decoys; what comes after them is a blank."""
        return self.labels

    @abstractmethod
    def _held(self, x: Any, randomness: Randomness) -> Tensor:
        """The category of each client, int64 (clients,); −1 for none."""

    @override
    @classmethod
    def _of_noise(cls, wanted: WantedNoise, **data: Any) -> dict[str, Any]:
        return {"decoys": wanted.noise_multiplier**2 / 2, **data}  # a replaced client moves two counts by one

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> DecoyRound:
        present = who["cohort"] if honest is None else honest
        decoys = self.decoys * min(1.0, present / self.honest_cohort)
        return DecoyRound(decoys=decoys, distance=_RARE, **who)

    def _decoys_of(self, clients: int) -> float:
        """How many decoys of one category so many clients expect to send."""
        return clients * self.decoys / self.honest_cohort

    @property
    def decoys_per_client(self) -> float:
        """How many decoys a client expects to send."""
        return self._sent * self._decoys_of(1)

    @cached_property
    def most_decoys(self) -> int:
        """The most decoys that a client sends; whoever draws more draws again, which is charged to δ."""
        return _rarely_more(self.decoys_per_client, _RARE / self.cohort)

    @property
    @override
    def messages_per_client(self) -> float:
        """Messages that a client expects to send, blanks not counted."""
        return 1 + self.decoys_per_client

    @property
    def message_layout(self) -> ReportLayout:
        """The form of one message: a category, less than K, and what comes after them."""
        return ReportLayout(self.name, self.labels, (FieldLayout(self._sent.bit_length()),))

    @property
    @override
    def counts(self) -> CountRange:
        return CountRange(self.labels, 0, 1 + self.most_decoys)

    def _drawn(self, x: Any, randomness: Randomness) -> Tensor:
        """Every client's messages in random order, then blanks, int64 (clients, 1 + most_decoys)."""
        held = self._held(x, randomness).cpu()
        clients, most = len(held), self.most_decoys
        law = PoissonLaw(mean=self.decoys_per_client)
        number = law.draw(clients, randomness=randomness)
        while bool((over := number > most).any()):
            number[over] = law.draw(int(over.sum()), randomness=randomness)
        labels = torch.full((clients, 1 + most), self._sent)
        sent = torch.arange(1 + most) <= number[:, None]
        labels[sent] = randomness.integers(self._sent, int(sent.sum()))
        # The own category takes any place, lest whoever sees a report knows it by its place.
        words = randomness.words(clients) & ((1 << 62) - 1)
        labels[torch.arange(clients), words % (number + 1)] = torch.where(held < 0, self.labels, held)
        return labels

    def _counted(self, labels: Tensor) -> Tensor:
        return torch.bincount(labels.flatten(), minlength=self.labels)[: self.labels].cpu()

    @property
    def worst_variance(self) -> float:
        """E‖estimate − counts‖², the same for all data."""
        return self.labels * self._decoys_of(self.cohort)

    @property
    def influence(self) -> float:
        """How much one client can add to a count at most, where a report is bound to its length."""
        return 1.0 + self.most_decoys

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        source = secure(randomness)
        held = self._held(x, source)
        mean = self._decoys_of(len(held))
        own = torch.bincount(held[held >= 0], minlength=self.labels).cpu()
        return own + drawn_poisson(self.labels, mean=mean, randomness=source)

    def _without_decoys(self, total: Tensor, clients: int) -> Tensor:
        if total.shape != (self.labels,):
            raise ValueError(f"a total is ({self.labels},), got {tuple(total.shape)}")
        return total.double() - self._decoys_of(clients)


@dataclass(frozen=True, kw_only=True)
class DecoyHistogram(HistogramProtocol[DecoyRound], DecoyCounts):
    """How many clients hold each category: every client sends its own, and a few decoys, each a message.

    Data are int64 (clients,), −1 for a client that holds none; estimates are in clients. None is sent as one
    category more, with decoys, or the number of a client's messages would tell that it holds none.

    A report is all that one client sends, in random order, filled up with blanks to a fixed number of
    messages for mixers that want equally many of everybody; other shuffles need no blanks. See
    :class:`DecoyCounts`.
    """

    name: ClassVar[str] = "decoy-histogram"

    categories: Categories

    @property
    @override
    def labels(self) -> int:
        return self.categories

    @property
    @override
    def _sent(self) -> int:
        return self.categories + 1

    @property
    @override
    def layout(self) -> ReportLayout:
        """Categories, K for none of them, and K + 1 for a blank."""
        fields = (FieldLayout(self._sent.bit_length(), 1 + self.most_decoys),)
        return ReportLayout(self.name, self.categories, fields)

    @override
    def messages(self, reports: Reports, *, blanks: bool = False) -> list[Reports]:
        """Each client's messages, those of blanks only where all clients must send equally many."""
        labels = self._labels(reports)
        layout, real = self.message_layout, labels < self._sent
        return [layout.reports(row if blanks else row[kept]) for row, kept in zip(labels, real, strict=True)]

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        return self.layout.reports(self._drawn(x, randomness))

    @override
    def total(self, reports: Reports) -> Tensor:
        """How often each category was sent, int64 (categories,), of whole reports or of shuffled messages."""
        return self._counted(self._labels(reports))

    def _labels(self, reports: Reports) -> Tensor:
        values = reports.fields[0].values
        layout = self.layout if values.dim() == 2 and self.most_decoys else self.message_layout
        (labels,) = layout.read(reports, self._sent + 1)
        return labels if values.dim() == 2 else labels[:, None]

    def collect(
        self, x: Tensor, *, shuffler: Shuffler | None = None, randomness: Randomness | None = None
    ) -> Reports:
        """All clients' messages after a shuffler, for a host that simulates the clients."""
        labels = self._labels(self.randomize(x, randomness=randomness)).flatten()
        sent = self.message_layout.reports(labels[labels < self._sent])
        if len(x) != self.cohort:
            raise ValueError(f"the guarantee is that of {self.cohort} clients, got {len(x)}")
        return (shuffler or InMemoryShuffler()).shuffle_reports(sent)

    @override
    def sum(self, reports: Reports) -> Tensor:
        if self.most_decoys and reports.fields[0].values.dim() == 1:
            raise ValueError(
                "these are shuffled messages, which do not say how many clients they are of: take "
                "estimate(total(messages), reports=) with the number of clients"
            )
        return super().sum(reports)

    @override
    def _sum(self, total: Tensor, *, reports: int | None = None) -> Tensor:
        return self._without_decoys(total, self._count(total, reports))

    @override
    def exceeding(self, least: float) -> float:
        mean = self._decoys_of(self.cohort)
        return float(stats.poisson(mean).sf(math.ceil(mean + least) - 1))

    @override
    def _reach(self, error: float, *, reports: int) -> float:
        noise = stats.poisson(self._decoys_of(reports))
        mean = noise.mean()
        return float(max(noise.isf(error / 2) - mean, mean - noise.ppf(error / 2))) + 1

    @override
    def _held(self, x: Any, randomness: Randomness) -> Tensor:
        return checked_categories(x, categories=self.categories, least=-1)


@dataclass(frozen=True, kw_only=True)
class DecoyVectorSum(DecoyCounts, PrivateSum):
    r"""The sum of vectors in an ℓ1 ball, for hosts that shuffle reports: one coordinate of each client.

    A client draws coordinate j with probability \|x_j\|/radius, and none with the rest: as a signed unit
    vector times the radius, x on average. Longer vectors, in ℓ1, are scaled onto the ball. Each client makes
    1 + most_decoys reports, some of them blanks, which are shuffled each by itself. See :class:`DecoyCounts`.

    Attributes:
        signed: whether there are categories for both signs of a coordinate. If not, negative numbers count as
            zeros; one-hot vectors and radius 1 then make it a histogram, of half the variance and decoys.
    """

    name: ClassVar[str] = "decoy-vector-sum"
    norm: ClassVar[Norm] = Norm.L1

    dim: Dim
    radius: Radius = 1.0
    signed: Flag = True

    @property
    @override
    def labels(self) -> int:
        return self.dim * (1 + self.signed)

    @property
    @override
    def must_be_summed(self) -> bool:
        return False

    @property
    @override
    def reports_per_client(self) -> int:
        return 1 + self.most_decoys

    @property
    @override
    def layout(self) -> ReportLayout:
        return self.message_layout

    @override
    def messages(self, reports: Reports) -> list[Reports]:
        self.layout.check(reports)
        each = self.reports_per_client
        return [reports.narrow(start, start + each) for start in range(0, len(reports), each)]

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        return self.layout.reports(self._drawn(x, randomness).flatten())

    @override
    def total(self, reports: Reports) -> Tensor:
        (labels,) = self.layout.read(reports, self.labels + 1)
        return self._counted(labels)

    @property
    @override
    def worst_variance(self) -> float:
        """Bound on E‖estimate − Σ x_i‖², of decoys and of each client's draw of a coordinate."""
        return self.radius**2 * (super().worst_variance + self.cohort)

    @override
    def estimate(self, total: Tensor, *, reports: int | None = None) -> Tensor:
        """Unbiased estimate of the sum over clients, of whom there are ``reports``, float64 (dim,)."""
        counts = self._without_decoys(total, checks.whole("reports", reports, at_least=0)) * self.radius
        return counts[: self.dim] - counts[self.dim :] if self.signed else counts

    @override
    def sum(self, reports: Reports) -> Tensor:
        return self.estimate(self.total(reports), reports=len(reports) // self.reports_per_client)

    @override
    def aggregate(self, reports: Reports) -> Tensor:
        return super().aggregate(reports) * self.reports_per_client

    @override
    def _held(self, x: Any, randomness: Randomness) -> Tensor:
        return drawn_coordinates(self._rows(x), radius=self.radius, signed=self.signed, randomness=randomness)


def _rarely_more(mean: float, probability: float) -> int:
    """A number that a Poisson number exceeds with this probability at most: Chernoff's bound."""
    least, rare = math.ceil(mean), -math.log(probability)
    return least + bisect_left(
        range(math.ceil(math.sqrt(2 * mean * rare) + rare)),
        True,
        key=lambda more: (least + more + 1) * (math.log((least + more + 1) / mean) - 1) + mean >= rare,
    )
