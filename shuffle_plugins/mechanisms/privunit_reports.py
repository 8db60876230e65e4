"""PrivUnit's reports one by one: the few numbers that fix a report, then a dense vector for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.mechanisms.rows import Rows
from shuffle_plugins.randomness import Randomness

_CHUNK_VALUES = 1 << 21
_SMALL_DIM = 64
"""Below, a normal vector may be so nearly parallel to a direction that float32 loses the rest."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The numbers per client that fix a report up to a uniform direction, on the CPU.

    Attributes:
        along: ⟨V, x/‖x‖⟩ in [-1, 1], (clients,) float64; its sign carries the random sign of the client's
            direction. Unused where ``uniform``.
        uniform: (clients,) bool, True where V is uniform on the sphere and does not depend on x.
    """

    along: Tensor
    uniform: Tensor

    def narrow(self, start: int, stop: int) -> Draws:
        """The draws of clients start..stop."""
        return Draws(along=self.along[start:stop], uniform=self.uniform[start:stop])


def dense_reports(x: Rows, norms: Tensor, *, draws: Draws, randomness: Randomness) -> Tensor:
    """Unit vectors V, (clients, dim) float32: one normal per client and coordinate.

    V = along·u + sqrt(1 - along²)·h/‖h‖ with u = x/‖x‖ and h a normal vector without its part along u; at
    dim 1 nothing is left of h, and along is ±1.

    Args:
        x: (clients, dim).
        norms: l2 norms of the rows, (clients,); a row of norm zero must be ``uniform``.
        draws: as above.
        randomness: source of the directions.
    """
    reports = torch.empty(x.num_rows, x.dim, dtype=torch.float32, device=x.device)
    step = max(1, _CHUNK_VALUES // x.dim)
    for start in range(0, x.num_rows, step):
        stop = min(start + step, x.num_rows)
        part = draws.narrow(start, stop)
        reports[start:stop] = _dense_chunk(
            x.narrow(start, stop), norms[start:stop], draws=part, randomness=randomness
        )
    return reports


def _dense_chunk(x: Rows, norms: Tensor, *, draws: Draws, randomness: Randomness) -> Tensor:
    dtype = torch.float64 if x.dim < _SMALL_DIM else torch.float32
    leaning = (~draws.uniform).to(x.device).unsqueeze(1)
    along = torch.where(leaning.squeeze(1), draws.along.to(x.device), 0.0).to(dtype).unsqueeze(1)
    scale = torch.where(leaning, norms.unsqueeze(1), 1.0)
    directions = torch.where(leaning, x.dense().to(x.compute_dtype) / scale, 0.0).to(dtype)
    directions /= _lengths(directions)
    normals = randomness.normal((x.num_rows, x.dim), dtype=dtype, device=x.device)
    normals.addcmul_(directions, torch.linalg.vecdot(normals, directions).unsqueeze(1), value=-1)
    normals.mul_((1 - along.square()).clamp_(min=0).sqrt_() / _lengths(normals))
    return normals.addcmul_(directions, along)


def _lengths(vectors: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return torch.where(lengths > 0, lengths, 1.0)
