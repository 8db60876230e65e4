"""Public random indices: which coefficient the client at each position of a round is asked about."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.compressors import public_random_bytes
from shuffle_plugins.core import checks
from shuffle_plugins.core.lazy_torch import Tensor, torch

_WORD = 8  # bytes from which an index is drawn
_LAST_POSITION = 1 << 40  # more clients than any round has


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicIndices:
    """Indices that everybody derives from a public seed and a client's position in the round.

    They depend on the purpose, the seed and the position alone, and not on how a round is cut into batches.

    Attributes:
        purpose: what they are for: other purposes have other indices.
        seed: any whole number; None where clients draw indices of their own, and there are no public ones.
        position: of the first client of a batch in the round, in [0, 2**40]; 0 without a seed.
    """

    purpose: str
    seed: int | None
    position: int

    def __post_init__(self) -> None:
        checks.whole("position", self.position, at_least=0, at_most=_LAST_POSITION)
        if self.seed is not None:
            checks.whole("public_seed", self.seed, at_least=-math.inf)
        elif self.position:
            raise ValueError("position has a meaning only with public_seed")

    def of(self, clients: int, *, highs: Tensor, device: torch.device) -> Tensor:
        """Indices below ``highs`` of the clients at ``position``, ``position + 1``, …, (clients, count).

        Uniform up to 2**-62·high, exactly so for powers of two. Time and memory grow with ``position +
        clients``.

        Args:
            clients: number of clients.
            highs: int64 (count,), positive.
            device: where the result goes.
        """
        assert self.seed is not None
        count = len(highs)
        start, end = (at * count * _WORD for at in (self.position, self.position + clients))
        data = public_random_bytes(f"{self.purpose} indices", seed=self.seed, count=end)
        words = np.frombuffer(data, dtype="<u8", offset=start) >> np.uint64(2)
        drawn = torch.from_numpy(words.astype(np.int64)).view(clients, count)
        return drawn.remainder_(highs.to("cpu")).to(device)
