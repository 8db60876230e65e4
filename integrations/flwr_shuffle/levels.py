"""Levels of ε0 among which clients choose by their limits, and a grid for those who take each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from typing_extensions import override

from flwr_shuffle.grids import ShuffleGrid, WrappedGrid, arriving
from flwr_shuffle.messages import LEVELS_KEY
from shuffle_plugins.core import checks

_log = logging.getLogger("flwr")


class GroupGrid(WrappedGrid):
    """The nodes of another grid that are in one group: a strategy on it draws from these alone."""

    def __init__(self, grid: Grid, *, members: Sequence[int]) -> None:
        if isinstance(grid, ShuffleGrid):
            raise ValueError("give the plain grid: the strategy of a group makes its own ShuffleGrid")
        super().__init__(grid)
        self.members = frozenset(members)

    @override
    def get_node_ids(self) -> list[int]:
        return [node for node in self._grid.get_node_ids() if node in self.members]


def grids_by_level(
    grid: Grid, levels: Sequence[float], *, timeout: float | None = 60.0
) -> dict[float, GroupGrid]:
    """Ask every client which of the offered ε0 is the largest that its limits allow; a grid for each group.

    A ``ShuffleMod`` answers by its limits alone, which do not follow from its data: who is in which group is
    public. Nothing is trained and nothing spent, and what a client takes part in is still checked against
    its limits each time. Clients that allow none of the levels, or do not answer, are in no group.

    Train each group by a :class:`ShuffleStrategy` of its level on its grid, with a population and a ledger
    of its own: its members are hidden among themselves, as the server knows who is in which group.

    Args:
        levels: values of ε0.
        timeout: seconds to wait for answers; None for ever.

    Raises:
        ValueError: if there is no level, or one is out of range.
    """
    offered = sorted({checks.local_epsilon(level, name="levels") for level in levels})
    if not offered:
        raise ValueError("offer at least one level")
    asked = RecordDict({LEVELS_KEY: ConfigRecord({"levels": offered})})
    sent = [Message(asked, node, MessageType.TRAIN) for node in grid.get_node_ids()]
    groups: dict[float, list[int]] = {level: [] for level in offered}
    silent = len(sent)
    for reply in arriving(grid, sent, timeout=timeout):
        record = reply.content.get(LEVELS_KEY) if reply.has_content() else None
        taken = record.get("level") if isinstance(record, ConfigRecord) else None
        if isinstance(taken, float) and taken in groups:
            groups[taken].append(reply.metadata.src_node_id)
            silent -= 1
    told = ", ".join(f"{len(nodes)} at local_epsilon={level:g}" for level, nodes in groups.items())
    _log.info("levels: %s; %d nodes take none", told, silent)
    return {level: GroupGrid(grid, members=nodes) for level, nodes in groups.items()}
