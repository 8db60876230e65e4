"""Waiting for enough clients, and not for those that cannot come."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from flwr.proto.node_pb2 import NodeInfo  # Flower has no public address for what Grid.get_nodes returns
from flwr.serverapp import Grid

_log = logging.getLogger("flwr")

_MENTION_EVERY = 10.0
_SIMULATION_SETTLES = 3.0
_LONGEST_HEARTBEAT = 86_400.0


def connected(
    grid: Grid,
    *,
    needed: int,
    timeout: float,
    poll_interval: float,
    settling: float = _SIMULATION_SETTLES,
) -> list[int]:
    """One look at who is connected, in ascending order of node ids, once they are enough.

    A deployment is given ``timeout`` seconds, with a line about progress every ten. A simulation has as many
    clients as it was started with: once their number has not changed for ``settling`` seconds, no more come.
    Its nodes are told by their heartbeats, which in Flower's simulations never become due.

    Raises:
        TimeoutError: if there are not enough.
    """
    begun = changed = time.monotonic()
    mention = begun
    before = -1
    while len(nodes := sorted(set(grid.get_node_ids()))) < needed:
        now = time.monotonic()
        if len(nodes) != before:
            before, changed = len(nodes), now
        if nodes and now - changed >= min(settling, timeout) and _simulated(grid.get_nodes()):
            raise TimeoutError(
                f"{len(nodes)} clients are connected, {needed} are needed (population), and a simulation "
                "gets no more than it was started with. Start it with more, flwr run . --federation-config "
                f"'num-supernodes={needed}' or run_simulation(num_supernodes={needed}), or ask for fewer "
                "with a smaller population and cohort"
            )
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


def _simulated(nodes: Iterable[NodeInfo]) -> bool:
    """Whether these are nodes of Flower's simulation: their heartbeats are due in ages, a SuperNode's in
    half an hour at most."""
    intervals = [node.heartbeat_interval for node in nodes]
    return bool(intervals) and min(intervals) > _LONGEST_HEARTBEAT
