"""The privacy parameter for which a whole training run just stays within its target (ε, δ)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from opacus_shuffle.accountants import SubsampledShuffleAccountant
from opacus_shuffle.clipping import AdaptiveClipping
from opacus_shuffle.errors import ShufflePrivacyError, warn_caller
from opacus_shuffle.randomizers import SumBuilder
from opacus_shuffle.summation import SumSetting
from shuffle_plugins.accounting import (
    LARGEST_SEARCHED_LOCAL_EPSILON,
    LEAST_SEARCHED_LOCAL_EPSILON,
    Blanket,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_local_epsilon,
    largest_within,
)
from shuffle_plugins.core import checks, rounded
from shuffle_plugins.mechanisms import noise_ratio

_BISECTIONS = 30  # of the range of ε0, so that it is found to a part in 10**9
_WELL_USED = 0.97  # share of a target; with less of it used, the user is warned
_LEAST_NOISE, _MOST_NOISE = 0.25, 2.0**14  # noise multipliers that are tried: less has no finite ε
_PRECISION = 1e-3  # relative, of noise multipliers and of ε0 beside a δ0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A training run whose noise is to be found.

    Attributes:
        builder: builds the mechanism.
        accountant: holds the rounds recorded before, which count towards the target.
        dim: number of trainable numbers.
        radius: radius of the ball that holds clipped gradients.
        adaptive: settings of adaptive clipping; None for a fixed radius.
        population: n, the size of the data set.
        cohort: k, the size of a batch.
        sampling: how batches are drawn.
        num_rounds: rounds as the accountant counts them: a step is one, or an epoch as a whole.
        target_epsilon: ε of everything recorded at the end.
        target_delta: the δ of ``target_epsilon``.
    """

    builder: SumBuilder
    accountant: SubsampledShuffleAccountant
    dim: int
    radius: float
    adaptive: AdaptiveClipping | None
    population: int
    cohort: int
    sampling: Sampling
    num_rounds: int
    target_epsilon: float
    target_delta: float

    def privacy(self) -> float:
        """The least noise multiplier, or the largest ε0, that keeps to the target.

        Raises:
            ShufflePrivacyError: if none does.
            ValueError: as :func:`calibrate_local_epsilon`.
        """
        if self.builder.takes_noise_multiplier:
            return self._least_noise()
        probe = self.builder.build(1.0, dim=self.dim, cohort=self.cohort, radius=self.radius)
        published = self.accountant.core_type is not ShuffleAccountant  # has no calibration of its own
        if published or probe.local_delta > 0 or not isinstance(self._round_at(1.0), ShuffleRound):
            return self._largest_epsilon_by_search(local_delta=probe.local_delta)
        return self._largest_epsilon()

    def _spent(self, new_round: Round) -> float:
        return self.accountant.charged_epsilon_with(
            new_round, num_steps=self.num_rounds, target_delta=self.target_delta
        )

    def _exceeds(self, new_round: Round) -> bool:
        return self.accountant.core.would_exceed(
            new_round,
            num_steps=self.num_rounds,
            target_epsilon=self.target_epsilon,
            delta=self.target_delta,
        )

    def _round_at(self, privacy: float) -> Round:
        if self.adaptive is not None and not self.builder.takes_noise_multiplier:
            # Pairs of reports have no blanket of their own.
            local_delta = self.builder.build(
                privacy, dim=self.dim, cohort=self.cohort, radius=self.radius
            ).local_delta
            return ShuffleRound(
                local_epsilon=privacy,
                local_delta=local_delta,
                population=self.population,
                cohort=self.cohort,
                sampling=self.sampling,
                channel_fixed=True,
            )
        # The round is the same whatever the noise of the bits; make_private checks that one.
        adaptive = None if self.adaptive is None else replace(self.adaptive, unclipped_num_std=None)
        setting = SumSetting(builder=self.builder, privacy=privacy, radius=self.radius, adaptive=adaptive)
        return setting.build(
            dim=self.dim, population=self.population, cohort=self.cohort, sampling=self.sampling
        ).round

    def _least_noise(self) -> float:
        checks.target_epsilon(self.target_epsilon)
        checks.delta(self.target_delta, name="target_delta")
        round_at = functools.cache(self._round_at)

        def spent(inverse_noise: float) -> float:
            new_round = round_at(1 / inverse_noise)
            try:
                return self._spent(new_round)
            except ArithmeticError:  # hardly any noise
                return math.inf

        self._warn_of_history()
        before = self.accountant.get_epsilon(self.target_delta) if len(self.accountant) else 0.0
        found = None
        if before < self.target_epsilon:
            # Where the search begins: all sums as one Gaussian sum of everybody, scaled by γ√T.
            ratio = noise_ratio(
                local_epsilon=min(max(self.target_epsilon - before, 1e-9), 500.0),
                local_delta=min(max(self.target_delta, 1e-30), 0.1),
            )
            rate = self.cohort / self.population
            found = largest_within(
                spent,
                target=self.target_epsilon,
                start=1 / (2 * ratio * rate * math.sqrt(self.num_rounds)),
                lowest=1 / _MOST_NOISE,
                highest=1 / _LEAST_NOISE,
                precision=_PRECISION,
            )
        if found is None or self._exceeds(round_at(1 / found)):
            raise self._unreachable("no noise keeps all rounds", "raise the target, or take fewer steps")
        least = "the least that is tried" if found == 1 / _LEAST_NOISE else "the least that keeps to it"
        limit = f"noise_multiplier={rounded(1 / found, up=True)}, {least}"
        self._warn_of_rest(spent(found), limit=limit)
        return 1 / found

    def _largest_epsilon(self) -> float:
        def blanket(local_epsilon: float) -> Blanket:
            return self._shuffle_round_at(local_epsilon).effective_blanket

        alone = float(
            calibrate_local_epsilon(
                target_epsilon=self.target_epsilon,
                delta=self.target_delta,
                population=self.population,
                cohort=self.cohort,
                num_steps=self.num_rounds,
                sampling=self.sampling,
                mechanism=self._shuffle_round_at(1.0).mechanism,
                blanket_factory=None if self.adaptive is not None else blanket,
                channel_fixed=True,
                method=self.accountant.method,
            )
        )
        if not len(self.accountant):
            self._warn_of_cap(alone)
            return alone
        self._warn_of_history()
        low, high = LEAST_SEARCHED_LOCAL_EPSILON, alone
        if self._exceeds(self._round_at(low)):
            raise self._unreachable(
                "the recorded rounds leave no room", "raise the target, or take fewer steps"
            )
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._exceeds(self._round_at(middle)) else (middle, high)
        self._warn_of_cap(low)
        return low

    def _shuffle_round_at(self, local_epsilon: float) -> ShuffleRound:
        found = self._round_at(local_epsilon)
        assert isinstance(found, ShuffleRound)
        return found

    def _largest_epsilon_by_search(self, *, local_delta: float) -> float:
        """Of reports with a δ0, which their maker chose, or of rounds of another kind."""
        refuse_spent_delta(
            self._round_at(1.0),
            accountant=self.accountant,
            num_steps=self.num_rounds,
            target_delta=self.target_delta,
        )
        self._warn_of_history()
        found = largest_within(
            lambda local_epsilon: self._spent(self._round_at(local_epsilon)),
            target=self.target_epsilon,
            start=1.0,
            lowest=LEAST_SEARCHED_LOCAL_EPSILON,
            highest=LARGEST_SEARCHED_LOCAL_EPSILON,
            precision=_PRECISION,
        )
        if found is None or self._exceeds(self._round_at(found)):
            raise self._unreachable(
                "no local_epsilon keeps all rounds",
                "raise the target, take fewer steps, or use a smaller local_delta",
            )
        self._warn_of_cap(found)
        if local_delta > 0 and not _at_cap(found):
            most = self.target_delta / (2 * self.cohort * self.num_rounds)
            self._warn_of_rest(
                self._spent(self._round_at(found)),
                limit=f"local_epsilon={rounded(found, up=False)}, beyond which the reports' own δ0 counts "
                "and is too much",
                remedy=f"Choose a δ0 far below δ / (2 · reports · steps) = {most:.2g}, as in "
                f"randomizer=functools.partial(Gaussian, local_delta={most / 1000:.0e}), or reports without "
                "one, such as blanket-mixed-gaussian",
            )
        return found

    def _unreachable(self, what: str, advice: str) -> ShufflePrivacyError:
        return ShufflePrivacyError(
            f"{what} within ε={self.target_epsilon} at δ={self.target_delta}: {advice}"
        )

    def _warn_of_history(self) -> None:
        if len(self.accountant):
            spent = self.accountant.get_epsilon(self.target_delta)
            warn_caller(
                f"{len(self.accountant)} rounds are recorded already, with ε={rounded(spent, up=True)} at "
                f"δ={self.target_delta}: the new rounds get what is left of ε={self.target_epsilon}"
            )

    def _warn_of_cap(self, local_epsilon: float) -> None:
        if _at_cap(local_epsilon):
            limit = f"local_epsilon={LARGEST_SEARCHED_LOCAL_EPSILON:g}, the largest that is tried"
            self._warn_of_rest(self._spent(self._round_at(local_epsilon)), limit=limit)

    def _warn_of_rest(
        self,
        spent: float,
        *,
        limit: str,
        remedy: str = "Take more steps or a larger batch_size to use more of it, or a smaller target",
    ) -> None:
        """Say so if the run leaves a part of its target unused, since the search stopped at a limit."""
        if spent < _WELL_USED * self.target_epsilon:
            warn_caller(
                f"target_epsilon={self.target_epsilon:g} is not used up: with {limit}, all "
                f"{self.num_rounds} steps together spend ε={rounded(spent, up=True)} at "
                f"δ={self.target_delta:g}. {remedy}"
            )


def _at_cap(local_epsilon: float) -> bool:
    """Whether the search for ε0 ended at the largest that is tried."""
    return local_epsilon >= LARGEST_SEARCHED_LOCAL_EPSILON * (1 - 1e-3)


def refuse_spent_delta(
    new_round: Round, *, accountant: SubsampledShuffleAccountant, num_steps: int, target_delta: float
) -> None:
    """Refuse a run whose reports' own δ0 leave it no ε at all.

    Raises:
        ShufflePrivacyError: if so many rounds have none at this δ.
    """
    _, last = accountant.core.rounds_left(new_round, delta=target_delta)
    if num_steps > last:
        raise ShufflePrivacyError(
            "each report has a local_delta of its own, which adds up over the rounds: from round "
            f"{last + 1:,} on it is more than target_delta={target_delta:g}, and no ε can be certified. Use "
            "a smaller local_delta, such as randomizer=functools.partial(Gaussian, local_delta=1e-15), fewer "
            "steps, or a randomizer without one, such as 'privunit'"
        )
