r"""What the (ε0, δ0) mechanisms on the l2 ball share: their δ0, and how their rounds are accounted.

Balle, Wang 2018, "Improving the Gaussian mechanism for differential privacy", Theorem 8: noise N(0, σ²) on
records at distance Δ is (ε, δ)-private if and only if
:math:`Φ(\frac{Δ}{2σ} - \frac{εσ}{Δ}) - e^ε Φ(-\frac{Δ}{2σ} - \frac{εσ}{Δ}) \le δ`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy import special

from shuffle_plugins.accounting import (
    Adversary,
    Atoms,
    Blanket,
    GaussianReportsRound,
    Sampling,
    ShuffleRound,
    zero_between,
)
from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms.local_randomizer import Norm
from shuffle_plugins.mechanisms.noise.additive_law import gaussian_blanket
from shuffle_plugins.mechanisms.noise.grid_noise import GridNoise

_MARGIN = 1e-9  # relative; covers rounding in float64, so that δ0 holds
_SHORT = 0.01  # steps of the Mills ratio, where a difference of two would have lost five digits
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # over so short a step exact to the last digit


def check_local_delta(local_delta: float) -> float:
    """Return δ0 as a float.

    Raises:
        ValueError: unless it is a number in [1e-30, 0.1].
    """
    return checks.number("local_delta", local_delta, at_least=1e-30, at_most=0.1)


def gaussian_delta(ratio: float, *, epsilon: float) -> float:
    """The least δ of noise whose standard deviation is ``ratio`` times the distance of the records.

    With the step μ = 1/ratio and z = ε·ratio − μ/2 the condition above reads φ(z)·(M(z) − M(z + μ)), M the
    Mills ratio. Where μ is small the two Φ agree in nearly all digits, so the difference is taken as the
    integral of M' = z·M − 1 there.
    """
    half, shift = 0.5 / ratio, epsilon * ratio
    if half < _SHORT / 2:
        places = shift - half + half * (1 + _NODES)
        slopes = 1 - places * math.sqrt(math.pi / 2) * special.erfcx(places / math.sqrt(2))
        density = math.exp(-0.5 * (shift - half) ** 2) / math.sqrt(2 * math.pi)
        return density * half * float(_WEIGHTS @ slopes)
    log_first = float(special.log_ndtr(half - shift))
    log_second = epsilon + float(special.log_ndtr(-half - shift))
    return math.exp(log_first) * -math.expm1(log_second - log_first)


@lru_cache(maxsize=256)
def noise_ratio(*, local_epsilon: float, local_delta: float) -> float:
    """Standard deviation of the least noise that is (ε0, δ0)-private, per unit of distance; rounded up.

    Raises:
        ValueError: if ε0 or δ0 is out of range.
    """
    epsilon, delta = checks.local_epsilon(local_epsilon), check_local_delta(local_delta)

    def excess(log_ratio: float) -> float:
        found = gaussian_delta(math.exp(log_ratio), epsilon=epsilon)
        return math.log(max(found, 1e-300) / delta)

    return math.exp(zero_between(excess, -8.0, 72.0, xtol=1e-13, rtol=1e-13)) * (1 + _MARGIN)


DEFAULT_LOCAL_DELTA = 1e-6


class ApproximateNoise(GridNoise):
    """Noise whose reports are (ε0, δ0)-LDP: ε0 alone does not describe them.

    Reports are accounted by the likelihoods of the noise:
    :class:`~shuffle_plugins.accounting.GaussianReportsRound`. A number (dim 1) has a blanket of its own as
    well, whose cut tail is charged instead of δ0, and the smaller of both bounds is taken.
    Epochs, check-ins, rounds of few reports and little noise go through (ε0, δ0), which charges δ0 once for
    every report of a round: for these choose δ0 far below the δ that is wanted, divided by the reports.
    """

    norm: ClassVar[Norm] = Norm.L2

    def __init__(self, *, local_epsilon: float, dim: int, radius: float, local_delta: float) -> None:
        super().__init__(local_epsilon=local_epsilon, dim=dim, radius=radius)
        self._local_delta = check_local_delta(local_delta)

    @property
    def local_delta(self) -> float:
        """δ0 of one report."""
        return self._local_delta

    @abstractmethod
    def _sigma_per_radius(self) -> float:
        """Of the Gaussian mechanism whose post-processing a report is: standard deviation over radius."""

    @abstractmethod
    def _radius_per_sigma(self) -> float:
        """Radius of all records, over the standard deviation of the noise that a report is made of."""

    @abstractmethod
    def _attained_per_sigma(self) -> float:
        """Of two opposite records, with what codes add to the noise; 0 where that is not known."""

    @abstractmethod
    def _instance(self) -> Atoms:
        """Of one number: two opposite records, everybody else at one of them."""

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, local_delta={self.local_delta!r})"

    def blanket(self) -> Blanket:
        """That of scalar Gaussian noise, at dim 1; its ``local_epsilon`` is where its weights are cut.

        Raises:
            ValueError: at dim 2 and more, where no blanket without δ0 is known, and at dim 1 if the noise is
                too small for its weights to be represented; use :meth:`round`.
        """
        if self.dim > 1:
            raise ValueError(
                f"a report of {self.name} is ({self.local_epsilon:.4g}, {self.local_delta:g})-LDP, and no "
                "bound covers it without its δ0: use round(), or ShuffleRound(local_delta=…); in a shell "
                "--mechanism generic --local-delta …, far below δ / k"
            )
        law = gaussian_blanket(sigma=self._sigma_per_radius(), radius=1.0)
        return replace(law, instances=(self._instance(),))

    def round(
        self,
        *,
        population: int,
        cohort: float,
        sampling: Sampling = Sampling.WITHOUT_REPLACEMENT,
        adversary: Adversary = Adversary.MODEL_OBSERVER,
    ) -> ShuffleRound:
        """A round of this mechanism: its noise; at dim 1 its blanket, too, whose cut is the round's ε0."""
        own = self._representable_blanket()
        reports: dict[str, Any] = {"local_epsilon": self.local_epsilon, "local_delta": self.local_delta}
        if own is not None:
            reports = {"local_epsilon": own.local_epsilon, "mechanism": self.name, "blanket": own}
        return GaussianReportsRound(
            **reports,
            population=population,
            cohort=cohort,
            sampling=sampling,
            adversary=adversary,
            radius=self._radius_per_sigma(),
            attained=self._attained_per_sigma(),
            channel_fixed=True,
        )

    def _representable_blanket(self) -> Blanket | None:
        if self.dim > 1:
            return None
        try:
            return self.blanket()
        except ValueError:
            return None
