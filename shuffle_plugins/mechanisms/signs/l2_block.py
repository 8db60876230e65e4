"""One block of Kashin coefficients of a vector in an l2 ball, sent as a pattern of signs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.signs.coefficients import (
    CoefficientRandomizer,
    Oversized,
    best_signs,
    patterns_blanket,
)
from shuffle_plugins.mechanisms.signs.public_indices import PublicIndices
from shuffle_plugins.mechanisms.signs.representations import Frame
from shuffle_plugins.mechanisms.signs.sign_blocks import SignBlockRandomizer, SignBlocks, report_bits
from shuffle_plugins.mechanisms.signs.sign_patterns import MAX_SIGNS, cap_parameters
from shuffle_plugins.randomness import Randomness

_CHUNK_ENTRIES = 1 << 20  # overlaps handled at a time


class L2Block(SignBlockRandomizer, CoefficientRandomizer):
    r"""``sqkr`` with its k coefficients side by side: one place instead of k.

    A row is represented by D coefficients of absolute value at most r_inf = level·r/√D. A client draws one of
    B = ceil(D/k) blocks of k neighbouring coefficients uniformly, rounds them to signs of mean c_j/r_inf, and
    sends the block and the pattern, which is likelier by e^ε0 where it agrees with the rounded one in at
    least t places (``sign_patterns``). With P the reconstruction, c_b the coefficients of block b and
    :math:`ρ = E[y_1 y_2]` for a pattern y about all-plus signs,

    .. math:: E\|R(x) - x\|^2 = \frac{d}{D} \frac{r_{inf}^2 B D}{g^2} - \|x\|^2
              + \frac{B ρ}{g^2} \sum_b \Big(\|P c_b\|^2 - \frac{d}{D}\|c_b\|^2\Big).

    The last term, from pairs of neighbours, is zero for an isometry and small for the frames used, whose
    columns are nearly orthogonal. So this is the variance of ``sqkr`` at (k - 1)·log2(D/k) bits less: a
    report takes ceil(log2 B) + k bits, 17 for ε0 = 4 and 13,706 numbers. k is the best for ε0 by default, up
    to 20.

    With ``public_seed`` the client at each position of the round is told its block, and a report is the
    pattern alone, k bits. The analyzer must then know whose report it is: reports cannot be shuffled, each
    costs ε0, and ``sum`` reads them in order, the first being that of the client at ``position``. Estimates
    are unbiased over the seed; take a new one for every round, drawn after the data are fixed.

    With ``frame="rotation"`` encoding takes one pass over a row instead of several transforms (in Opacus, 2.1
    to 2.5 times Opacus's own step instead of 20 to 28 times), reports are as short, the level is
    larger (:class:`~.Oversized`), and a coefficient that passes
    it is clipped, with a bias: see ``l2-bit-planes``. With a Kashin frame nothing is ever clipped, but
    a few vectors are sent as shorter ones: those close to one column of the frame, which are made from the
    seed, and some of those with a few equal numbers and zeros (:class:`~.KashinFrame`, ``stretch``).

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest l2 norm.
        signs: k, in [1, min(d, 20)].
        max_bits: most bits of a report; no limit by default.
        frame: ``"kashin"`` or ``"rotation"``.
        seed: whole number that fixes frame or rotation; public, the same for all.
        public_seed: whole number from which all derive the blocks; private blocks by default.
        position: with ``public_seed``, the place in the round of the first row, or report, of a batch.
        level: r_inf·√D/r; by default the Kashin frame's own, or by what follows.
        oversized: ``"clip"``, ``"balance"`` or ``"bound"``, for a rotation.
        clients: reports in a round, for a rotation's level.
        failure: how likely a round may be clipped, for a rotation's level.

    Raises:
        ValueError: if a parameter is out of range, or a report cannot have so few bits.
    """

    name: ClassVar[str] = "l2-block"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        signs: int | None = None,
        max_bits: int | None = None,
        frame: Frame | str = Frame.KASHIN,
        seed: int = 0,
        public_seed: int | None = None,
        position: int = 0,
        level: float | None = None,
        oversized: Oversized | str = Oversized.CLIP,
        clients: int = 10_000,
        failure: float = 1e-6,
    ) -> None:
        super().__init__(
            local_epsilon=local_epsilon, dim=dim, radius=radius, frame=frame, seed=seed, level=level
        )
        self._public = PublicIndices(purpose=self.name, seed=public_seed, position=position)
        self._blocks = self._choose_blocks(signs, max_bits)
        noise = self._second_moment / self._representation.size
        self._level = self._choose_level(Oversized(oversized), clients=clients, failure=failure, noise=noise)

    @property
    def shufflable(self) -> bool:
        """Whether blocks are private and so part of the report."""
        return self._public.seed is None

    @property
    def signs(self) -> int:
        """k, signs per report."""
        return self._blocks.cap.signs

    def blanket(self) -> Blanket:
        """The cap's blanket, as a bound, and what a report tells, as no vector is extreme everywhere."""
        whole = (self._representation.size // self.signs) / self._blocks.blocks
        return patterns_blanket(
            local_epsilon=self.local_epsilon,
            signs=self.signs,
            level=self.level,
            square=self._mean_square,
            whole=whole,
        )

    def _choose_blocks(self, signs: int | None, max_bits: int | None) -> SignBlocks:
        size, most = self._representation.size, min(self.dim, MAX_SIGNS)
        if max_bits is not None:
            checks.whole("max_bits", max_bits)
        allowed = [k for k in range(1, most + 1) if max_bits is None or self._bits(k) <= max_bits]
        if not allowed:
            raise ValueError(
                f"a report takes at least {min(map(self._bits, range(1, most + 1)))} bits, "
                f"got max_bits={max_bits}"
            )
        if signs is None:
            signs = best_signs(local_epsilon=self.local_epsilon, dim=self.dim, among=tuple(allowed))
        if type(signs) is not int or signs not in allowed:
            raise ValueError(f"signs must be one of {allowed} within max_bits={max_bits}, got {signs!r}")
        cap = cap_parameters(local_epsilon=self.local_epsilon, signs=signs)
        return SignBlocks(dim=size, cap=cap, public=not self.shufflable)

    def _bits(self, signs: int) -> int:
        return report_bits(dim=self._representation.size, signs=signs) if self.shufflable else signs

    @property
    def _second_moment(self) -> float:
        """E‖R(x)‖² in units of r_inf², less what pairs of neighbours add."""
        coefficients = self._representation.size * self._blocks.coordinate_second_moment
        return coefficients * self._representation.column_square

    @property
    def _pair_factor(self) -> float:
        """B·ρ/g², by which inner products of neighbours add to the variance."""
        return self._blocks.coordinate_second_moment * self._blocks.cap.pair_moment

    @property
    def _worst_spread_variance(self) -> float:
        largest = max(float(np.linalg.eigvalsh(part).max()) for _, part in self._neighbour_overlaps())
        pairs = self._pair_factor * self._representation.size * max(0.0, largest)
        return self.coefficient_radius**2 * (self._second_moment + pairs)

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        norms = self._representation.reconstruct(coefficients).square().sum(dim=1)
        blocks, signs = self._blocks.blocks, self.signs
        cut = torch.nn.functional.pad(coefficients, (0, blocks * signs - self._representation.size)).view(
            -1, blocks, signs
        )
        pairs = torch.zeros_like(norms)
        for some, overlaps in self._neighbour_overlaps():
            part = cut[:, some]
            pairs += torch.einsum("nbi,bij,nbj->n", part, torch.from_numpy(overlaps).to(part.device), part)
        return self.coefficient_radius**2 * self._second_moment - norms + self._pair_factor * pairs

    def _neighbour_overlaps(self) -> Iterator[tuple[slice, NDArray[np.float64]]]:
        """Some blocks, and inner products of the columns of each, (blocks, k, k), without the diagonal."""
        overlaps = self._representation.overlaps()
        step = max(1, _CHUNK_ENTRIES // self.signs**2)
        for start in range(0, self._blocks.blocks, step):
            some = slice(start, min(start + step, self._blocks.blocks))
            columns = np.arange(some.start, some.stop)[:, None] * self.signs + np.arange(self.signs)
            beyond = columns >= self._representation.size
            both = columns[:, :, None] ^ columns[:, None, :]
            alone = beyond[:, :, None] | beyond[:, None, :] | (both == 0)
            yield some, np.where(alone, 0.0, overlaps[np.where(alone, 0, both)])

    def _chosen(self, x: Rows, randomness: Randomness) -> Tensor:
        public = not self.shufflable
        return self._public_blocks(x.num_rows, x.device) if public else super()._chosen(x, randomness)

    def _public_blocks(self, clients: int, device: torch.device) -> Tensor:
        return self._public.of(clients, highs=torch.tensor([self._blocks.blocks]), device=device).squeeze(1)

    def _parse(self, reports: Reports) -> tuple[Tensor, ...]:
        read = super()._parse(reports)
        return read if self.shufflable else (self._public_blocks(len(reports), read[0].device), *read)
