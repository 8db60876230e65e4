"""Training over several processes: the optimizer, and which randomness processes must and must not share."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from opacus.optimizers import DistributedDPOptimizer
from torch import Tensor

from opacus_shuffle.errors import ShufflePrivacyError
from opacus_shuffle.optimizer import ShuffleMixin
from opacus_shuffle.samplers import seed_from
from shuffle_plugins.randomness import Randomness, SeededRandomness


def common_randomness(randomness: Randomness) -> Randomness:
    """One stream that all processes read alike, for drawing the common cohort.

    Process 0 draws its key and sends it to the others. A key of 310 bits from a cryptographic generator is as
    good as a cryptographic generator's own; whoever reads the processes' traffic reads raw data anyway.

    Args:
        randomness: this process's own randomness; process 0's is used.
    """
    key = [seed_from(randomness)]
    torch.distributed.broadcast_object_list(key, src=0)
    return SeededRandomness(key[0])


def require_distinct_streams(randomness: Randomness) -> None:
    """Check that no two processes would toss the same coins for their samples.

    Raises:
        ShufflePrivacyError: if two processes draw the same number; on all processes.
    """
    drawn = randomness.integers(1 << 62, (1,), device="cpu").item()
    everyone: list[int | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, drawn)
    if len(set(everyone)) != len(everyone):
        raise ShufflePrivacyError(
            "processes share a stream of coins, so their reports would not be independent: give each process "
            "a SeededRandomness of its own seed (or leave randomness out)"
        )


class DistributedShuffleDPOptimizer(ShuffleMixin, DistributedDPOptimizer):  # type: ignore[misc]
    """The same over several processes: each randomises its part of one common cohort, the sums are reduced.

    The coins of a vector sum are tossed by process 0, once for the clients of all processes, and whole
    numbers are reduced: the result has the law of one process's, whatever their number.

    Before a round is recorded the processes agree on its total size and that none of them refuses it; if one
    does, all raise.
    """

    _agreed = False

    @staticmethod
    def _num_processes() -> int:
        return int(torch.distributed.get_world_size())

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """As in :class:`ShuffleMixin`; a refusal here makes the other processes refuse too."""
        self._agreed = False
        try:
            return super().pre_step(closure)
        except Exception:
            if not self._agreed:
                self._agree(refused=True)
            raise

    def _count_received(self) -> int:
        votes = self._agree(refused=False)
        if any(vote[1] for vote in votes):
            raise ShufflePrivacyError("another process refused this round; its own error says why")
        if len({vote[2] for vote in votes}) > 1:
            raise ShufflePrivacyError(
                "the processes disagree on the round: give all of them the whole data set, and the same "
                "batch size, randomizer, local_epsilon and sampling; iterate over the loader and skip "
                "batches in all of them alike, and evaluate on a loader of its own"
            )
        return sum(vote[0] for vote in votes)

    def _estimate(self, total: Tensor, *, received: int) -> Tensor:
        if torch.distributed.get_rank() == 0:
            total = self._with_common_noise(total)
        if not self.mechanism.must_be_summed:
            return self._sum.estimate(total, reports=self._received)
        total = total.to(self.params[0].device)
        torch.distributed.all_reduce(total)
        # Every process has the whole sum; Opacus adds up what the processes have.
        return self._sum.estimate(total, reports=received) / self._num_processes()

    def _sum_of_processes(self, number: Tensor) -> float:
        own = number.detach().reshape(1).to(device=self.params[0].device, dtype=torch.float32)
        parts = [torch.empty_like(own) for _ in range(self._num_processes())]
        torch.distributed.all_gather(parts, own)
        return math.fsum(part.item() for part in parts)  # the same in every process, to the last bit

    def _agree(self, *, refused: bool) -> list[list[int]]:
        """Each process's (gradients received, refusal, checksum of its round and of the records drawn)."""
        drawn = None if self._batch is None else self._batch.checksum
        checksum = zlib.crc32(repr((self.round.state(), self.mechanism.radius, drawn)).encode())
        own = torch.tensor(
            [self._received, int(refused), checksum], dtype=torch.int64, device=self.params[0].device
        )
        votes = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(votes, own)
        self._agreed = True
        return [vote.tolist() for vote in votes]
