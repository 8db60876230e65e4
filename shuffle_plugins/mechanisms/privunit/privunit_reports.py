r"""PrivUnit's reports one by one: the few numbers that fix a report, then a dense vector for each.

A report is :math:`V = αu + \sqrt{1-α^2}\,h/‖h‖` with h a normal vector without its part along a unit vector
u. Where V leans towards the client's direction, u is that direction and α comes from the cap. Where V is
uniform on the sphere, u is the same public vector for everybody and α has the law of one coordinate: V is
uniform, does not depend on the client, and comes out of the very same operations, so their rounding does not
tell the two kinds apart. All of it is done in float64; V is rounded to float32 once, at the end, which hides
the grid of the normal values (see :meth:`~shuffle_plugins.randomness.Randomness.normal`).
"""

from __future__ import annotations

from dataclasses import dataclass

from shuffle_plugins.core import Rows, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.privunit.sphere import cap_coordinate
from shuffle_plugins.randomness import Randomness

_CHUNK_VALUES = 1 << 19
"""Values handled together on a CPU: what float64 takes beyond the reports does not grow with their number."""


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

    At dim 1 nothing is left of h, and α is ±1.

    Args:
        x: (clients, dim).
        norms: l2 norms of the rows, (clients,); a row of norm zero must be ``uniform``.
        draws: as above.
        randomness: source of the directions.
    """
    reports = torch.empty(x.num_rows, x.dim, dtype=torch.float32, device=x.device)
    step = rows_at_once(x.dim, device=x.device, entries=_CHUNK_VALUES)
    for start in range(0, x.num_rows, step):
        stop = min(start + step, x.num_rows)
        part = draws.narrow(start, stop)
        reports[start:stop] = _dense_chunk(
            x.narrow(start, stop), norms[start:stop], draws=part, randomness=randomness
        )
    return reports


def _dense_chunk(x: Rows, norms: Tensor, *, draws: Draws, randomness: Randomness) -> Tensor:
    leaning = (~draws.uniform).unsqueeze(1)
    along = torch.where(leaning, draws.along.unsqueeze(1), _coordinate(x.num_rows, x.dim, randomness))
    leaning, along = leaning.to(x.device), along.to(x.device)
    scale = torch.where(leaning, norms.double().unsqueeze(1), 1.0)
    directions = x.dense().to(torch.float64, copy=True).div_(scale).masked_fill_(~leaning, x.dim**-0.5)
    directions.div_(_lengths(directions))
    vectors = randomness.normal((x.num_rows, x.dim), dtype=torch.float64, device=x.device)
    vectors.addcmul_(directions, torch.linalg.vecdot(vectors, directions).unsqueeze(1), value=-1)
    vectors.mul_((1 - along.square()).clamp_(min=0).sqrt_() / _lengths(vectors))
    return vectors.addcmul_(directions, along).float()


def _coordinate(count: int, dim: int, randomness: Randomness) -> Tensor:
    """One coordinate of each of ``count`` uniform points of the sphere, (count, 1) float64.

    As fine however far out: a cap of any measure is reached by uniform points too.
    """
    tail = randomness.exponential((count, 1)).neg_().exp_().mul_(0.5)
    sign = randomness.bernoulli(torch.full((count, 1), 1 << 61)).double().mul_(2).sub_(1)
    return torch.from_numpy(cap_coordinate(tail.numpy(), dim=dim)).mul_(sign)


def _lengths(vectors: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return torch.where(lengths > 0, lengths, 1.0)
