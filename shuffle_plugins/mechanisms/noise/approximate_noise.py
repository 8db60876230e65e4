"""What the (ε0, δ0) mechanisms on the l2 ball share: their δ0, and how their rounds are accounted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from shuffle_plugins.accounting import Adversary, Atoms, Blanket, GaussianReportsRound, Sampling, ShuffleRound
from shuffle_plugins.mechanisms.local_randomizer import Norm
from shuffle_plugins.mechanisms.noise.additive_law import gaussian_blanket
from shuffle_plugins.mechanisms.noise.gaussian_law import check_local_delta
from shuffle_plugins.mechanisms.noise.grid_noise import GridNoise

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
        """A round of this mechanism: its noise, and at dim 1 its blanket, too, whose cut is the round's ε0.

        Raises:
            ValueError: if an argument is out of range.
        """
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
