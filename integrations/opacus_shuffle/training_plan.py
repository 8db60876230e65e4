"""What a run will cost and how noisy its steps will be, known before it trains."""

from __future__ import annotations

import copy
import functools
import logging
import math
from dataclasses import dataclass, field, replace

from opacus_shuffle.accountants import SubsampledShuffleAccountant
from opacus_shuffle.errors import warn_caller
from opacus_shuffle.optimizer import ShuffleMixin
from opacus_shuffle.samplers import rounds_in
from shuffle_plugins.accounting import Round, Sampling, delta_warning
from shuffle_plugins.core import rounded
from shuffle_plugins.planning import ExpectedNoise, expected_noise

_logger = logging.getLogger(__name__)

_USUAL_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What is known of a run before its first step; ``print`` it.

    Attributes:
        randomizer: its name, and the number that sets its privacy.
        max_grad_norm: radius of the ball that gradients are clipped to, in the randomizer's norm.
        population: n, the size of the data set.
        cohort: k, the (Poisson: expected) size of a batch.
        sampling: how batches are drawn.
        num_steps: steps of the run; of one epoch, n // k, where the call did not say how many there will be.
        whole_run: whether ``num_steps`` are the whole run's.
        delta: δ of ``epsilon``: the target's, or the smaller of 1e-5 and 1/n where there is no target.
        target_epsilon: ε that the run must stay within, if there is a target.
        expected_noise: noise of one step's mean gradient, and the largest signal that it can carry.
    """

    randomizer: str
    max_grad_norm: float
    population: int
    cohort: int
    sampling: str
    num_steps: int
    whole_run: bool
    delta: float
    target_epsilon: float | None
    expected_noise: ExpectedNoise
    _next_round: Round = field(repr=False)
    _accountant: SubsampledShuffleAccountant = field(repr=False)

    @classmethod
    def of(
        cls,
        optimizer: ShuffleMixin,
        *,
        accountant: SubsampledShuffleAccountant,
        population: int,
        cohort: int,
        num_steps: int | None,
        target_epsilon: float | None,
        target_delta: float | None,
    ) -> TrainingPlan:
        """The plan of an optimizer that is about to train.

        Args:
            optimizer: the optimizer, with its present settings.
            accountant: the rounds recorded so far; it is copied.
            population, cohort, target_epsilon: as of the class.
            num_steps: number of steps of the whole run, if known.
            target_delta: δ of ``target_epsilon``.
        """
        mechanism, next_round = optimizer.mechanism, optimizer.round
        parameter = mechanism.privacy_parameter
        value = rounded(getattr(optimizer, parameter), up=parameter == "noise_multiplier")
        setting = f"{parameter}={value}"
        return cls(
            randomizer=f"{mechanism.name} with {setting}",
            max_grad_norm=optimizer.max_grad_norm,
            population=population,
            cohort=cohort,
            sampling=str(next_round.sampling),
            num_steps=max(1, population // cohort) if num_steps is None else num_steps,
            whole_run=num_steps is not None,
            delta=min(_USUAL_DELTA, 1 / population) if target_delta is None else float(target_delta),
            target_epsilon=target_epsilon,
            expected_noise=replace(expected_noise(mechanism, cohort=cohort), dim=optimizer.num_parameters),
            _next_round=next_round,
            _accountant=copy.deepcopy(accountant),
        )

    @property
    def _num_rounds(self) -> int:
        return rounds_in(
            self.num_steps,
            population=self.population,
            cohort=self.cohort,
            sampling=self._next_round.sampling,
        )

    @functools.cached_property
    def epsilon(self) -> float:
        """Certified ε at ``delta`` after ``num_steps`` steps and all rounds recorded before (replace-one).

        Infinite where the accountant certifies none.
        """
        try:
            return self._accountant.charged_epsilon_with(
                self._next_round, num_steps=self._num_rounds, target_delta=self.delta
            )
        except ArithmeticError:
            return math.inf

    def warning(self) -> str | None:
        """What is wrong with the noise, and what would help; None if it leaves something to learn from."""
        return self.expected_noise.warning(num_steps=self.num_steps if self.whole_run else None)

    def delta_warning(self) -> str | None:
        """After how many steps the δ0 of all reports have used up ``delta``; None without δ0, or enough."""
        amplified, last = self._accountant.core.rounds_left(self._next_round, delta=self.delta)
        if amplified == math.inf or (self.whole_run and self._num_rounds <= amplified):
            return None
        unit = "epochs" if self._next_round.sampling is Sampling.EPOCH else "steps"
        return (
            f"each report has a local_delta of its own, and those of all reports add up: at delta="
            f"{self.delta:g} shuffling amplifies at most {amplified:,} {unit}. After that epsilon is the sum "
            f"of all local_epsilon, and after {last:,} {unit} there is none and get_epsilon raises. Use a "
            f"local_delta far below delta / (2 * reports of the whole run), such as randomizer="
            "functools.partial(Gaussian, local_delta=1e-15), or a randomizer without one, such as 'privunit'"
        )

    def announce(self) -> None:
        """Log the plan at level INFO; warn of noise that leaves hardly anything to learn, of δ0, or of δ."""
        if _logger.isEnabledFor(logging.INFO):
            _logger.info("%s", self)
        for message in filter(
            None,
            (self.warning(), self.delta_warning(), delta_warning(self.delta, population=self.population)),
        ):
            warn_caller(message)

    def __str__(self) -> str:
        noise = self.expected_noise
        steps = f"{self.num_steps:,} step{'s' if self.num_steps > 1 else ''}"
        length = steps if self.whole_run else f"one epoch ({steps})"
        used = ""
        if self.target_epsilon is not None:
            used = f", {self.epsilon / self.target_epsilon:.0%} of the target {self.target_epsilon:g}"
        each, over = noise.signal_to_noise_ratio, noise.signal_to_noise_ratio_over(self.num_steps)
        return "\n".join(
            (
                f"{self.randomizer}, max_grad_norm={self.max_grad_norm:g}, {noise.dim:,} parameters",
                f"batches: {self.cohort:,} of {self.population:,} samples, {self.sampling}",
                f"privacy: epsilon={rounded(self.epsilon, up=True)} at delta={self.delta:g} (replace-one) "
                f"after {length}{used}",
                f"signal-to-noise ratio of the mean gradient: at most {rounded(each, up=True, digits=3)} in "
                f"a step, {rounded(over, up=True, digits=3)} over {length}",
            )
        )
