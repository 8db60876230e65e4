"""An l2 ball, spread evenly over coefficients, then bit planes of sampled ones."""

from __future__ import annotations

from typing import ClassVar

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.compressors import Rotation
from shuffle_plugins.core.lazy_torch import Tensor
from shuffle_plugins.mechanisms.signs.bit_planes import (
    BitPlaneRandomizer,
    BitPlanes,
    best_plan,
    sampled_blanket,
)
from shuffle_plugins.mechanisms.signs.coefficients import (
    CoefficientRandomizer,
    Oversized,
    aligned_records,
    flat_lean,
)
from shuffle_plugins.mechanisms.signs.randomized_response import Constants
from shuffle_plugins.mechanisms.signs.representations import Frame


class L2BitPlanes(BitPlaneRandomizer, CoefficientRandomizer):
    r"""R^ℓ2_{v,m,s} of Girgis's thesis (Algorithms 3.6.1 and 3.6.2) with exact ε0.

    A row x is represented by D coefficients w, public and linear (the randomised rotation
    :math:`w = H\,\mathrm{diag}(±1)\,x/\sqrt D` of the zero-padded row, or a Kashin frame), which go through
    ``linf-bit-planes`` on [-r_inf, r_inf]^D. Only sampled coefficients are computed. The server sums signs
    and transforms back once.

    **Bias.** A coefficient beyond r_inf is clipped, and only then is the estimate biased.
    r_inf = level·r/√D, and ``oversized`` says how the level is chosen:

    - ``"clip"`` (default): √(2 log(2Dn/β)). For vectors chosen before the seed, nothing is clipped in a round
      of n = ``clients`` clients but with probability β = ``failure``. A vector made for the seed, a row of
      the rotation, say, is clipped and biased whatever the level. Up to D = 47 or so, r_inf = r.
    - ``"balance"``: less variance for a small bias in every round, for about n = ``clients`` clients.
    - ``"bound"``: r_inf = r, unbiased for every vector, at D/level² times the variance.

    :meth:`clipping_bias` is the bias of given rows, exactly; :meth:`variance` includes its square.
    With ``frame="kashin"`` no coefficient is ever beyond the frame's level, about 2, so the estimate is
    unbiased and varies far less; encoding takes several transforms of every row. Only a vector made from the
    seed, close to one column of the frame, is sent as a shorter one.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest l2 norm.
        levels: m, in [1, 32]; by default, with ``samples``, of least worst variance.
        samples: s, coefficients sent per level, in [1, D].
        frame: ``"rotation"`` or ``"kashin"``.
        seed: whole number that fixes rotation or frame. It is public and all must use the same; draw a new
        one
            where somebody might have chosen vectors for it.
        level: r_inf·√D/r, instead of what follows; for a Kashin frame, that frame's own level.
        oversized: ``"clip"``, ``"balance"`` or ``"bound"``; no matter with a Kashin frame.
        clients: n, reports in a round; for the level alone.
        failure: β, in (0, 1); for the level alone.
        constants: ``"exact"``, or ``"thesis"`` for the printed ones: also 10·√(log(Dn/β)) for the level.
    """

    name: ClassVar[str] = "l2-bit-planes"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        levels: int | None = None,
        samples: int | None = None,
        frame: Frame | str = Frame.ROTATION,
        seed: int = 0,
        level: float | None = None,
        oversized: Oversized | str = Oversized.CLIP,
        clients: int = 10_000,
        failure: float = 1e-6,
        constants: Constants | str = Constants.EXACT,
    ) -> None:
        super().__init__(
            local_epsilon=local_epsilon, dim=dim, radius=radius, frame=frame, seed=seed, level=level
        )
        constants = Constants(constants)
        size = self._representation.size
        plan = best_plan(
            local_epsilon=self.local_epsilon, dim=size, levels=levels, samples=samples, constants=constants
        )
        self._planes = BitPlanes.within(self.local_epsilon, dim=size, plan=plan, constants=constants)
        noise = self._planes.worst_second_moment * self._representation.column_square / size
        self._level = self._choose_level(
            Oversized(oversized),
            clients=clients,
            failure=failure,
            noise=noise,
            thesis=constants is Constants.THESIS,
        )

    def blanket(self) -> Blanket:
        """A bound: no vector is extreme in all its coefficients. Some have many that are all of one size."""
        return sampled_blanket(
            local_epsilon=self.local_epsilon,
            plan=self.plan,
            constants=self._planes.constants,
            records=self._records,
            square=self._mean_square,
        )

    @property
    def _records(self) -> tuple[tuple[float, float], ...]:
        if isinstance(self._representation, Rotation):
            return aligned_records(level=self.level, dim=self.dim)
        return ((flat_lean(self.level), 1.0),)

    @property
    def _worst_spread_variance(self) -> float:
        if self._representation.isometric:
            return self.coefficient_radius**2 * self._planes.worst_variance
        return (
            self.coefficient_radius**2 * self._representation.column_square * self._planes.worst_second_moment
        )

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        if self._representation.isometric:
            scaled = coefficients / self.coefficient_radius
            return self.coefficient_radius**2 * self._planes.variance(scaled)
        lengths = self._planes.blocks.lengths().tolist()
        total = coefficients.new_zeros(len(coefficients))
        for means, second_moments in self._planes.moments(coefficients / self.coefficient_radius):
            total += second_moments.sum(dim=1) * self._representation.column_square
            total -= self._blockwise_squares(means, lengths)
        return total * self.coefficient_radius**2
