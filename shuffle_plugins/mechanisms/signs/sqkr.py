"""Sampled signs of a Kashin representation of an l2 ball, sent as one pattern."""

from __future__ import annotations

import math
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES
from shuffle_plugins.mechanisms.signs.coefficients import (
    CoefficientRandomizer,
    Oversized,
    best_signs,
    drawn_square,
    patterns_blanket,
)
from shuffle_plugins.mechanisms.signs.coordinate_blocks import CoordinateBlocks
from shuffle_plugins.mechanisms.signs.public_indices import PublicIndices
from shuffle_plugins.mechanisms.signs.representations import Frame
from shuffle_plugins.mechanisms.signs.sign_patterns import (
    MAX_SIGNS,
    cap_parameters,
    pattern_likelihood,
    pattern_signs,
    round_to_patterns,
    send_patterns,
)
from shuffle_plugins.randomness import Randomness


class SQKR(CoefficientRandomizer):
    r"""Subsampled and quantised Kashin response (Chen, Kairouz, Özgür 2020), with the optimal cap.

    A row is represented by D coefficients of absolute value at most r_inf = level·r/√D, a Kashin
    representation. A client draws one coefficient from each of k blocks of them, rounds these to signs of
    mean c_j/r_inf, and sends the places and the pattern of k signs, which is likelier by e^ε0 where it agrees
    with the rounded one in at least t places (``sign_patterns``). The paper's :math:`2^k`-ary randomised
    response is t = k; the best t is never worse. A sign at a coefficient of a block of length b stands for
    ±b·r_inf/g.

    With :math:`A = \sum b^2` (D²/k if k divides D), P the reconstruction, c_B the coefficients of block B,
    and :math:`ρ = E[y_1 y_2]` for a pattern y about all-plus signs,

    .. math:: E\|R(x) - x\|^2 = \frac{d}{D} \frac{r_{inf}^2 A}{g^2} - \|x\|^2
              + \frac{ρ}{g^2} \Big(\|x\|^2 - \sum_B \|P c_B\|^2\Big).

    By default k is the best for ε0, about ε0/log 2 for large ε0 and up to 20: the order
    :math:`r^2 d / \min(ε_0, ε_0^2)` of the lower bound.

    **Bits.** Places are part of a report, k·ceil(log2 ceil(D/k)) bits, and k for the pattern. With
    ``public_seed`` the client at each position of the round is told its places, and a report is the pattern.
    The analyzer must then know whose report it is: reports cannot be shuffled, each costs ε0, and ``sum``
    reads them in order, the first being that of the client at ``position``. Estimates are unbiased over the
    seed; take a new one for every round, drawn after the data are fixed.

    For ``frame="rotation"`` see ``l2-block``.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, largest l2 norm.
        signs: k, in [1, min(d, 20)].
        frame: ``"kashin"`` or ``"rotation"``.
        seed: whole number that fixes frame or rotation; public, the same for all.
        public_seed: whole number from which all derive the places; private places by default.
        position: with ``public_seed``, the place in the round of the first row, or report, of a batch.
        level: r_inf·√D/r; by default the Kashin frame's own, or by what follows.
        oversized: ``"clip"``, ``"balance"`` or ``"bound"``, for a rotation.
        clients: reports in a round, for a rotation's level.
        failure: how likely a round may be clipped, for a rotation's level.
    """

    name: ClassVar[str] = "sqkr"

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        signs: int | None = None,
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
        if signs is None:
            signs = best_signs(local_epsilon=self.local_epsilon, dim=dim)
        checks.whole("signs", signs, at_most=min(dim, MAX_SIGNS))
        self._public = PublicIndices(purpose=self.name, seed=public_seed, position=position)
        self._cap = cap_parameters(local_epsilon=self.local_epsilon, signs=signs)
        self._blocks = CoordinateBlocks(dim=self._representation.size, count=signs)
        noise = self._second_moment / self._representation.size
        self._level = self._choose_level(Oversized(oversized), clients=clients, failure=failure, noise=noise)

    @property
    def shufflable(self) -> bool:
        """Whether places are private and so part of the report."""
        return self._public.seed is None

    @property
    def signs(self) -> int:
        """k, signs per report."""
        return self._cap.signs

    @property
    def agreements(self) -> int:
        """t, least agreements of a likely pattern."""
        return self._cap.agreements

    @property
    def layout(self) -> ReportLayout:
        """The places of the k coefficients, unless they are public, and the pattern of their k signs."""
        pattern = FieldLayout(self.signs)
        places = (FieldLayout(self._blocks.index_bits, self.signs),) if self._names_places else ()
        return ReportLayout(self.name, self.dim, (*places, pattern))

    def blanket(self) -> Blanket:
        """The cap's blanket, as a bound, and what a report tells, as no vector is extreme everywhere."""
        square = drawn_square(size=self._representation.size, signs=self.signs, square=self._mean_square)
        return patterns_blanket(
            local_epsilon=self.local_epsilon, signs=self.signs, level=self.level, square=square
        )

    @override
    def sum(self, reports: Reports) -> Tensor:
        columns, patterns = self._parse(reports)
        signs = pattern_signs(patterns, signs=self.signs)
        counts = torch.zeros(self._blocks.dim, dtype=torch.int64, device=signs.device)
        counts.index_add_(0, columns.flatten(), signs.flatten())
        totals = counts.double() * self._blocks.lengths_by_coordinate().to(counts.device)
        scale = self.coefficient_radius / self._cap.gain
        return (self._representation.reconstruct(totals) * scale).to(torch.float32)

    def outcomes(self) -> Reports | None:
        """Every pattern at every combination of places, at most 2**16; none with public places."""
        lengths = self._blocks.lengths().tolist()
        count = math.prod(lengths) << self.signs
        if not self.shufflable or count > MOST_OUTCOMES:
            return None
        rest = torch.arange(count)
        patterns, rest = rest & ((1 << self.signs) - 1), rest >> self.signs
        places = []
        for length in lengths:
            places.append(rest % length)
            rest = rest // length
        return self._reports(torch.stack(places, dim=1), patterns)

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        columns, patterns = self._parse(reports)
        law = pattern_likelihood(patterns, self._numbers_of(x)[columns], cap=self._cap).log()
        return law - float(self._blocks.lengths().double().log().sum()) if self.shufflable else law

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """Places of coefficients for each row, and the pattern of their signs."""
        if self.shufflable:
            drawn = self._blocks.draw(x.num_rows, repeats=1, randomness=randomness, device=x.device)
            places = drawn.squeeze(1)
        else:
            places = self._public_places(x.num_rows, x.device)
        values = self._sampled_numbers(x, norms, places + self._blocks.starts().to(x.device))
        patterns = round_to_patterns(values, randomness=randomness)
        return self._reports(places, send_patterns(patterns, cap=self._cap, randomness=randomness))

    @property
    def _second_moment(self) -> float:
        """E‖R(x)‖² in units of r_inf², less what pairs of coefficients add."""
        return self._representation.column_square * self._blocks.square_lengths / self._cap.gain**2

    @property
    def _pair_gain(self) -> float:
        """ρ/g², by which pairs of signs add to the variance."""
        return self._cap.pair_moment / self._cap.gain**2

    @property
    def _worst_spread_variance(self) -> float:
        pairs = max(0.0, self._pair_gain - 1) * self.radius**2
        return self.coefficient_radius**2 * self._second_moment + pairs

    def _spread_variance(self, coefficients: Tensor) -> Tensor:
        norms = self._representation.reconstruct(coefficients).square().sum(dim=1)
        pairs = norms - self._blockwise_squares(coefficients, self._blocks.lengths().tolist())
        return self.coefficient_radius**2 * self._second_moment - norms + self._pair_gain * pairs

    def _public_places(self, clients: int, device: torch.device) -> Tensor:
        return self._public.of(clients, highs=self._blocks.lengths(), device=device)

    @property
    def _names_places(self) -> bool:
        return self.shufflable and self._blocks.index_bits > 0

    def _reports(self, places: Tensor, patterns: Tensor) -> Reports:
        return self.layout.reports(*((places, patterns) if self._names_places else (patterns,)))

    def _parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Columns (reports, k) and patterns (reports,), int64."""
        if self._names_places:
            places, patterns = self.read_reports(reports, self._blocks.longest, 1 << self.signs)
            places = places.view(len(reports), self.signs)
            if bool((places >= self._blocks.lengths().to(places.device)).any()):
                raise ValueError("a report names a coefficient outside its block")
        else:
            (patterns,) = self.read_reports(reports, 1 << self.signs)
            places = patterns.new_zeros(len(reports), self.signs)
            if not self.shufflable:
                places = self._public_places(len(reports), patterns.device)
        return self._blocks.starts().to(patterns.device) + places, patterns
