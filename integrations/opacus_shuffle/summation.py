"""How one round's gradients become the sum that is released: each randomised alone, or with shared coins."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Integral, Real
from typing import Protocol

import torch
from torch import Tensor

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
        bits = _within(rows, radius=self.mechanism.radius, norm=self.mechanism.norm)
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
        bits = _within(rows, radius=self.radius, norm=Norm.L2)
        longer = Rows([*(block * factors for block in rows.blocks), bits * self.height])
        return self.inner.share(longer, randomness=randomness)

    def common(self, *, randomness: Randomness) -> Tensor | None:
        """Noise that the inner sum adds once for all clients; None if every share has its own."""
        return self.inner.common(randomness=randomness)

    def estimate(self, total: Tensor) -> Tensor:
        """Estimate of the inner sum, with its last number in units of rows; float64."""
        longer = self.inner.estimate(total)
        return torch.cat([longer[:-1], longer[-1:] / self.height])


def _within(rows: Rows, *, radius: float, norm: Norm) -> Tensor:
    """1 for each row whose norm is at most the radius, -1 for the others, (rows, 1)."""
    norms = {Norm.L1: rows.l1_norm, Norm.L2: rows.l2_norm, Norm.LINF: rows.linf_norm}[norm]()
    return torch.where(norms <= radius, 1.0, -1.0).unsqueeze(1).to(rows.dtype)


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveClipping:
    """How the clipping radius follows the gradients (Andrew, Thakkar, McMahan, Ramaswamy 2021, Algorithm 1).

    Each record also reports, privately, whether its gradient was within the radius C. After a round is
    released, C becomes C·exp(-rate·(estimated share of such gradients - target)). That is a function of what
    was released, so moving C costs nothing more. Names are those of Opacus's ``AdaClipDPOptimizer``.

    Attributes:
        target_unclipped_quantile: share of gradients that C is to leave unclipped, in [0, 1].
        clipbound_learning_rate: rate, positive.
        min_clipbound: least C; None for a thousandth of the first.
        max_clipbound: largest C; None for a thousand times the first.
        unclipped_num_std: deviation of the noise in the number of unclipped gradients of one round. None for
            a tenth of the cohort, or more where that would take more than a tenth of ε0, or where a sum's
            noise multiplier is over a fiftieth of the cohort.

    Raises:
        ShufflePrivacyError: for numbers out of range.
    """

    target_unclipped_quantile: float = 0.5
    clipbound_learning_rate: float = 0.2
    min_clipbound: float | None = None
    max_clipbound: float | None = None
    unclipped_num_std: float | None = None

    def __post_init__(self) -> None:
        quantile = self.target_unclipped_quantile
        if isinstance(quantile, bool) or not isinstance(quantile, Real) or not 0 <= quantile <= 1:
            raise ShufflePrivacyError(f"target_unclipped_quantile must be in [0, 1], got {quantile!r}")
        positive("clipbound_learning_rate", self.clipbound_learning_rate)
        for name in ("min_clipbound", "max_clipbound", "unclipped_num_std"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    def starting_at(self, radius: float) -> AdaptiveClipping:
        """With both bounds set, for a first radius.

        Raises:
            ShufflePrivacyError: if the bounds do not hold it, or are not in order.
        """
        low = radius / 1000 if self.min_clipbound is None else float(self.min_clipbound)
        high = radius * 1000 if self.max_clipbound is None else float(self.max_clipbound)
        if not (low < high and low <= radius <= high):
            raise ShufflePrivacyError(
                f"min_clipbound={low:g}, max_clipbound={high:g} and max_grad_norm={radius:g}, with which the "
                "clip bound starts, must be in order: min_clipbound <= max_grad_norm <= max_clipbound, and "
                "min_clipbound < max_clipbound"
            )
        return replace(self, min_clipbound=low, max_clipbound=high)

    def moved(self, radius: float, *, unclipped: float) -> float:
        """The next radius, within the bounds.

        Args:
            radius: the present one.
            unclipped: estimated share of gradients within it; noise may take it out of [0, 1].
        """
        error = unclipped - float(self.target_unclipped_quantile)
        move = -float(self.clipbound_learning_rate) * error
        return self.held(radius * math.exp(min(max(move, -700.0), 700.0)))

    def held(self, radius: float) -> float:
        """A radius brought within the bounds."""
        return min(max(radius, self.min_clipbound or 0.0), self.max_clipbound or math.inf)

    def bit_epsilon(self, local_epsilon: float, *, cohort: int) -> float:
        """What the bit gets of a report's ε0.

        The noise of k bits, each sent truthfully with odds e^ε, has variance (s² - 1)·k/4 in their number,
        with s = (e^ε + 1)/(e^ε - 1).

        Raises:
            ShufflePrivacyError: if it would get more than half.
        """

        def needed(deviation: float) -> float:
            return 2 * math.atanh(1 / math.sqrt(1 + 4 * deviation**2 / cohort))

        if self.unclipped_num_std is None:
            return min(needed(cohort / 10), local_epsilon / 10)
        found = needed(float(self.unclipped_num_std))
        if found > local_epsilon / 2:
            raise ShufflePrivacyError(
                f"with unclipped_num_std={self.unclipped_num_std:g} the bits that say if a gradient was "
                f"clipped need {found:.3g} of local_epsilon={local_epsilon:g}, more than half: raise "
                "unclipped_num_std or local_epsilon, or take a larger batch_size"
            )
        return found

    def height(self, radius: float, *, noise_multiplier: float, cohort: int) -> float:
        """Of the last number of a longer vector, so that its sum has the chosen noise.

        With noise of z·√(C² + h²) per coordinate and bits of ±h, that is z·√(C² + h²)/(2h) in the number of
        bits. The gradients' noise, over C, becomes (z⁻² - (2·unclipped_num_std)⁻²)^(-1/2): Theorem 1.

        Raises:
            ShufflePrivacyError: if no height is enough.
        """
        deviation = self.unclipped_num_std
        if deviation is None:
            deviation = max(cohort / 10, 5 * noise_multiplier)
        room = 4 * float(deviation) ** 2 - noise_multiplier**2
        if room <= 0:
            raise ShufflePrivacyError(
                f"noise_multiplier={noise_multiplier:g} must be smaller than 2 * unclipped_num_std="
                f"{2 * deviation:g} (Andrew et al. 2021, Theorem 1): raise unclipped_num_std, or leave it out"
            )
        return radius * noise_multiplier / math.sqrt(room)


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


def clipping_of(clipping: object, **adaptive: float | None) -> str | AdaptiveClipping:
    """A way of clipping by its name, with what goes with ``"adaptive"``.

    Args:
        clipping: ``"flat"``, ``"per_layer"``, ``"adaptive"``, or an :class:`AdaptiveClipping`.
        adaptive: fields of :class:`AdaptiveClipping`; None for what was not given.

    Raises:
        ShufflePrivacyError: if it is none that is done here; it says why.
    """
    given = {name: value for name, value in adaptive.items() if value is not None}
    if clipping == "adaptive":
        return AdaptiveClipping(**given)
    if given:
        raise ShufflePrivacyError(
            f"{', '.join(given)} belong{'s' if len(given) == 1 else ''} to clipping='adaptive', and clipping "
            f"is {clipping!r}"
        )
    if isinstance(clipping, AdaptiveClipping):
        return clipping
    if isinstance(clipping, str) and clipping in ("flat", "per_layer"):
        return clipping
    why = ""
    if clipping == "ghost":
        why = ". 'ghost' never has a sample's whole gradient, which the randomizer needs"
    raise ShufflePrivacyError(f"clipping must be 'flat', 'per_layer' or 'adaptive', got {clipping!r}{why}")


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
    adaptive: AdaptiveClipping | None

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
    adaptive: AdaptiveClipping | None = None

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
    adaptive: AdaptiveClipping | None = None

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
    adaptive: AdaptiveClipping | None = None,
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
