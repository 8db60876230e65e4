"""The interface of a stage: what takes a round's replies and gives back reports without names or order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from flwr_shuffle.messages import Instruction
from shuffle_plugins.core import Reports
from shuffle_plugins.shuffler import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """Reports added up.

    Attributes:
        sum: unbiased estimate of the sum of the clients' updates, (dim,).
        reports: how many are in it.
    """

    sum: Tensor
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    """All that is left of a round's replies once they were shuffled.

    Attributes:
        reports: the readable reports in random order; None if there are none, they were added up, or the
            batch was refused.
        answered: clients that answered with a report or a dummy; what a reader of the batch learns of
            participation when clients sample themselves. Where everybody was asked for a report, a dummy is
            no answer, and is left out as far as it can be told.
        participants: node ids, in ascending order, that answered without an error. Whether a node reported or
            sent a dummy is not in it.
        unreadable: replies dropped because they were not a report of this round.
        refusal: why the whole batch was refused; None if it was shuffled.
        total: the reports' sum, from a stage that adds up.
    """

    reports: Reports | None
    answered: int
    participants: tuple[str, ...]
    unreadable: int = 0
    refusal: Refusal | None = None
    total: Total | None = None

    @property
    def count(self) -> int:
        """Reports that came out."""
        if self.total is not None:
            return self.total.reports
        return 0 if self.reports is None else len(self.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Without which a batch must not come out of a stage.

    Attributes:
        reports: fewest reports.
        answered: fewest clients that answer, dummies included.
    """

    reports: int = 1
    answered: int = 1


class ShuffleStage(ABC):
    """A shuffler as a Flower server uses it: it takes the clients' replies and gives back a batch.

    The server calls :meth:`open` and :meth:`require` before each round, and :meth:`collect` once in it. What
    comes out of :meth:`collect` must not depend on the order of the replies, nor say whose report is which.
    """

    _needed = Needed()

    @property
    @abstractmethod
    def trust(self) -> str:
        """One sentence: who must be trusted for the shuffle to be one."""

    @property
    def minimum(self) -> int:
        """Fewest reports that the stage lets through, as far as the server knows; at least one."""
        return 1

    @property
    def analyzer_key(self) -> bytes:
        """Public key to which clients seal their reports; empty if they send them unsealed."""
        return b""

    @property
    def adds_up(self) -> bool:
        """Whether the sum of the reports comes out, and no report: what a multi-message sum needs."""
        return False

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Nodes that are no clients, such as a mix node: never drawn, never evaluated."""
        return frozenset()

    def open(self, grid: Grid) -> None:
        """Find what the stage needs among the connected nodes; cheap when it is known already.

        Raises:
            RuntimeError: if it is not there; the text says what to start.
        """
        del grid

    @property
    def needed(self) -> Needed:
        """What the round under way needs."""
        return self._needed

    def require(self, needed: Needed) -> None:
        """Say without how many reports the coming round must not be let through, so that nobody sees them."""
        self._needed = needed

    @abstractmethod
    def collect(
        self,
        replies: Sequence[Message],
        *,
        instruction: Instruction,
        dim: int,
        grid: Grid,
        timeout: float | None,
    ) -> Anonymous:
        """Shuffle one round's replies. Each comes from another invited node; some may be errors.

        Args:
            replies: what the clients answered; an error is a drop-out.
            instruction: what they were asked.
            dim: length of a client's update.
            grid: to reach other nodes, unwrapped.
            timeout: seconds to wait for other nodes; None waits without end.
        """
