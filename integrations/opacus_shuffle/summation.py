"""How one round's gradients become the sum that is released: each randomised alone, or with shared coins."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Protocol

import torch
from torch import Tensor

from opacus_shuffle.errors import ShufflePrivacyError
from opacus_shuffle.names import check_name, chosen, refuse_other_forms
from shuffle_plugins.accounting import Sampling, SumRound
from shuffle_plugins.accounting.laws import Round, upper_law
from shuffle_plugins.accounting.losses import COARSE
from shuffle_plugins.mechanisms import LocalRandomizer, Rows, registry
from shuffle_plugins.mechanisms.base import Norm
from shuffle_plugins.mechanisms.sampled.spreading import Frame
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
        """The released sum, floating (dim,), from everybody's total."""
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
class CoinSummation(Summation):
    """Rows are rounded to a lattice; the fair coins of all clients are tossed together, one draw a round.

    Shares and totals are whole numbers, so the estimate is a function of the protocol's exact total: no
    rounding of floating point tells how the total came about.
    """

    mechanism: VectorSum
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Sum of the rounded rows, int64, not private before :meth:`common` is in it."""
        return self.mechanism.rounded_total(rows, randomness=randomness)

    def common(self, *, randomness: Randomness) -> Tensor:
        """Heads among all clients' coins, int64."""
        return self.mechanism.all_coins(randomness=randomness)

    def estimate(self, total: Tensor) -> Tensor:
        """Unbiased estimate of the clipped gradients' sum, float64."""
        return self.mechanism.decode(total, clients=self.mechanism.clients)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedSummation(Summation):
    """Every client's bits are flipped by themselves; signs are counted by what they are about.

    Shares and totals are whole numbers, as in :class:`CoinSummation`.
    """

    mechanism: BallSum
    round: Round

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """Signs added up by plane and coordinate, int64."""
        return self.mechanism.signed_total(rows, randomness=randomness)

    def estimate(self, total: Tensor) -> Tensor:
        """Unbiased estimate of the clipped gradients' sum, float64."""
        return self.mechanism.decode(total, clients=self.mechanism.clients)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerLimits:
    """Clipping of every parameter's gradient to a ball of its own, before the randomizer sees the whole.

    Each record is clipped by itself, so this changes what is reported and not what a report costs. The
    clipped parts together lie in a ball of ``radius``, which is what the randomizer is built for.

    Attributes:
        limits: radius of each parameter's ball, in the optimizer's order.
        norm: of all balls, the randomizer's.
    """

    limits: tuple[float, ...]
    norm: Norm

    @property
    def radius(self) -> float:
        """Radius of a ball that holds every gradient whose parts are within their limits."""
        if self.norm is Norm.L1:
            return math.fsum(self.limits)
        return max(self.limits) if self.norm is Norm.LINF else math.hypot(*self.limits)

    def scaled(self, radius: float) -> LayerLimits:
        """With every limit multiplied alike, so that they make up another radius."""
        factor = radius / self.radius
        return replace(self, limits=tuple(limit * factor for limit in self.limits))

    def clip(self, parts: list[Tensor]) -> list[Tensor]:
        """Clipped copies of per-sample gradients (samples, size), one tensor a parameter.

        NaN and infinite entries stay, for the randomizer to refuse.
        """
        return [self._clip(part, limit) for part, limit in zip(parts, self.limits, strict=True)]

    def _clip(self, part: Tensor, limit: float) -> Tensor:
        if self.norm is Norm.LINF:  # coordinate by coordinate
            return torch.where(part.isfinite(), part.clamp(-limit, limit), part)
        norms: Tensor = part.norm(1 if self.norm is Norm.L1 else 2, dim=1, keepdim=True)
        return part * (limit / norms.clamp(min=limit))


def check_clipping(clipping: object) -> None:
    """Check a way of clipping by its name.

    Raises:
        ShufflePrivacyError: if it is none that is done here; it says why.
    """
    if clipping in ("flat", "per_layer"):
        return
    why = ""
    if clipping == "adaptive":
        why = (
            ". 'adaptive' lets the radius follow how many gradients were clipped, which every sample would "
            "have to report privately, at a cost that is not accounted for here: choose max_grad_norm on "
            "public data, or let a schedule of opacus.schedulers lower it"
        )
    elif clipping == "ghost":
        why = ". 'ghost' never has a sample's whole gradient, which the randomizer needs"
    raise ShufflePrivacyError(f"clipping must be 'flat' or 'per_layer', got {clipping!r}{why}")


def layer_limits(max_grad_norm: object, *, parameters: int, norm: Norm) -> LayerLimits:
    """One clipping radius a parameter.

    Raises:
        ShufflePrivacyError: if there are not as many as parameters, or one is no positive number.
    """
    if not isinstance(max_grad_norm, Sequence) or isinstance(max_grad_norm, str):
        raise ShufflePrivacyError(
            f"clipping='per_layer' needs a list max_grad_norm, one radius for each of the {parameters} "
            f"trainable parameters, got {max_grad_norm!r}"
        )
    if len(max_grad_norm) != parameters:
        raise ShufflePrivacyError(
            f"max_grad_norm has {len(max_grad_norm)} radii, the optimizer holds {parameters} trainable "
            "parameters: give one for each, in their order"
        )
    return LayerLimits(
        limits=tuple(positive(f"max_grad_norm[{i}]", value) for i, value in enumerate(max_grad_norm)),
        norm=norm,
    )


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

    def build(self, *, dim: int, population: int, cohort: int, sampling: Sampling) -> LocalSummation:
        """The summation of randomised rows."""
        mechanism = build_randomizer(
            self.factory,
            local_epsilon=positive("local_epsilon", self.local_epsilon),
            dim=dim,
            radius=positive("max_grad_norm", self.radius),
        )
        return LocalSummation(
            mechanism=mechanism,
            round=mechanism.shuffle_round(population=population, cohort=cohort, sampling=sampling),
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

    def build(
        self, *, dim: int, population: int, cohort: int, sampling: Sampling
    ) -> CoinSummation | TaggedSummation:
        """The summation of the protocol that the factory builds."""
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
                clients=cohort,
                radius=radius,
                noise_multiplier=noise_multiplier,
            )
        except TypeError as error:
            raise ShufflePrivacyError(
                f"the sum cannot be built with dim, clients, radius and noise_multiplier alone ({error})"
            ) from error
        if not isinstance(protocol, (VectorSum, BallSum)):
            raise ShufflePrivacyError(f"the factory returned {protocol!r}, neither a VectorSum nor a BallSum")
        built = (protocol.dim, protocol.clients, protocol.radius)
        if built != (dim, cohort, radius):
            raise ShufflePrivacyError(
                f"asked for (dim, clients, radius) = {(dim, cohort, radius)}, the sum has {built}"
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
        cost = protocol.sum_round(population=population, sampling=sampling)
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
    return LocalSetting(factory=factory, local_epsilon=local_epsilon, radius=radius)


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


def positive(name: str, value: object) -> float:
    """One positive finite number, a Python or NumPy scalar, as a float.

    Raises:
        ShufflePrivacyError: if it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        lists = ". A list goes with clipping='per_layer'" if isinstance(value, Sequence) else ""
        raise ShufflePrivacyError(f"{name} must be one finite number, got {value!r}{lists}")
    if value <= 0:
        raise ShufflePrivacyError(f"{name} must be positive, got {value!r}")
    return float(value)


def whole(name: str, value: object) -> int:
    """One positive whole number, a Python or NumPy scalar, as an int.

    Raises:
        ShufflePrivacyError: if it is anything else.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ShufflePrivacyError(f"{name} must be a positive integer, got {value!r}")
    return int(value)
