"""The clients of a round: waiting until enough are connected, and showing a strategy those drawn."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from flwr.app import Message
from flwr.proto.node_pb2 import NodeInfo  # Flower has no public address for what Grid.get_nodes returns
from flwr.serverapp import Grid

from flwr_shuffle.in_process import InProcessGrid
from flwr_shuffle.wrapped_grid import WrappedGrid, innermost

_log = logging.getLogger("flwr")

_MENTION_EVERY = 10.0  # seconds between two lines about progress
_SIMULATION_SETTLES = 3.0  # seconds after which a simulation gets no more nodes
_LONGEST_HEARTBEAT = 86_400.0  # seconds; a SuperNode's is half an hour at most, a simulated node's is ages
_MOST_READS = 10  # a strategy that looks more often at who is connected waits for more nodes


class WrongRecipients(ValueError):
    """The inner strategy does not send to exactly the cohort that was drawn and is accounted for."""


def connected(
    grid: Grid,
    *,
    needed: int,
    enough: int,
    timeout: float,
    poll_interval: float,
    settling: float = _SIMULATION_SETTLES,
) -> list[int]:
    """Wait until ``needed`` nodes are connected; their ids in ascending order.

    If they are fewer after ``timeout`` seconds, and ``enough``, a warning says so and they are returned.

    Progress is logged every ten seconds. A simulation has as many clients as it was started with: once their
    number has not changed for ``settling`` seconds, no more are waited for. Its nodes are recognised by their
    heartbeats, which in Flower's simulations are never due. An :class:`InProcessGrid` with fewer nodes than
    are needed is not waited for at all.

    Raises:
        TimeoutError: if there are fewer than ``enough`` after ``timeout`` seconds.
    """
    inner = innermost(grid)
    if isinstance(inner, InProcessGrid) and inner.num_nodes < needed:
        nodes = sorted(set(grid.get_node_ids()))
        raise TimeoutError(
            f"{len(nodes)} clients are connected, {needed} are needed (population), and an "
            f"InProcessGrid gets no more than it was made with. Make it with more, InProcessGrid(app, "
            f"num_nodes={needed}), or ask for fewer with a smaller population and cohort"
        )
    begun = changed = time.monotonic()
    mention = begun
    before = -1
    while len(nodes := sorted(set(grid.get_node_ids()))) < needed:
        now = time.monotonic()
        if len(nodes) != before:
            before, changed = len(nodes), now
        if nodes and now - changed >= min(settling, timeout) and is_simulation(grid.get_nodes()):
            raise TimeoutError(
                f"{len(nodes)} clients are connected, {needed} are needed (population), and a simulation "
                "gets no more than it was started with. Start it with more, flwr run . --federation-config "
                f"'num-supernodes={needed}' or run_simulation(num_supernodes={needed}), or ask for fewer "
                "with a smaller population and cohort"
            )
        if now - begun >= timeout and len(nodes) >= enough:
            _log.warning(
                "%d clients are connected, %d are wanted, after the %g s of connect_timeout: the run goes on "
                "with those there are, as long as they are %d. The fewer, the less they hide each other",
                len(nodes),
                needed,
                timeout,
                enough,
            )
            return nodes
        if now - begun >= timeout:
            raise TimeoutError(
                f"{len(nodes)} clients are connected, {needed} are needed (population); start more, or "
                f"wait longer than the {timeout:g} s of connect_timeout"
            )
        if now >= mention:
            mention = now + _MENTION_EVERY
            _log.info(
                "Waiting for clients: %d of %d connected, %.0f of %g s (connect_timeout)",
                len(nodes),
                needed,
                now - begun,
                timeout,
            )
        time.sleep(poll_interval)
    return nodes


def is_simulation(nodes: Iterable[NodeInfo]) -> bool:
    """Whether these are nodes of Flower's simulation, whose heartbeats are not due within a day."""
    intervals = [node.heartbeat_interval for node in nodes]
    return bool(intervals) and min(intervals) > _LONGEST_HEARTBEAT


class CohortView(WrappedGrid):
    """Another grid as if only the cohort were connected, for an inner strategy that configures a round.

    Flower's strategies wait until enough nodes are connected. Here there will be no more, so a strategy that
    keeps looking is stopped.

    Args:
        grid: any Flower grid.
        cohort: ids of the nodes to show.
    """

    def __init__(self, grid: Grid, *, cohort: Sequence[int]) -> None:
        super().__init__(grid)
        self._cohort = list(cohort)
        self._reads = 0

    def get_node_ids(self) -> list[int]:
        """The cohort's ids.

        Raises:
            WrongRecipients: if asked again and again, as by a strategy that waits for more nodes.
        """
        self._reads += 1
        if self._reads > _MOST_READS:
            raise WrongRecipients(f"the inner strategy waits for more nodes; {_advice(len(self._cohort))}")
        return list(self._cohort)


def check_minimums(strategy: object, *, cohort: int) -> None:
    """Refuse a strategy of Flower's whose minimums the cohort cannot meet, before it waits for them.

    Raises:
        WrongRecipients: if ``min_train_nodes`` or ``min_available_nodes`` exceeds the cohort.
    """
    for name in ("min_train_nodes", "min_available_nodes"):
        least = getattr(strategy, name, 0)
        if isinstance(least, int) and least > cohort:
            raise WrongRecipients(f"the inner strategy has {name}={least}; {_advice(cohort)}")


def check_messages(messages: Sequence[Message], *, cohort: Sequence[int]) -> None:
    """Refuse messages that do not go to exactly the cohort, once each.

    Raises:
        WrongRecipients: if they do not.
    """
    asked = sorted(message.metadata.dst_node_id for message in messages)
    if asked != sorted(cohort):
        raise WrongRecipients(f"the inner strategy sends {len(asked)} messages; {_advice(len(cohort))}")


def _advice(cohort: int) -> str:
    return (
        f"the cohort of {cohort} is drawn by ShuffleStrategy, and the inner strategy must send to all of it: "
        "give it fraction_train=1.0, and min_train_nodes and min_available_nodes of at most the cohort"
    )
