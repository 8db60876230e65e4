"""One Hadamard coefficient of a vector in an l1 ball, sent as a sign."""

from __future__ import annotations

import math
from typing import ClassVar

from typing_extensions import override

from shuffle_plugins.accounting import Blanket
from shuffle_plugins.compressors import hadamard_coefficients, hadamard_scatter, l1_norms, padded_dim
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports, Rows, checks, rows_at_once
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.local_randomizer import MOST_OUTCOMES, LocalRandomizer, Norm
from shuffle_plugins.mechanisms.signs.public_indices import PublicIndices
from shuffle_plugins.mechanisms.signs.randomized_response import (
    SignThresholds,
    random_signs,
    sign_blanket,
    sign_log_likelihood,
)
from shuffle_plugins.randomness import Randomness

_CHUNK_ENTRIES = 1 << 17  # entries handled at a time


class L1Hadamard(LocalRandomizer):
    r"""R^ℓ1 of Girgis's thesis (Algorithm 3.4.1, Lemma 3.4.1) with exact ε0, for ℓp balls with p in [1, 2).

    With D the next power of two and H the ±1 Hadamard matrix, a client draws j in [0, D) uniformly and sends
    (j, sign), the sign being + with probability
    :math:`\frac12 + \frac{\langle H_j, x\rangle}{2 r_1} \cdot \frac{e-1}{e+1}`, :math:`e = e^{ε_0}`. It
    stands for :math:`\pm r_1 \frac{e+1}{e-1} H_{:,j}`, cut to d entries, so

    .. math:: E\|R(x) - x\|^2 = d \, r_1^2 \left(\frac{e+1}{e-1}\right)^2 - \|x\|_2^2.

    The server counts signs per j and transforms once. All of ε0 is spent, and :math:`|\langle H_j, x\rangle|`
    is at most :math:`\|x\|_1 \le r_1`.

    **p > 1.** The ball of radius r in ℓp lies within the ℓ1 ball of radius :math:`r_1 = d^{1-1/p} r`
    (Hölder's inequality, with equality for flat vectors), which is what is used. Remark 3.4.1 of the thesis
    prints the containment the other way round and would use r itself, which would break ε0. Lower bounds for
    p in [1, 2) do not grow with p; past p = 1 this mechanism loses the factor :math:`d^{2-2/p}`.

    **Public randomness.** With ``public_seed`` the client at each position of the round is told its j, and a
    report is the sign alone: one bit. j is then a function of seed and position, so the analyzer must know
    whose report it is: reports cannot be shuffled, each costs ε0, and ``sum`` reads them in order, the first
    being that of the client at ``position``. Estimates are unbiased over the seed; take a new one for every
    round, drawn after the data are fixed.

    Args:
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        dim: d, length of a client's vector.
        radius: r, radius of the ball.
        p: the ball's norm, in [1, 2).
        public_seed: whole number from which all derive the indices; private indices by default.
        position: with ``public_seed``, the place in the round of the first row, or report, of a batch.
    """

    name: ClassVar[str] = "l1-hadamard"
    norm: ClassVar[Norm] = Norm.L1

    def __init__(
        self,
        *,
        local_epsilon: float,
        dim: int,
        radius: float = 1.0,
        p: float = 1.0,
        public_seed: int | None = None,
        position: int = 0,
    ) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._p = checks.number("p", p, at_least=1, below=2)
        self._public = PublicIndices(purpose=self.name, seed=public_seed, position=position)
        self._thresholds = SignThresholds.of(local_epsilon)
        self._size = padded_dim(dim)
        self._l1_radius: float = dim ** (1 - 1 / self._p) * self.radius

    @property
    def shufflable(self) -> bool:
        """Whether indices are private and so part of the report."""
        return self._public.seed is None

    @property
    def domain(self) -> str:
        """The norm of the ball: ``"l1"``, or such as ``"l1.5"``."""
        return f"l{self._p:g}"

    @property
    def layout(self) -> ReportLayout:
        """The coefficient's index, unless indices are public, and its sign."""
        sign = FieldLayout(1)
        fields = (FieldLayout(self._index_bits), sign) if self.shufflable else (sign,)
        return ReportLayout(self.name, self.dim, fields)

    @property
    def report_value(self) -> float:
        """Absolute value of every entry that a sign stands for, r1·(e+1)/(e-1)."""
        return self._l1_radius / self._thresholds.gain

    @property
    def _index_bits(self) -> int:
        return self._size.bit_length() - 1

    @property
    def worst_variance(self) -> float:
        """That of 0, d·report_value²."""
        return self.dim * self.report_value**2

    def variance(self, x: Tensor | Rows) -> Tensor:
        """E‖R(x) - x‖² = d·report_value² - ‖x‖₂² of each row, (clients,), float64."""
        return self.worst_variance - self.check_rows(x).l2_norm().double().square()

    def blanket(self) -> Blanket:
        """The generic blanket: r1 times the first unit vector and its opposite attain it."""
        return sign_blanket(self.local_epsilon)

    @override
    def sum(self, reports: Reports) -> Tensor:
        indices, signs = self._parse(reports)
        total = hadamard_scatter(indices, signs.double(), dim=self.dim)
        return (total * self.report_value).to(torch.float32)

    def outcomes(self) -> Reports | None:
        """Either sign of every coefficient, where they are at most 2**16; none with public indices."""
        if not self.shufflable or 2 * self._size > MOST_OUTCOMES:
            return None
        every = torch.arange(2 * self._size)
        return self.layout.reports(every // 2, (every % 2).to(torch.uint8))

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held x (dim,); thresholds as they are rounded."""
        indices, signs = self._parse(reports)
        every = torch.arange(self._size, device=x.device).unsqueeze(0)
        coefficients = hadamard_coefficients(x.detach().unsqueeze(0), every)[0]
        values = coefficients[indices].double() / self._l1_radius
        law = sign_log_likelihood(signs, values, thresholds=self._thresholds)
        return law - math.log(self._size) if self.shufflable else law

    def row_norms(self, rows: Rows) -> Tensor:
        """ℓp norm of each row, (clients,)."""
        if self._p == 1:
            return l1_norms(rows)
        norms = torch.empty(rows.num_rows, dtype=rows.compute_dtype, device=rows.device)
        step = rows_at_once(self.dim, device=rows.device, entries=_CHUNK_ENTRIES)
        for start in range(0, rows.num_rows, step):
            part = rows.narrow(start, start + step).dense().to(rows.compute_dtype).abs()
            norms[start : start + step] = _p_norm(part, self._p)
        return norms

    def randomize_rows(self, x: Rows, norms: Tensor, randomness: Randomness) -> Reports:
        """A Hadamard coefficient of each row, and its sign."""
        indices = (
            randomness.integers(self._size, x.num_rows, device=x.device)
            if self.shufflable
            else self._public_indices(x.num_rows, x.device)
        )
        coefficients = hadamard_coefficients(x, indices.unsqueeze(1)).squeeze(1).double()
        values = coefficients * self.clip_factors(norms.double()) / self._l1_radius
        plus = random_signs(values, thresholds=self._thresholds, randomness=randomness)
        return self.layout.reports(indices, plus) if self.shufflable else self.layout.reports(plus)

    def _public_indices(self, clients: int, device: torch.device) -> Tensor:
        return self._public.of(clients, highs=torch.tensor([self._size]), device=device).squeeze(1)

    def _parse(self, reports: Reports) -> tuple[Tensor, Tensor]:
        """Indices and signs ±1, (reports,) int64."""
        if self.shufflable:
            indices, plus = self.read_reports(reports, self._size, 2)
        else:
            (plus,) = self.read_reports(reports, 2)
            indices = self._public_indices(len(reports), plus.device)
        return indices, 2 * plus - 1


def _p_norm(magnitudes: Tensor, p: float) -> Tensor:
    """ℓp norm of each row, free of overflow and underflow."""
    scale = magnitudes.amax(dim=1, keepdim=True)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    total: Tensor = (magnitudes / safe).pow_(p).sum(dim=1) ** (1 / p) * safe.squeeze(1)
    return total
