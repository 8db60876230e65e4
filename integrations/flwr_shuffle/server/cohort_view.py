"""What an inner strategy sees of a grid while it configures a round: the drawn cohort, all of it there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.app import Message, RecordDict

# Flower has no public address for these two.
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

_MOST_READS = 10


class WrongRecipients(ValueError):
    """The inner strategy does not send to exactly the cohort that was drawn and is accounted for."""


def cohort_advice(cohort: int) -> str:
    """What to do about a strategy that samples on its own."""
    return (
        f"the cohort of {cohort} is drawn by ShuffleStrategy, and the inner strategy must send to all of it: "
        "give it fraction_train=1.0, and min_train_nodes and min_available_nodes of at most the cohort"
    )


class CohortView(Grid):
    """Another grid, on which no nodes but the cohort are connected.

    Flower's strategies wait until enough nodes are connected. Here there will be no more, so a strategy that
    keeps looking is stopped.
    """

    def __init__(self, grid: Grid, *, cohort: Sequence[int]) -> None:
        self._grid = grid
        self._cohort = list(cohort)
        self._reads = 0

    def set_run(self, run: Run) -> None:
        """Passed on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The other grid's."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node, as ``flwr.app.Message`` makes it."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The cohort.

        Raises:
            WrongRecipients: if asked again and again, as by a strategy that waits for more nodes.
        """
        self._reads += 1
        if self._reads > _MOST_READS:
            raise WrongRecipients(
                f"the inner strategy waits for more nodes; {cohort_advice(len(self._cohort))}"
            )
        return list(self._cohort)

    def get_nodes(self) -> list[NodeInfo]:
        """The cohort."""
        cohort = set(self._cohort)
        return [node for node in self._grid.get_nodes() if node.node_id in cohort]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Passed on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Passed on."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Passed on."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def check_minimums(strategy: object, *, cohort: int) -> None:
    """Refuse a strategy of Flower's whose minimums the cohort cannot meet, before it waits for them.

    Raises:
        WrongRecipients: if ``min_train_nodes`` or ``min_available_nodes`` exceeds the cohort.
    """
    for name in ("min_train_nodes", "min_available_nodes"):
        least = getattr(strategy, name, 0)
        if isinstance(least, int) and least > cohort:
            raise WrongRecipients(f"the inner strategy has {name}={least}; {cohort_advice(cohort)}")


def check_messages(messages: Sequence[Message], *, cohort: Sequence[int]) -> None:
    """Refuse messages that do not go to exactly the cohort, once each.

    Raises:
        WrongRecipients: if they do not.
    """
    asked = sorted(message.metadata.dst_node_id for message in messages)
    if asked != sorted(cohort):
        raise WrongRecipients(f"the inner strategy sends {len(asked)} messages; {cohort_advice(len(cohort))}")
