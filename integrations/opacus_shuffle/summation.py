"""How one round's gradients become the sum that is released: each randomised alone, or with shared coins."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from opacus_shuffle.clipping import AdaptiveGradientClipping, positive, within
from opacus_shuffle.errors import ShufflePrivacyError
from opacus_shuffle.suggestions import check_name, chosen, refuse_other_forms
from shuffle_plugins.accounting import Sampling, ShuffleRound, SumRound
from shuffle_plugins.accounting.losses.distribution import COARSE
from shuffle_plugins.accounting.rounds.laws import Round, upper_law
from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import LocalRandomizer, registry
from shuffle_plugins.mechanisms.base import Norm
from shuffle_plugins.mechanisms.signs.binary_rr import BinaryRandomizedResponse
from shuffle_plugins.mechanisms.signs.representations import Frame
from shuffle_plugins.protocols import BallSum, VectorSum
from shuffle_plugins.randomness import Randomness


class RandomizerFactory(Protocol):
    """Builds a randomizer; a ``LocalRandomizer`` class is one, and so is a ``functools.partial`` of it."""

    def __call__(self, *, local_epsilon: float, dim: int, radius: float) -> LocalRandomizer:
        """Build for ε0 in nats, the number of trainable numbers, and the radius of the norm ball."""


SumFactory = Callable[..., VectorSum | BallSum]
"""``VectorSum``, ``BallSum``, a ``with_noise`` of theirs, or a partial: built for noise, dim and cohort."""

DEFAULT_RANDOMIZER = "privunit"

NO_NOISE_MULTIPLIER = (
    "a local randomizer has no noise_multiplier: every sample's report has noise of its own, set by "
    "local_epsilon, and Opacus's accountants would count it wrongly. To schedule the noise assign "
    "optimizer.local_epsilon between steps (a larger one means less noise); to log it read "
    "optimizer.effective_noise_multiplier"
)

_SUMS: dict[str, type[VectorSum] | type[BallSum]] = {VectorSum.name: VectorSum, BallSum.name: BallSum}
_SUM_NAMES = " or ".join(map(repr, _SUMS))


class Summation(ABC):
    """What happens to the rows of one round. Shares of disjoint clients add up to the round's total.

    Attributes:
        mechanism: the randomizer or the protocol.
        round: what the released sum costs (replace-one, against an observer of the model).
    """

    mechanism: LocalRandomizer | VectorSum | BallSum
    round: Round

    @abstractmethod
    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """What these clients add to the total, (dim,).

        Raises:
            ValueError: for NaN or infinite rows.
        """

    def common(self, *, randomness: Randomness) -> Tensor | None:
        """Noise that is added to the total once for all clients; None if every share has its own."""
        return None

    def estimate(self, total: Tensor) -> Tensor:
        """The released sum, floating (dim,), from everybody's total.

        Under adaptive clipping one number more: an estimate of how many rows were within the radius, less how
        many were not.
        """
        return total


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSummation(Summation):
    """Every row is randomised on its own; their sum, in any order the same but for rounding, shuffles."""

    mechanism: LocalRandomizer
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Sum of the randomised rows."""
        return self.mechanism.randomize_sum(rows, randomness=randomness, clip=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSummation(Summation):
    """Every row gives a pair: its randomised vector, and a randomised bit that says if it was clipped.

    Both are about the same record, so their ε add up (basic composition); what is shuffled are pairs.

    Attributes:
        bit: randomised response of 1 for a row within the radius and -1 for one outside.
    """

    mechanism: LocalRandomizer
    bit: BinaryRandomizedResponse
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Sum of the randomised rows, and last of the randomised bits, (dim + 1,)."""
        total = self.mechanism.randomize_sum(rows, randomness=randomness, clip=True)
        bits = within(rows, radius=self.mechanism.radius, norm=self.mechanism.norm)
        return torch.cat([total, self.bit.randomize_sum(bits, randomness=randomness).to(total)])


@dataclass(frozen=True, kw_only=True, slots=True)
class CoinSummation(Summation):
    """Rows are rounded to a lattice; the fair coins of all clients are tossed together, one draw a round.

    Shares and totals are whole numbers, so the estimate is a function of the protocol's exact total: no
    rounding of floating point tells how the total came about.
    """

    mechanism: VectorSum
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Sum of the rounded rows, int64, not private before :meth:`common` is in it."""
        return self.mechanism.share(rows, randomness=randomness)

    def common(self, *, randomness: Randomness) -> Tensor:
        """Heads among all clients' coins, int64."""
        return self.mechanism.common_noise(randomness=randomness)

    def estimate(self, total: Tensor) -> Tensor:
        """Unbiased estimate of the clipped gradients' sum, float64."""
        return self.mechanism.estimate(total, reports=self.mechanism.cohort)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedSummation(Summation):
    """Every client's bits are flipped by themselves; signs are counted by what they are about.

    Shares and totals are whole numbers, as in :class:`CoinSummation`.
    """

    mechanism: BallSum
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Signs added up by plane and coordinate, int64."""
        return self.mechanism.share(rows, randomness=randomness)

    def estimate(self, total: Tensor) -> Tensor:
        """Unbiased estimate of the clipped gradients' sum, float64."""
        return self.mechanism.estimate(total, reports=self.mechanism.cohort)


@dataclass(frozen=True, kw_only=True, slots=True)
class LongerSummation(Summation):
    """A sum of many messages of vectors that are one number longer, which says if the rest was clipped.

    A row g becomes (g clipped to the radius C, ±h), which lies in a ball of radius √(C² + h²): the protocol
    is built for that ball, and its round costs what any sum in it costs.

    Attributes:
        inner: the sum of the longer vectors.
        radius: C.
        height: h, of the last number.
    """

    inner: CoinSummation | TaggedSummation
    radius: float
    height: float

    @property
    def mechanism(self) -> VectorSum | BallSum:  # type: ignore[override]
        """The protocol of the longer vectors."""
        return self.inner.mechanism

    @property
    def round(self) -> Round:  # type: ignore[override]
        """What the released sum costs."""
        return self.inner.round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """What these clients add to the inner sum's total, (dim + 1,)."""
        factors = (self.radius / rows.l2_norm().clamp(min=self.radius)).unsqueeze(1).to(rows.dtype)
        bits = within(rows, radius=self.radius, norm=Norm.L2)
        longer = Rows([*(block * factors for block in rows.blocks), bits * self.height])
        return self.inner.share(longer, randomness=randomness)

    def common(self, *, randomness: Randomness) -> Tensor | None:
        """Noise that the inner sum adds once for all clients; None if every share has its own."""
        return self.inner.common(randomness=randomness)

    def estimate(self, total: Tensor) -> Tensor:
        """Estimate of the inner sum, with its last number in units of rows; float64."""
        longer = self.inner.estimate(total)
        return torch.cat([longer[:-1], longer[-1:] / self.height])


def norm_of(randomizer: str | RandomizerFactory | SumFactory, *, dim: int) -> Norm:
    """The norm of the ball in which a randomizer takes its vectors.

    Raises:
        ShufflePrivacyError: if it is none.
    """
    if is_sum(randomizer):
        return Norm.L2
    factory = randomizer_factory(randomizer)  # type: ignore[arg-type]
    return build_randomizer(factory, local_epsilon=1.0, dim=dim, radius=1.0).norm


class Setting(ABC):
    """What the user chose; builds the summation once dim and cohort are known."""

    radius: float
    adaptive: AdaptiveGradientClipping | None

    @abstractmethod
    def build(self, *, dim: int, population: int, cohort: int, sampling: Sampling) -> Summation:
        """The summation for one round.

        Raises:
            ShufflePrivacyError: if the factory returned something else than was asked for.
            ValueError: for values out of range.
        """

    @abstractmethod
    def changed(self, **values: float) -> Setting:
        """The same with other numbers.

        Raises:
            AttributeError: for a number that this kind does not have.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSetting(Setting):
    """A local randomizer and its ε0."""

    factory: RandomizerFactory
    local_epsilon: float
    radius: float
    adaptive: AdaptiveGradientClipping | None = None

    def build(
        self, *, dim: int, population: int, cohort: int, sampling: Sampling
    ) -> LocalSummation | PairSummation:
        """The summation of randomised rows."""
        local_epsilon = positive("local_epsilon", self.local_epsilon)
        radius = positive("max_grad_norm", self.radius)
        if self.adaptive is not None:
            bit_epsilon = self.adaptive.bit_epsilon(local_epsilon, cohort=cohort)
            gradient_epsilon = _rest(local_epsilon, bit_epsilon)
            mechanism = build_randomizer(self.factory, local_epsilon=gradient_epsilon, dim=dim, radius=radius)
            return PairSummation(
                mechanism=mechanism,
                bit=BinaryRandomizedResponse(local_epsilon=bit_epsilon),
                round=ShuffleRound(
                    local_epsilon=local_epsilon,
                    local_delta=mechanism.local_delta,
                    population=population,
                    cohort=cohort,
                    sampling=sampling,
                ),
            )
        mechanism = build_randomizer(self.factory, local_epsilon=local_epsilon, dim=dim, radius=radius)
        return LocalSummation(
            mechanism=mechanism,
            round=mechanism.round(population=population, cohort=cohort, sampling=sampling),
        )

    def changed(self, **values: float) -> LocalSetting:
        """With another ``local_epsilon`` or ``radius``."""
        if "noise_multiplier" in values:
            raise ShufflePrivacyError(NO_NOISE_MULTIPLIER)
        return replace(self, **values)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, slots=True)
class SumSetting(Setting):
    """A sum of many messages per client and the noise it is to have, as a multiple of the radius."""

    factory: SumFactory
    noise_multiplier: float
    radius: float
    adaptive: AdaptiveGradientClipping | None = None

    def build(
        self, *, dim: int, population: int, cohort: int, sampling: Sampling
    ) -> CoinSummation | TaggedSummation | LongerSummation:
        """The summation of the protocol that the factory builds."""
        if self.adaptive is not None:
            noise_multiplier = positive("noise_multiplier", self.noise_multiplier)
            radius = positive("max_grad_norm", self.radius)
            height = self.adaptive.height(radius, noise_multiplier=noise_multiplier, cohort=cohort)
            longer = replace(self, radius=math.hypot(radius, height), adaptive=None)
            inner = longer.build(dim=dim + 1, population=population, cohort=cohort, sampling=sampling)
            assert not isinstance(inner, LongerSummation)
            return LongerSummation(inner=inner, radius=radius, height=height)
        noise_multiplier = positive("noise_multiplier", self.noise_multiplier)
        radius = positive("max_grad_norm", self.radius)
        if cohort < 2:
            raise ShufflePrivacyError(
                f"batch_size (the cohort, k) is {cohort}: a sum hides a record among others', so it must be "
                "at least 2, and is better some hundreds"
            )
        try:
            protocol = self.factory(
                dim=dim,
                cohort=cohort,
                radius=radius,
                noise_multiplier=noise_multiplier,
            )
        except TypeError as error:
            raise ShufflePrivacyError(
                f"the sum cannot be built with dim, cohort, radius and noise_multiplier alone ({error})"
            ) from error
        if not isinstance(protocol, (VectorSum, BallSum)):
            raise ShufflePrivacyError(f"the factory returned {protocol!r}, neither a VectorSum nor a BallSum")
        built = (protocol.dim, protocol.cohort, protocol.radius)
        if built != (dim, cohort, radius):
            raise ShufflePrivacyError(
                f"asked for (dim, cohort, radius) = {(dim, cohort, radius)}, the sum has {built}"
            )
        if sampling is Sampling.POISSON:
            raise ShufflePrivacyError(
                "a sum of many messages per client is accounted for a cohort of known size, which Poisson "
                "sampling does not have: use sampling='without-replacement'"
            )
        if sampling is Sampling.EPOCH:
            raise ShufflePrivacyError(
                "a sum of many messages per client is private as a whole, not report by report, and no bound "
                "is known for the batches of a shuffled epoch: use sampling='without-replacement', or a "
                "local randomizer such as 'privunit'"
            )
        cost = protocol.round(population=population, sampling=sampling)
        _check_certifiable(cost, noise_multiplier=noise_multiplier)
        if isinstance(protocol, BallSum):
            return TaggedSummation(mechanism=protocol, round=cost)
        return CoinSummation(mechanism=protocol, round=cost)

    def changed(self, **values: float) -> SumSetting:
        """With another ``noise_multiplier`` or ``radius``."""
        if "local_epsilon" in values:
            raise AttributeError(
                "a sum of many messages per client has no local_epsilon, since its noise is everybody's: "
                "assign noise_multiplier instead"
            )
        return replace(self, **values)  # type: ignore[arg-type]


def _rest(whole_epsilon: float, part: float) -> float:
    """The largest float that with ``part`` adds up, exactly, to no more than the whole."""
    rest = whole_epsilon - part
    while Fraction(rest) + Fraction(part) > Fraction(whole_epsilon):
        rest = math.nextafter(rest, 0.0)
    return rest


def _check_certifiable(cost: Round, *, noise_multiplier: float) -> None:
    """Check that a round, and so any number of them, has an ε at all.

    Raises:
        ShufflePrivacyError: if its noise is too little for that.
    """
    if not isinstance(cost, SumRound):
        return
    try:
        upper_law(cost, COARSE)
    except ArithmeticError as error:
        raise ShufflePrivacyError(
            f"noise_multiplier={noise_multiplier:g} is too little noise for any ε to be certified ({error}): "
            "raise noise_multiplier, to 0.25 at least"
        ) from error


def is_sum(randomizer: object) -> bool:
    """Whether ``randomizer`` names or builds a multi-message sum, and not a local randomizer."""
    if isinstance(randomizer, functools.partial):
        return is_sum(randomizer.func)
    return any(randomizer in (name, kind, kind.with_noise) for name, kind in _SUMS.items())


def sum_factory(randomizer: str | SumFactory) -> SumFactory:
    """What builds the sum for a noise multiplier.

    Raises:
        ShufflePrivacyError: for a frame that does not exist.
    """
    if isinstance(randomizer, functools.partial):
        if "frame" in randomizer.keywords:
            chosen(Frame, randomizer.keywords["frame"], name="frame")
        return functools.partial(sum_factory(randomizer.func), *randomizer.args, **randomizer.keywords)
    found = _SUMS.get(randomizer) if isinstance(randomizer, str) else randomizer
    return found.with_noise if found in _SUMS.values() else randomizer  # type: ignore[union-attr,return-value]


def setting(
    randomizer: str | RandomizerFactory | SumFactory,
    *,
    local_epsilon: float | None,
    noise_multiplier: float | None,
    radius: float,
    adaptive: AdaptiveGradientClipping | None = None,
) -> Setting:
    """The user's choice, checked for the number that goes with it.

    Raises:
        ShufflePrivacyError: if the number that the randomizer needs is missing.
        TypeError: if one that it does not take was given.
    """
    if is_sum(randomizer):
        if local_epsilon is not None:
            raise TypeError(
                "got an unexpected keyword argument 'local_epsilon': privacy of a sum of many messages per "
                "client is set by noise_multiplier"
            )
        if noise_multiplier is None:
            raise ShufflePrivacyError(
                "a sum of many messages per client needs noise_multiplier, the deviation of the Gaussian "
                "that it protects as, over max_grad_norm; make_private_with_epsilon finds it"
            )
        return SumSetting(
            factory=sum_factory(randomizer),  # type: ignore[arg-type]
            noise_multiplier=noise_multiplier,
            radius=radius,
            adaptive=adaptive,
        )
    factory = randomizer_factory(randomizer)  # type: ignore[arg-type]
    called = f"randomizer={randomizer!r}" if isinstance(randomizer, str) else "this randomizer"
    default = " (the default)" if randomizer == DEFAULT_RANDOMIZER else ""
    if noise_multiplier is not None:
        raise TypeError(
            f"got an unexpected keyword argument 'noise_multiplier': it goes with randomizer={_SUM_NAMES}; "
            f"privacy of {called}{default} is set by local_epsilon"
        )
    if local_epsilon is None:
        raise ShufflePrivacyError(
            f"{called}{default} needs local_epsilon, ε0 of one sample's gradient in one step, such as 4.0; "
            f"or give noise_multiplier with randomizer={_SUM_NAMES}. make_private_with_epsilon finds either"
        )
    return LocalSetting(factory=factory, local_epsilon=local_epsilon, radius=radius, adaptive=adaptive)


def randomizer_factory(randomizer: str | RandomizerFactory) -> RandomizerFactory:
    """Turn a registry name into a factory; classes and factories pass through.

    Raises:
        ShufflePrivacyError: if ``randomizer`` is neither, or is an instance.
    """
    refuse_other_forms(randomizer, sums=_SUMS)
    if isinstance(randomizer, str):
        name = randomizer
        check_name(name, sums=_SUMS)
        return lambda *, local_epsilon, dim, radius: registry.get(
            name, local_epsilon=local_epsilon, dim=dim, radius=radius
        )
    if isinstance(randomizer, LocalRandomizer) or not callable(randomizer):
        raise ShufflePrivacyError(
            "randomizer must be a registered name, a LocalRandomizer class, or a factory taking "
            f"local_epsilon, dim and radius; got {randomizer!r}. An instance will not do: dim is known "
            "only here"
        )
    return randomizer


def build_randomizer(
    factory: RandomizerFactory, *, local_epsilon: float, dim: int, radius: float
) -> LocalRandomizer:
    """Build a randomizer and check that it is the one asked for.

    Raises:
        ShufflePrivacyError: if the factory returned something else than was asked for.
        ValueError: from the randomizer, for values outside its range.
    """
    try:
        mechanism = factory(local_epsilon=local_epsilon, dim=dim, radius=radius)
    except TypeError as error:
        raise ShufflePrivacyError(
            "the randomizer cannot be built with local_epsilon, dim and radius alone. Gradients are vectors: "
            f"one of categories will not do, one with further options comes as a partial ({error})"
        ) from error
    if not isinstance(mechanism, LocalRandomizer):
        raise ShufflePrivacyError(f"the randomizer factory returned {mechanism!r}, not a LocalRandomizer")
    built = (mechanism.local_epsilon, mechanism.dim, mechanism.radius)
    if built != (local_epsilon, dim, radius):
        raise ShufflePrivacyError(
            f"asked for (local_epsilon, dim, radius) = {(local_epsilon, dim, radius)}, "
            f"the randomizer has {built}"
        )
    if not mechanism.shufflable:
        raise ShufflePrivacyError(
            f"a report of {mechanism!r} can be read only by who knows whose it is: it cannot be shuffled"
        )
    return mechanism
