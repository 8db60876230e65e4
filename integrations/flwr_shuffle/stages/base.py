"""The interface of a stage: what takes a round's replies and gives back reports without names or order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from flwr_shuffle.messages import Instruction
from flwr_shuffle.shared_terms import SharedTerms
from shuffle_plugins.core import ReportLayout, Reports
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.shuffler import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sum of a round's reports.

    Attributes:
        sum: unbiased estimate of the sum of the clients' vectors, (dim,).
        reports: how many reports are in it.
    """

    sum: Tensor
    reports: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymous:
    """What a stage gives the server of a round's replies.

    Attributes:
        reports: the readable reports in random order; None if there are none, they were added up, or the
            batch was refused.
        answered: clients that answered with a report or a dummy; the server learns this number even where
            clients sample themselves. Where everybody was asked for a report, a dummy is no answer, and is
            not counted as far as it can be recognised.
        participants: node ids, in ascending order, that answered without an error, be it by a report or by a
            dummy.
        unreadable: replies dropped because they were not a report of this round.
        foreign: those of them that this server itself found to be no report, rather than another node; None
            if it was all of them. If no reply is a report, the client app has no mod.
        refusal: why the whole batch was refused; None if it was shuffled.
        total: the reports' sum, of a stage that adds reports up.
    """

    reports: Reports | None
    answered: int
    participants: tuple[str, ...]
    unreadable: int = 0
    foreign: int | None = None
    refusal: Refusal | None = None
    total: Total | None = None

    @property
    def count(self) -> int:
        """How many reports came out, or are in the total."""
        if self.total is not None:
            return self.total.reports
        return 0 if self.reports is None else len(self.reports)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What a round must have for its reports to come out of a stage.

    Attributes:
        reports: fewest reports that must have come in.
        answered: fewest clients that must have answered, with a report or a dummy.
    """

    reports: int = 1
    answered: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """A round's replies, and what a stage needs to read them.

    Attributes:
        messages: what the clients answered, each another invited node; one that answered with an error has
            dropped out.
        instruction: the round's instruction that the clients were sent.
        dim: length of the vector that a client reports.
        grid: the plain grid, to reach other nodes.
        timeout: seconds to wait for other nodes; None waits without end.
    """

    messages: Sequence[Message]
    instruction: Instruction
    dim: int
    grid: Grid
    timeout: float | None = None

    @property
    def answers(self) -> list[Message]:
        """The clients' replies, without those that report an error."""
        return [reply for reply in self.messages if not reply.has_error()]

    @property
    def layout(self) -> ReportLayout:
        """The form of every report of the round."""
        return self.instruction.mechanism.layout(dim=self.dim)

    def anonymous(
        self,
        reports: Reports | None,
        *,
        answered: int,
        unreadable: int,
        foreign: int | None = None,
        refusal: Refusal | None = None,
        total: Total | None = None,
    ) -> Anonymous:
        """What a stage gives back of these replies; the arguments are the fields of :class:`Anonymous`."""
        return Anonymous(
            reports=reports,
            answered=answered,
            participants=tuple(
                str(node) for node in sorted(each.metadata.src_node_id for each in self.answers)
            ),
            unreadable=unreadable,
            foreign=foreign,
            refusal=refusal,
            total=total,
        )


class ShuffleStage(ABC):
    """A shuffler as a Flower server uses it: it takes the clients' replies and gives back their reports.

    The server calls :meth:`open` and :meth:`require` before each round, in it :meth:`take` with each reply
    that comes, and :meth:`collect` once. What
    :meth:`collect` returns must not depend on the order of the replies, nor say whose report is which.
    """

    _needed = Needed()

    @property
    @abstractmethod
    def trust(self) -> str:
        """One sentence: who must be trusted for reports to come out without names and order."""

    @property
    def minimum(self) -> int:
        """Fewest reports that the stage lets through, as far as the server knows; at least one."""
        return 1

    @property
    def analyzer_key(self) -> bytes:
        """Public key to which clients seal their reports, 32 bytes; empty if they send them unsealed."""
        return b""

    @property
    def mixers(self) -> int:
        """How many mixers of a cascade clients must seal their reports to, where they seal them."""
        return 1

    @property
    def adds_up(self) -> bool:
        """Whether only the sum of the reports comes out, as reports that must be summed need it."""
        return False

    def shared(self, mechanism: PrivateSum, *, clients: int) -> SharedTerms | None:
        """What the clients of a new round are told of how they share their counts; None if they do not.

        Args:
            mechanism: makes the round's reports.
            clients: how many are invited.

        Raises:
            ValueError: if the stage cannot add up reports of this mechanism, or of so many clients.
        """
        del mechanism, clients
        return None

    @property
    def hides_shares(self) -> bool:
        """Whether the server sees nothing of the reports but their sum, not even in this process.

        Then clients that sample themselves hide their participation in a sum from the server as well.
        """
        return False

    @property
    def excluded_nodes(self) -> frozenset[int]:
        """Ids of nodes that are not asked for reports, such as a mix node."""
        return frozenset()

    def open(self, grid: Grid) -> None:
        """Find the nodes that the stage needs, if it needs any; cheap when they are known already.

        Raises:
            RuntimeError: if one is not connected; the text says what to start.
        """
        del grid

    @property
    def needed(self) -> Needed:
        """What the round under way must have for its reports to come out."""
        return self._needed

    def require(self, needed: Needed) -> None:
        """Set what the coming round must have for its reports to come out; with less nobody sees them."""
        self._needed = needed

    def take(self, reply: Message, *, instruction: Instruction, dim: int) -> Message:
        """Take what is bulky out of a client's reply as it comes; what is left is given to :meth:`collect`.

        A round's replies are kept until all have come. A stage that puts their payloads elsewhere, such as
        in a file, needs no memory for them. By default a reply stays as it is.

        Args:
            reply: of an invited node; not an error.
            instruction: the round's.
            dim: length of the vector that a client reports.
        """
        del instruction, dim
        return reply

    @abstractmethod
    def collect(self, replies: Replies) -> Anonymous:
        """Shuffle one round's replies, and give back their reports or their sum, or why there are none."""
