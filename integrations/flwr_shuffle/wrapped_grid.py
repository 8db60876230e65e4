"""What Flower's grids have in common: making messages, and passing on to another grid."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from flwr.app import Message, RecordDict

# Flower has no public address for these.
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

_PULL_INTERVAL = 3.0  # seconds, as in Flower's own grids
_AT_ONCE = 32  # replies that are pulled together


class MessageGrid(Grid):
    """A grid whose messages are made as ``flwr.app.Message`` makes them."""

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


class WrappedGrid(MessageGrid):
    """Another grid: everything passes as it is, but for what a subclass overrides.

    Args:
        grid: any Flower grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Run) -> None:
        """Set the run of the grid that is wrapped."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run of the grid that is wrapped."""
        return self._grid.run

    def get_node_ids(self) -> list[int]:
        """Ids of the other grid's nodes."""
        return list(self._grid.get_node_ids())

    def get_nodes(self) -> list[NodeInfo]:
        """Those nodes of the other grid whose ids :meth:`get_node_ids` gives."""
        shown = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in shown]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages by the other grid."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull messages from the other grid."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages by the other grid, and wait for the replies."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def innermost(grid: Grid) -> Grid:
    """The grid inside all wrappers of this package."""
    while isinstance(grid, WrappedGrid):
        grid = grid._grid
    return grid


def arriving(grid: Grid, messages: list[Message], *, timeout: float | None) -> Iterator[Message]:
    """Send messages and yield the replies as they come, where the grid is one of Flower's own.

    Flower's ``send_and_receive`` holds all replies in memory before it returns the first one. Here at most
    32 are there at once. A grid of another kind, which may do more than Flower's in its own
    ``send_and_receive``, is asked by that.
    """
    if type(grid) not in (HttpGrid, InMemoryGrid):
        yield from grid.send_and_receive(messages, timeout=timeout)
        return
    interval = grid.pull_interval if isinstance(grid, InMemoryGrid) else _PULL_INTERVAL
    waiting = dict.fromkeys(grid.push_messages(messages))
    end = None if timeout is None else time.monotonic() + timeout
    while waiting and (end is None or time.monotonic() < end):
        asked, came = iter(list(waiting)), False
        while some := list(islice(asked, _AT_ONCE)):
            for reply in grid.pull_messages(some):
                came = True
                waiting.pop(reply.metadata.reply_to_message_id, None)
                yield reply
        if waiting and not came:
            time.sleep(interval)
