"""How one round's gradients become the sum that is released, and what the user chose for it.

Here a client is one training sample, and its row is its per-sample gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from opacus_shuffle.clipping import AdaptiveClipping, positive, within
from opacus_shuffle.errors import ShufflePrivacyError
from opacus_shuffle.randomizers import NO_LOCAL_EPSILON, NO_NOISE_MULTIPLIER, SumBuilder, sum_names
from shuffle_plugins.accounting import COARSE, Round, Sampling, ShuffleRound
from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import BinaryRandomizedResponse, Norm, PrivateSum
from shuffle_plugins.randomness import Randomness


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSum:
    """What happens to the rows of one round. Shares of disjoint clients add up to the round's total.

    Attributes:
        mechanism: randomises the rows and adds them up.
        round: what the released sum costs (replace-one, against an observer of the model).
    """

    mechanism: PrivateSum
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """What these clients add to the total.

        Raises:
            ValueError: for NaN or infinite rows.
        """
        return self.mechanism.share(rows, randomness=randomness)

    def common_noise(self, *, randomness: Randomness) -> Tensor | None:
        """Noise that is added to the total once for all clients; None if every share has its own."""
        return self.mechanism.common_noise(randomness=randomness)

    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        """The released sum, floating (dim,), from the total of ``reports`` clients.

        Under adaptive clipping one entry is appended: an estimate of how many rows were within the radius,
        minus how many were outside.
        """
        return self.mechanism.estimate(total, reports=reports)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSum(RoundSum):
    """Every row gives a pair: its randomised vector, and a randomised bit that says whether it was clipped.

    Both are about the same record, so their ε add up (basic composition); what is shuffled are pairs.

    Attributes:
        bit: randomised response of 1 for a row within the radius and -1 for one outside.
    """

    bit: BinaryRandomizedResponse

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Sum of the randomised rows; its last entry is the sum of the randomised bits. (dim + 1,)."""
        total = self.mechanism.share(rows, randomness=randomness)
        bits = within(rows, radius=self.mechanism.radius, norm=self.mechanism.norm)
        return torch.cat([total, self.bit.share(bits, randomness=randomness).to(total)])

    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        """Estimate of the rows' sum; its last entry is that of the bits' sum."""
        return torch.cat([self.mechanism.estimate(total[:-1], reports=reports), total[-1:]])


@dataclass(frozen=True, kw_only=True, slots=True)
class LongerSum(RoundSum):
    """A multi-message sum of rows with one more entry, +h or -h, which says whether the row was clipped.

    A row g becomes (g clipped to the radius C, ±h), which lies in a ball of radius √(C² + h²): the mechanism
    is built for that ball, and its round costs what any sum in it costs.

    Attributes:
        radius: C, which rows are clipped to.
        height: h, the size of the appended entry.
    """

    radius: float
    height: float

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """What these clients' longer vectors add to the total."""
        factors = (self.radius / rows.l2_norm().clamp(min=self.radius)).unsqueeze(1).to(rows.dtype)
        bits = within(rows, radius=self.radius, norm=Norm.L2)
        longer = Rows([*(block * factors for block in rows.blocks), bits * self.height])
        return self.mechanism.share(longer, randomness=randomness)

    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        """Estimate of the longer vectors' sum, its last entry divided by h; float64.

        The last entry then estimates the rows within the radius minus the rows outside.
        """
        longer = self.mechanism.estimate(total, reports=reports)
        return torch.cat([longer[:-1], longer[-1:] / self.height])


@dataclass(frozen=True, kw_only=True, slots=True)
class SumSetting:
    """The user's randomizer, privacy number and radius; ``build`` makes a round's sum of them.

    Attributes:
        builder: builds the mechanism.
        privacy: its ``local_epsilon`` or ``noise_multiplier``.
        radius: radius of the mechanism's norm ball, ``max_grad_norm``.
        adaptive: settings of adaptive clipping; None for a fixed radius.
    """

    builder: SumBuilder
    privacy: float
    radius: float
    adaptive: AdaptiveClipping | None = None

    @classmethod
    def of(
        cls,
        randomizer: object,
        *,
        local_epsilon: float | None,
        noise_multiplier: float | None,
        radius: float,
        adaptive: AdaptiveClipping | None = None,
    ) -> SumSetting:
        """The user's choice, with that one of the two privacy numbers which the randomizer takes.

        Raises:
            ShufflePrivacyError: if the number that the randomizer needs is missing.
            TypeError: if one that it does not take was given.
        """
        builder = SumBuilder.of(randomizer)
        chosen = builder.described
        if builder.takes_noise_multiplier:
            if local_epsilon is not None:
                raise TypeError(
                    "got an unexpected keyword argument 'local_epsilon': privacy of a sum of many messages "
                    "per sample is set by noise_multiplier"
                )
            if noise_multiplier is None:
                raise ShufflePrivacyError(
                    "a sum of many messages per sample needs noise_multiplier, the standard deviation, over "
                    "max_grad_norm, of Gaussian noise that would give about the same privacy; "
                    "make_private_with_epsilon finds it"
                )
            return cls(builder=builder, privacy=noise_multiplier, radius=radius, adaptive=adaptive)
        if noise_multiplier is not None:
            raise TypeError(
                f"got an unexpected keyword argument 'noise_multiplier': it goes with randomizer="
                f"{sum_names()}; privacy of {chosen} is set by local_epsilon"
            )
        if local_epsilon is None:
            raise ShufflePrivacyError(
                f"{chosen} needs local_epsilon, ε0 of one sample's gradient in one step, such as 4.0; or "
                f"give noise_multiplier with randomizer={sum_names()}. make_private_with_epsilon finds either"
            )
        return cls(builder=builder, privacy=local_epsilon, radius=radius, adaptive=adaptive)

    def changed(self, **values: float) -> SumSetting:
        """A copy with another ``radius``, ``local_epsilon`` or ``noise_multiplier``.

        Raises:
            AttributeError: for the ``local_epsilon`` of a sum that takes ``noise_multiplier``.
            ShufflePrivacyError: for the ``noise_multiplier`` of a mechanism that takes ``local_epsilon``.
        """
        if "local_epsilon" in values and self.builder.takes_noise_multiplier:
            raise AttributeError(NO_LOCAL_EPSILON)
        if "noise_multiplier" in values and not self.builder.takes_noise_multiplier:
            raise ShufflePrivacyError(NO_NOISE_MULTIPLIER)
        privacy = values.get(self.builder.privacy_parameter, self.privacy)
        return replace(self, privacy=privacy, radius=values.get("radius", self.radius))

    def build(self, *, dim: int, population: int, cohort: int, sampling: Sampling) -> RoundSum:
        """Build the sum of one round.

        Raises:
            ShufflePrivacyError: if the factory returned something else than was asked for, or no accounting
                is known for such batches.
            ValueError: for values out of range.
        """
        privacy = positive(self.builder.privacy_parameter, self.privacy)
        radius = positive("max_grad_norm", self.radius)
        if self.builder.takes_noise_multiplier and cohort < 2:
            raise ShufflePrivacyError(
                f"batch_size (the cohort, k) is {cohort}: a sum hides a record among others', so it must be "
                "at least 2, and is better some hundreds"
            )
        if self.adaptive is None:
            mechanism = self.builder.build(privacy, dim=dim, cohort=cohort, radius=radius)
            cost = self._round(mechanism, population=population, cohort=cohort, sampling=sampling)
            return RoundSum(mechanism=mechanism, round=cost)
        if self.builder.takes_noise_multiplier:
            height = self.adaptive.height(radius, noise_multiplier=privacy, cohort=cohort)
            longer = self.builder.build(
                privacy, dim=dim + 1, cohort=cohort, radius=math.hypot(radius, height)
            )
            if longer.norm is not Norm.L2:
                raise ShufflePrivacyError("clipping='adaptive' needs a sum of vectors in an l2 ball")
            cost = self._round(longer, population=population, cohort=cohort, sampling=sampling)
            return LongerSum(mechanism=longer, round=cost, radius=radius, height=height)
        bit_epsilon = self.adaptive.bit_epsilon(privacy, cohort=cohort)
        mechanism = self.builder.build(_rest(privacy, bit_epsilon), dim=dim, cohort=cohort, radius=radius)
        if mechanism.must_be_summed:
            raise ShufflePrivacyError(
                f"clipping='adaptive' adds a bit to every report, and reports of {mechanism.name!r} may be "
                "seen added up only: use a local randomizer, such as 'privunit', or another clipping"
            )
        return PairSum(
            mechanism=mechanism,
            bit=BinaryRandomizedResponse(local_epsilon=bit_epsilon),
            round=ShuffleRound(
                local_epsilon=privacy,
                local_delta=mechanism.local_delta,
                population=population,
                cohort=cohort,
                sampling=sampling,
                channel_fixed=True,
            ),
        )

    def _round(self, mechanism: PrivateSum, *, population: int, cohort: int, sampling: Sampling) -> Round:
        """What a round of the mechanism costs.

        Raises:
            ShufflePrivacyError: if reports must be summed and no accounting is known for such batches, or
                there is too little noise for any ε.
        """
        if mechanism.cohort is not None and sampling is Sampling.POISSON:
            raise ShufflePrivacyError(
                "a sum of many messages per sample is accounted for a cohort of known size, which Poisson "
                "sampling does not have: use sampling='without-replacement'"
            )
        if mechanism.must_be_summed and sampling is Sampling.EPOCH:
            raise ShufflePrivacyError(
                "a sum of many messages per sample is private as a whole, not report by report, and no bound "
                "is known for the batches of a shuffled epoch: use sampling='without-replacement', or a "
                "local randomizer such as 'privunit'"
            )
        cost = mechanism.round(population=population, cohort=cohort, sampling=sampling)
        if not math.isfinite(mechanism.local_epsilon):
            self._check_certifiable(cost)
        return cost

    def _check_certifiable(self, cost: Round) -> None:
        """Check that a round, and so any number of them, has an ε at all; without a finite ε0 it may not.

        Raises:
            ShufflePrivacyError: if there is too little noise for any ε.
        """
        try:
            cost.upper_losses(COARSE)
        except ArithmeticError as error:
            name, value = self.builder.privacy_parameter, self.privacy
            raise ShufflePrivacyError(
                f"{name}={value:g} is too little noise for any ε to be certified ({error}): "
                f"raise {name}, to 0.25 at least"
            ) from error


def _rest(whole_epsilon: float, part: float) -> float:
    """The largest float that with ``part`` adds up, exactly, to no more than the whole."""
    rest = whole_epsilon - part
    while Fraction(rest) + Fraction(part) > Fraction(whole_epsilon):
        rest = math.nextafter(rest, 0.0)
    return rest
