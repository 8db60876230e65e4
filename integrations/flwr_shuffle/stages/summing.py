"""The stage of multi-message sums: counts go in, their sum comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_shuffle.messages import Instruction
from flwr_shuffle.stages.base import Anonymous, InMemoryStage, Total
from flwr_shuffle.stages.valid_reports import valid_sum
from shuffle_plugins.shuffler.errors import Refusal
from shuffle_plugins.shuffler.memory import InMemoryShuffler


class SummingStage(InMemoryStage):
    """Adds up the clients' counts in the server's own process, and hands on nothing but the sum.

    The sum is all that shuffled messages of a multi-message protocol say. Until it is made, a client's counts
    protect nobody: this process must be trusted with them, as with a secure aggregation it stands for.

    Args:
        minimum: fewest reports that are added up, at least 2. The strategy asks for as many as the protocol's
            noise was made for.
    """

    def __init__(self, *, minimum: int = 2) -> None:
        super().__init__(InMemoryShuffler(minimum=minimum))

    @property
    def trust(self) -> str:
        """One sentence: who must be trusted for the sum to be all that is seen."""
        return "this server process adds up the clients' counts and must be trusted with each of them"

    @property
    def adds_up(self) -> bool:
        """True."""
        return True

    def collect(
        self,
        replies: Sequence[Message],
        *,
        instruction: Instruction,
        dim: int,
        grid: Grid,
        timeout: float | None,
    ) -> Anonymous:
        """Add up the counts; see :meth:`ShuffleStage.collect`. Impossible counts are left out."""
        shuffled = super().collect(replies, instruction=instruction, dim=dim, grid=grid, timeout=timeout)
        if shuffled.reports is None:
            return shuffled
        total, count = valid_sum(instruction.mechanism.build(dim=dim), shuffled.reports)
        left_out = len(shuffled.reports) - count
        enough = count >= max(self.minimum, self.needed.reports)
        return replace(
            shuffled,
            reports=None,
            answered=shuffled.answered - left_out,
            unreadable=shuffled.unreadable + left_out,
            total=Total(sum=total, reports=count) if enough else None,
            refusal=None if enough else Refusal.UNDER_MINIMUM,
        )
