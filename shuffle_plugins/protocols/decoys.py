"""Histograms by a plain shuffle in about one message a client: its category, and now and then a decoy.

What it costs, and that the number of messages of a client tells nothing: docs/proofs/tags.md, "Decoys".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from scipy import stats
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import DecoyRound, PrivacyTarget
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows
from shuffle_plugins.core.checks import Positive
from shuffle_plugins.core.rows import checked_categories
from shuffle_plugins.mechanisms.base import CountRange
from shuffle_plugins.protocols.draws import PoissonLaw, drawn_poisson
from shuffle_plugins.protocols.lattices import Categories
from shuffle_plugins.protocols.sums import HistogramProtocol
from shuffle_plugins.randomness.sources import Randomness, secure
from shuffle_plugins.shuffler import InMemoryShuffler, Shuffler

_RARE = 2.0**-64  # probability that anybody of the cohort would send more decoys than fit into a report


@dataclass(frozen=True, kw_only=True)
class DecoyHistogram(HistogramProtocol[DecoyRound]):
    """How many clients hold each category: every client sends its own, and a few decoys, each a message.

    A client draws a Poisson number of decoys, each of a uniform category or of none (Luo, Wang, Yi 2022,
    "Frequency estimation in the shuffle model with almost a single message"; Ghazi, Kumar, Manurangsi, Pagh
    2020). Shuffled, messages tell how often each category was sent, and no more. Data are int64 (clients,),
    −1 for a client that holds none, which it sends as one category more, so that all send one message and
    their decoys; estimates are in clients.

    A report is all that one client sends, in random order, filled up with blanks to a fixed number of
    messages for mixers that want equally many of everybody; other shuffles need no blanks.

    Attributes:
        decoys: λ, of each category, expected of the :attr:`honest_cohort` together: the variance of a count.
    """

    name: ClassVar[str] = "decoy-histogram"

    categories: Categories
    decoys: Positive

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.most_decoys, self.round()

    @override
    @classmethod
    def _of_noise(
        cls, noise_multiplier: float, *, cohort: int, honest: int, target: PrivacyTarget | None, **data: Any
    ) -> dict[str, Any]:
        return {"decoys": noise_multiplier**2 / 2, **data}  # a replaced client moves two counts by one

    @override
    def _round(self, honest: int | None, participation: float | None, **who: Any) -> DecoyRound:
        present = who["cohort"] if honest is None else honest
        return DecoyRound(decoys=self.decoys * min(1.0, present / self.honest_cohort), distance=_RARE, **who)

    @property
    def decoys_each(self) -> float:
        """How many decoys a client expects to send, those of no category among them."""
        return (self.categories + 1) * self.decoys / self.honest_cohort

    @cached_property
    def most_decoys(self) -> int:
        """The most decoys that a client sends; whoever draws more draws again, which is charged to δ."""
        return _rarely_more(self.decoys_each, _RARE / self.cohort)

    @property
    def labels(self) -> int:
        """How many counts there are."""
        return self.categories

    @property
    @override
    def messages_per_client(self) -> float:
        """Messages that a client expects to send, blanks not counted."""
        return 1 + self.decoys_each

    @property
    @override
    def layout(self) -> ReportLayout:
        """Categories, each less than K, K for none of them, and K + 1 for a blank."""
        fields = (FieldLayout(self._label_bits, 1 + self.most_decoys),)
        return ReportLayout(self.name, self.categories, fields)

    @property
    def message_layout(self) -> ReportLayout:
        """The form of one message: a category, none, or a blank."""
        return ReportLayout(self.name, self.categories, (FieldLayout(self._label_bits),))

    @property
    def _label_bits(self) -> int:
        return self._blank.bit_length()

    @property
    def _blank(self) -> int:
        return self.categories + 1

    @property
    @override
    def counts(self) -> CountRange:
        return CountRange(self.categories, 0, 1 + self.most_decoys)

    @override
    def messages(self, reports: Reports, *, blanks: bool = False) -> list[Reports]:
        """Each client's messages, those of blanks only where all clients must send equally many."""
        labels = self._labels(reports)
        layout, real = self.message_layout, labels < self._blank
        return [layout.reports(row if blanks else row[kept]) for row, kept in zip(labels, real, strict=True)]

    @override
    def _randomized(self, x: Any, randomness: Randomness) -> Reports:
        held = self._held(x).cpu()
        clients, most = len(held), self.most_decoys
        law = PoissonLaw(mean=self.decoys_each)
        number = law.draw(clients, randomness=randomness)
        while bool((over := number > most).any()):
            number[over] = law.draw(int(over.sum()), randomness=randomness)
        labels = torch.full((clients, 1 + most), self._blank)
        sent = torch.arange(1 + most) <= number[:, None]
        labels[sent] = randomness.integers(self._blank, int(sent.sum()))  # none has decoys, too
        # The own category takes a uniform place, lest whoever sees a report knows it by its place.
        words = randomness.words(clients) & ((1 << 62) - 1)
        labels[torch.arange(clients), words % (number + 1)] = torch.where(held < 0, self.categories, held)
        return self.layout.reports(labels)

    @override
    def total(self, reports: Reports) -> Tensor:
        """How often each category was sent, int64 (categories,), of whole reports or of shuffled messages."""
        return torch.bincount(self._labels(reports).flatten(), minlength=self._blank + 1)[:-2].cpu()

    def _labels(self, reports: Reports) -> Tensor:
        values = reports.fields[0].values
        layout = self.layout if values.dim() == 2 and self.most_decoys else self.message_layout
        (labels,) = layout.read(reports, self._blank + 1)
        return labels if values.dim() == 2 or layout is self.message_layout else labels[:, None]

    def collect(
        self, x: Tensor, *, shuffler: Shuffler | None = None, randomness: Randomness | None = None
    ) -> Reports:
        """All clients' messages after a shuffler, for a host that simulates the clients."""
        labels = self._labels(self.randomize(x, randomness=randomness)).flatten()
        sent = self.message_layout.reports(labels[labels < self._blank])
        if len(x) != self.cohort:
            raise ValueError(f"the guarantee is that of {self.cohort} clients, got {len(x)}")
        return (shuffler or InMemoryShuffler()).shuffle_reports(sent)

    def senders(self, total: Tensor) -> int:
        """A ValueError: messages do not say how many clients they are of."""
        raise ValueError("messages alone do not say how many clients they are of: pass reports=")

    @override
    def _sum(self, total: Tensor, *, reports: int | None = None) -> Tensor:
        if total.shape != (self.categories,):
            raise ValueError(f"a total is ({self.categories},), got {tuple(total.shape)}")
        return total.double() - (reports or 0) * self.decoys / self.honest_cohort

    @property
    def worst_variance(self) -> float:
        """E‖estimate − counts‖², the same for all data."""
        return self.categories * self.decoys / self.honest_cohort * self.cohort

    @property
    def influence(self) -> float:
        """How much one client can add to a count at most, where a report is bound to its length."""
        return 1.0 + self.most_decoys

    @override
    def exceeding(self, least: float) -> float:
        mean = self.cohort * self.decoys / self.honest_cohort
        return float(stats.poisson(mean).sf(math.ceil(mean + least) - 1))

    @override
    def _reach(self, error: float, *, reports: int) -> float:
        noise = stats.poisson(reports * self.decoys / self.honest_cohort)
        mean = noise.mean()
        return float(max(noise.isf(error / 2) - mean, mean - noise.ppf(error / 2))) + 1

    @override
    def share(self, x: Tensor | Rows, *, randomness: Randomness | None = None) -> Tensor:
        held, source = self._held(x), secure(randomness)
        mean = len(held) * self.decoys / self.honest_cohort
        own = torch.bincount(held[held >= 0], minlength=self.categories).cpu()
        return own + drawn_poisson(self.categories, mean=mean, randomness=source)

    def _held(self, x: Tensor | Rows) -> Tensor:
        return checked_categories(x, categories=self.categories, least=-1)


def _rarely_more(mean: float, probability: float) -> int:
    """A number that a Poisson number exceeds with this probability at most: Chernoff's bound."""
    least, rare = math.ceil(mean), -math.log(probability)
    return least + bisect_left(
        range(math.ceil(math.sqrt(2 * mean * rare) + rare)),
        True,
        key=lambda more: (least + more + 1) * (math.log((least + more + 1) / mean) - 1) + mean >= rare,
    )
