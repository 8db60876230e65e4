"""A run before its first step: the privacy number that meets its target, what it costs, how noisy it is."""

from __future__ import annotations

import copy
import functools
import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any

from opacus_shuffle.accountants import SubsampledShuffleAccountant
from opacus_shuffle.errors import ShufflePrivacyError, warn_caller
from opacus_shuffle.loaders import rounds_in
from opacus_shuffle.optimizer import ShuffleMixin
from opacus_shuffle.sums import SumSetting
from shuffle_plugins.accounting import PrivacyTarget, Round, Sampling, ShuffleRound, largest_within
from shuffle_plugins.accounting.calibrate import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    LEAST_SEARCHED_LOCAL_EPSILON,
    normal_guess,
)
from shuffle_plugins.accounting.terms import delta_warning
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import noise_ratio
from shuffle_plugins.planning import ExpectedNoise, expected_noise

_logger = logging.getLogger(__name__)

_USUAL_DELTA = 1e-5
_WELL_USED = 0.97  # share of a target; with less of it used, the user is warned
_LEAST_NOISE, _MOST_NOISE = 0.25, 2.0**14  # noise multipliers that are tried: less has no finite ε
_NOISE_PRECISION, _PRECISION = 1e-3, 1e-4  # relative, of noise multipliers and of ε0


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run whose privacy number is to be found.

    The rounds that the accountant has recorded before count towards the target.
    """

    setting: SumSetting  # of any privacy number
    accountant: SubsampledShuffleAccountant
    dim: int
    population: int
    cohort: int
    sampling: Sampling
    num_rounds: int  # as the accountant counts them: a step is one, or an epoch as a whole
    target_epsilon: float
    target_delta: float

    def privacy(self) -> float:
        """The least noise multiplier, or the largest ε0, that keeps to the target; refused if none does."""
        noise = self.setting.builder.takes_noise_multiplier
        if noise:
            lowest, highest, precision = 1 / _MOST_NOISE, 1 / _LEAST_NOISE, _NOISE_PRECISION
        else:
            lowest, highest, precision = (
                LEAST_SEARCHED_LOCAL_EPSILON,
                LARGEST_SEARCHED_LOCAL_EPSILON,
                _PRECISION,
            )
            refuse_spent_delta(
                self._round_at(1.0),
                accountant=self.accountant,
                num_steps=self.num_rounds,
                target_delta=self.target_delta,
            )

        @functools.cache
        def round_at(level: float) -> Round:
            return self._round_at(1 / level if noise else level)

        @functools.cache
        def spent(level: float) -> float:
            new_round = round_at(level)
            try:
                return self.accountant.charged_epsilon_with(
                    new_round, num_steps=self.num_rounds, target_delta=self.target_delta
                )
            except ArithmeticError:  # hardly any noise
                return math.inf

        before = self._spent_before()
        found = None
        if before < self.target_epsilon:
            found = largest_within(
                spent,
                target=self.target_epsilon,
                start=self._guess(self.target_epsilon - before),
                lowest=lowest,
                highest=highest,
                precision=precision,
            )
        if found is None or self.accountant.core.would_exceed(
            round_at(found),
            num_steps=self.num_rounds,
            target_epsilon=self.target_epsilon,
            delta=self.target_delta,
        ):
            what = "the recorded rounds leave no room" if len(self.accountant) else "nothing keeps all rounds"
            raise ShufflePrivacyError(
                f"{what} within ε={self.target_epsilon} at δ={self.target_delta}: raise the target, take "
                "fewer steps or smaller batches of a larger data set, or use a smaller local_delta"
            )
        privacy = 1 / found if noise else found
        at_end = found >= highest * (1 - 1e-3)
        local_delta = 0.0 if noise else self._local_delta(found)
        if (noise or at_end or local_delta > 0) and spent(found) < _WELL_USED * self.target_epsilon:
            self._warn_of_rest(privacy, spent=spent(found), at_end=at_end)
        return privacy

    def _local_delta(self, local_epsilon: float) -> float:
        mechanism = self.setting.builder.build(
            local_epsilon, dim=self.dim, cohort=self.cohort, radius=self.setting.ball.radius
        )
        return mechanism.local_delta

    def _round_at(self, privacy: float) -> Round:
        setting, adaptive = replace(self.setting, privacy=privacy), self.setting.ball.adaptive
        draw: dict[str, Any] = {
            "population": self.population,
            "cohort": self.cohort,
            "sampling": self.sampling,
        }
        if adaptive is not None:
            if not setting.builder.takes_noise_multiplier:  # pairs of reports have no blanket of their own
                return ShuffleRound(
                    local_epsilon=privacy,
                    local_delta=self._local_delta(privacy),
                    channel_fixed=True,
                    **draw,
                )
            # The round is the same whatever the noise of the bits; make_private checks that one.
            ball = replace(setting.ball, adaptive=replace(adaptive, unclipped_num_std=None))
            setting = replace(setting, ball=ball)
        return setting.build(dim=self.dim, **draw).round

    def _guess(self, rest: float) -> float:
        """Where the search begins, if so much of the target is left."""
        if not self.setting.builder.takes_noise_multiplier:
            target = PrivacyTarget(epsilon=rest, delta=self.target_delta, num_steps=self.num_rounds)
            like = ShuffleRound(
                local_epsilon=1.0, population=self.population, cohort=self.cohort, sampling=self.sampling
            )
            return normal_guess(target, like)
        # All sums as one Gaussian sum of everybody, scaled by γ√T.
        ratio = noise_ratio(
            local_epsilon=min(max(rest, 1e-9), 500.0), local_delta=min(max(self.target_delta, 1e-30), 0.1)
        )
        return self.population / (2 * ratio * self.cohort * math.sqrt(self.num_rounds))

    def _spent_before(self) -> float:
        if not len(self.accountant):
            return 0.0
        spent = self.accountant.get_epsilon(self.target_delta)
        warn_caller(
            f"{len(self.accountant)} rounds are recorded already, with ε={rounded(spent, up=True)} at "
            f"δ={self.target_delta}: the new rounds get what is left of ε={self.target_epsilon}"
        )
        return spent

    def _warn_of_rest(self, privacy: float, *, spent: float, at_end: bool) -> None:
        """Say that the run leaves a part of its target unused, since the search stopped at a limit."""
        remedy = "Take more steps or a larger batch_size to use more of it, or a smaller target"
        if self.setting.builder.takes_noise_multiplier:
            least = "the least that is tried" if at_end else "the least that keeps to it"
            limit = f"noise_multiplier={rounded(privacy, up=True)}, {least}"
        elif at_end:
            limit = f"local_epsilon={LARGEST_SEARCHED_LOCAL_EPSILON:g}, the largest that is tried"
        else:
            most = self.target_delta / (2 * self.cohort * self.num_rounds)
            limit = (
                f"local_epsilon={rounded(privacy, up=False)}, beyond which the reports' own δ0 counts and is "
                "too much"
            )
            remedy = (
                f"Choose a δ0 far below δ / (2 · reports · steps) = {most:.2g}, as in "
                f"randomizer=functools.partial(Gaussian, local_delta={most / 1000:.0e}), or reports without "
                "one, such as blanket-mixed-gaussian"
            )
        warn_caller(
            f"target_epsilon={self.target_epsilon:g} is not used up: with {limit}, all {self.num_rounds} "
            f"steps together spend ε={rounded(spent, up=True)} at δ={self.target_delta:g}. {remedy}"
        )


def refuse_spent_delta(
    new_round: Round, *, accountant: SubsampledShuffleAccountant, num_steps: int, target_delta: float
) -> None:
    """Refuse a run whose reports' own δ0 leave it no ε at all."""
    _, last = accountant.core.rounds_left(new_round, delta=target_delta)
    if num_steps > last:
        raise ShufflePrivacyError(
            "each report has a local_delta of its own, which adds up over the rounds: from round "
            f"{last + 1:,} on it is more than target_delta={target_delta:g}, and no ε can be certified. Use "
            "a smaller local_delta, such as randomizer=functools.partial(Gaussian, local_delta=1e-15), fewer "
            "steps, or a randomizer without one, such as 'privunit'"
        )


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
        """The plan of an optimizer that is about to train, after the rounds that are recorded by now."""
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
        sampling = self._next_round.sampling
        return rounds_in(self.num_steps, population=self.population, cohort=self.cohort, sampling=sampling)

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
