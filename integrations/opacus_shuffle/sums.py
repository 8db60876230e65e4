"""The private sum of a round: the user's randomizer, how gradients are clipped for it, and what it costs.

Here a client is one training sample, and its row is its per-sample gradient.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opacus_shuffle.accountants import ShufflePrivacyError, checked
from shuffle_plugins.accounting import COARSE, Round, Sampling, ShuffleRound
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Fraction as Share
from shuffle_plugins.core.checks import Positive, Ranged
from shuffle_plugins.core.rows import Rows, adapted_norm
from shuffle_plugins.mechanisms import BinaryRandomizedResponse, LocalRandomizer, Norm, PrivateSum, registry
from shuffle_plugins.protocols import WindowedSum
from shuffle_plugins.randomness import Randomness

DEFAULT_RANDOMIZER = "privunit"
Randomizer = str | Callable[..., PrivateSum]

NO_NOISE_MULTIPLIER = (
    "a local randomizer has no noise_multiplier: every sample's report has noise of its own, set by "
    "local_epsilon, and Opacus's accountants would count it wrongly. To schedule the noise assign "
    "optimizer.local_epsilon between steps (a larger one means less noise); to log it read "
    "optimizer.effective_noise_multiplier"
)
NO_LOCAL_EPSILON = (
    "a sum of many messages per sample has no local_epsilon, since its noise is everybody's: assign "
    "noise_multiplier instead"
)


def positive(name: str, value: object) -> float:
    """One positive finite number."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise ShufflePrivacyError(
            f"{name} must be one number, got {value!r}. A list goes with clipping='per_layer'"
        )
    return checked(checks.number, name, value, above=0)


# ---- clipping -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping(Ranged):
    """How the clipping radius C follows the gradients (Andrew et al. 2021, Algorithm 1).

    After a round C becomes C·exp(-rate·(released share of gradients within C - target)). Names are those of
    Opacus's ``AdaClipDPOptimizer``. ``unclipped_num_std``, the deviation of the noise in the number of
    unclipped gradients of one round, is a tenth of the cohort by default, or more where that would take more
    than a tenth of ε0, or where a sum's noise multiplier is over a fiftieth of the cohort.
    """

    target_unclipped_quantile: Share = 0.5  # share of gradients that C is to leave unclipped
    clipbound_learning_rate: Positive = 0.2
    min_clipbound: Positive | None = None  # of C; by default a thousandth of the first
    max_clipbound: Positive | None = None  # by default a thousand times the first
    unclipped_num_std: Positive | None = None

    def __post_init__(self) -> None:
        checked(super().__post_init__)

    def starting_at(self, radius: float) -> AdaptiveClipping:
        """With both bounds set, for a first radius."""
        low = radius / 1000 if self.min_clipbound is None else self.min_clipbound
        high = radius * 1000 if self.max_clipbound is None else self.max_clipbound
        if not (low < high and low <= radius <= high):
            raise ShufflePrivacyError(
                f"min_clipbound={low:g}, max_clipbound={high:g} and max_grad_norm={radius:g}, with which the "
                "clip bound starts, must be in order: min_clipbound <= max_grad_norm <= max_clipbound, and "
                "min_clipbound < max_clipbound"
            )
        return replace(self, min_clipbound=low, max_clipbound=high)

    def moved(self, radius: float, *, unclipped: float) -> float:
        """The next radius, within the bounds, if about this share of gradients was within the present one."""
        quantile, rate = self.target_unclipped_quantile, self.clipbound_learning_rate
        return self.held(adapted_norm(radius, share=unclipped, quantile=quantile, learning_rate=rate))

    def held(self, radius: float) -> float:
        """A radius brought within the bounds."""
        return min(max(radius, self.min_clipbound or 0.0), self.max_clipbound or math.inf)

    def bit_epsilon(self, local_epsilon: float, *, cohort: float) -> float:
        """The part of a report's ε0 that is spent on the bit."""

        # The number of k bits, true with odds e^ε, has variance (s² - 1)·k/4, s = (e^ε + 1)/(e^ε - 1).
        def needed(deviation: float) -> float:
            return 2 * math.atanh(1 / math.sqrt(1 + 4 * deviation**2 / cohort))

        if self.unclipped_num_std is None:
            return min(needed(cohort / 10), local_epsilon / 10)
        found = needed(self.unclipped_num_std)
        if found > local_epsilon / 2:
            raise ShufflePrivacyError(
                f"with unclipped_num_std={self.unclipped_num_std:g} the bits that say if a gradient was "
                f"clipped need {found:.3g} of local_epsilon={local_epsilon:g}, more than half: raise "
                "unclipped_num_std or local_epsilon, or take a larger batch_size"
            )
        return found

    def height(self, radius: float, *, noise_multiplier: float, cohort: float) -> float:
        """The h of a longer vector's last number ±h, for which its sum has the chosen noise.

        With noise of z·√(C² + h²) per coordinate and bits of ±h, that is z·√(C² + h²)/(2h) in the number of
        bits. The gradients' noise, over C, becomes (z⁻² - (2·unclipped_num_std)⁻²)^(-1/2): Theorem 1.
        """
        deviation = self.unclipped_num_std or max(cohort / 10, 5 * noise_multiplier)
        room = 4 * deviation**2 - noise_multiplier**2
        if room <= 0:
            raise ShufflePrivacyError(
                f"noise_multiplier={noise_multiplier:g} must be smaller than 2 * unclipped_num_std="
                f"{2 * deviation:g} (Andrew et al. 2021, Theorem 1): raise unclipped_num_std, or leave it out"
            )
        return radius * noise_multiplier / math.sqrt(room)


def clipping_of(clipping: object, **adaptive: object) -> str | AdaptiveClipping:
    """``"flat"``, ``"per_layer"``, or how an adaptive radius moves: a name, and fields that go with it."""
    given: dict[str, Any] = {name: value for name, value in adaptive.items() if value is not None}
    if clipping == "adaptive":
        return AdaptiveClipping(**given)
    if given:
        raise ShufflePrivacyError(
            f"{', '.join(given)} belong{'s' if len(given) == 1 else ''} to clipping='adaptive', and clipping "
            f"is {clipping!r}"
        )
    if isinstance(clipping, AdaptiveClipping) or clipping in ("flat", "per_layer"):
        return clipping
    why = ". 'ghost' never has a sample's whole gradient, which the randomizer needs"
    raise ShufflePrivacyError(
        f"clipping must be 'flat', 'per_layer' or 'adaptive', got {clipping!r}"
        f"{why if clipping == 'ghost' else ''}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedBall:
    """The ball in which all clipped gradients of a round lie, and how it comes about.

    Under per-layer clipping ``limits`` are the radii of the parameters' own balls, in the optimizer's order.
    Each record is clipped by itself, so this changes what is reported and not what a report costs.
    """

    radius: float  # max_grad_norm
    adaptive: AdaptiveClipping | None = None
    limits: tuple[float, ...] | None = None
    norm: Norm = Norm.L2  # of the parameters' balls, the randomizer's

    @classmethod
    def of_layers(cls, limits: object, *, parameters: int, norm: Norm) -> ClippedBall:
        """The smallest ball that holds every gradient whose parts are within their limits."""
        if not isinstance(limits, Sequence) or isinstance(limits, str):
            raise ShufflePrivacyError(
                f"clipping='per_layer' needs a list max_grad_norm, one radius for each of the {parameters} "
                f"trainable parameters, got {limits!r}"
            )
        if len(limits) != parameters:
            raise ShufflePrivacyError(
                f"max_grad_norm has {len(limits)} radii, the optimizer holds {parameters} trainable "
                "parameters: give one for each, in their order"
            )
        each = tuple(positive(f"max_grad_norm[{i}]", value) for i, value in enumerate(limits))
        whole = {Norm.L1: math.fsum(each), Norm.L2: math.hypot(*each), Norm.LINF: max(each)}
        return cls(radius=whole[norm], limits=each, norm=norm)

    def scaled(self, radius: float) -> ClippedBall:
        """With another radius; every parameter's own is multiplied alike."""
        if self.limits is None:
            return replace(self, radius=radius)
        factor = positive("max_grad_norm", radius) / self.radius
        limits = [limit * factor for limit in self.limits]
        return self.of_layers(limits, parameters=len(limits), norm=self.norm)

    def clip(self, parts: list[Tensor]) -> list[Tensor]:
        """Clipped copies of per-sample gradients (samples, size), one for each parameter; what is not finite
        stays, for the randomizer to refuse.
        """
        clipped = []
        for part, limit in zip(parts, self.limits or (), strict=True):
            if self.norm is Norm.LINF:  # coordinate by coordinate
                clipped.append(torch.where(part.isfinite(), part.clamp(-limit, limit), part))
            else:
                norms = part.norm(1 if self.norm is Norm.L1 else 2, dim=1, keepdim=True)
                clipped.append(part * (limit / norms.clamp(min=limit)))
        return clipped


def _within(rows: Rows, *, radius: float, norm: Norm) -> Tensor:
    """1 for each row whose norm is at most the radius, -1 for the others, (rows, 1)."""
    norms = {Norm.L1: rows.l1_norm, Norm.L2: rows.l2_norm, Norm.LINF: rows.linf_norm}[norm]()
    return torch.where(norms <= radius, 1.0, -1.0).unsqueeze(1).to(rows.dtype)


# ---- one round ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RoundSum:
    """What happens to the rows of one round. Shares of disjoint clients add up to the round's total.

    Under adaptive clipping one entry more is released: an estimate of how many rows were within the radius,
    minus how many were outside. A local randomizer's report then becomes a pair with the report of a bit;
    both are about one record, so their ε add up. A row g of a multi-message sum becomes (g clipped to C, ±h),
    in a ball of radius √(C² + h²), for which the mechanism is built.

    """

    mechanism: PrivateSum  # randomises the rows and adds them up
    round: Round  # what the released sum costs (replace-one, against an observer of the model)
    bit: BinaryRandomizedResponse | None = None  # randomises the bits of pairs
    radius: float | None = None  # C, of longer rows
    height: float = 1.0  # h

    def share(self, rows: Rows, *, randomness: Randomness) -> Tensor:
        """What these clients add to the total."""
        if self.radius is not None:
            factors = (self.radius / rows.l2_norm().clamp(min=self.radius)).unsqueeze(1).to(rows.dtype)
            bits = _within(rows, radius=self.radius, norm=Norm.L2)
            rows = Rows([*(block * factors for block in rows.blocks), bits * self.height])
        total = self.mechanism.share(rows, randomness=randomness)
        if self.bit is None:
            return total
        bits = _within(rows, radius=self.mechanism.radius, norm=self.mechanism.norm)
        return torch.cat([total, self.bit.share(bits, randomness=randomness).to(total)])

    def estimate(self, total: Tensor, *, reports: int) -> Tensor:
        """The released sum, floating (dim,), from the total of ``reports`` clients and common noise."""
        if self.bit is not None:
            return torch.cat([self.mechanism.estimate(total[:-1], reports=reports), total[-1:]])
        released = self.mechanism.estimate(total, reports=reports)
        return released if self.radius is None else torch.cat([released[:-1], released[-1:] / self.height])


# ---- records that have an ε0 each ------------------------------------------------------------------------


def record_levels(
    column: object, *, population: int, sampling: Sampling, clipping: object
) -> NDArray[np.float64]:
    """The ε0 of every record, by its number in the data set; refused where such rounds are not accounted."""
    if not isinstance(column, Tensor):
        column = checked(np.asarray, column, dtype=np.float64)  # torch would round Python's floats to float32
    levels = torch.as_tensor(column).to("cpu", torch.float64, copy=True).numpy()  # the caller's may change
    if levels.shape != (population,):
        raise ShufflePrivacyError(
            f"local_epsilon must be one number, or one for each of the {population} records in their order; "
            f"got the shape {levels.shape}"
        )
    for level in np.unique(levels).tolist():
        checked(checks.local_epsilon, level, name="local_epsilon")
    if sampling is not Sampling.POISSON:
        raise ShufflePrivacyError(
            "a record is hidden by those of its own level, of whom a batch of fixed size has no fixed "
            "number: pass sampling='poisson' with a local_epsilon for each record"
        )
    if isinstance(clipping_of(clipping), AdaptiveClipping):
        raise ShufflePrivacyError(
            "clipping='adaptive' is accounted for one local_epsilon, not for one of each record"
        )
    return levels


def sums_by_level(
    levels: NDArray[np.float64], chosen: SumSetting, *, population: int, cohort: int, **draw: Any
) -> dict[float, RoundSum]:
    """A sum for the records of each level, the lowest first."""
    sums = {}
    for level, count in zip(*(each.tolist() for each in np.unique(levels, return_counts=True)), strict=True):
        own = {"population": count, "cohort": count * cohort / population}
        sums[level] = replace(chosen, privacy=level).build(**own, **draw)
        if not isinstance(sums[level].mechanism, LocalRandomizer):
            raise ShufflePrivacyError(
                f"{chosen.described} adds reports up before they are private: a local_epsilon for each "
                "record is for local randomizers, such as 'privunit-g'"
            )
    return sums


# ---- what randomises ------------------------------------------------------------------------------------


def _innermost(factory: Any) -> Any:
    """The class or function behind partials and bound methods."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__self__", None) or factory


def _parameters(factory: Callable[..., Any]) -> Sequence[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except (TypeError, ValueError):  # a callable without a signature
        return []


def _with_noise(factory: Any) -> Callable[..., Any]:
    """What takes the noise multiplier: the class's ``with_noise`` where a class or its partial was given."""
    if isinstance(factory, functools.partial):
        return functools.partial(_with_noise(factory.func), *factory.args, **factory.keywords)
    found: Callable[..., Any] = getattr(factory, "with_noise", factory)
    if "noise_multiplier" not in _parameters(found):
        raise ShufflePrivacyError(
            _no_builder(getattr(factory, "__qualname__", repr(factory)), _innermost(factory))
        )
    return found


def _no_builder(what: str, kind: type[PrivateSum]) -> str:
    return (
        f"{what} will not do as randomizer, since dim and cohort are known only here: pass {kind.name!r}, or "
        f"{kind.__name__}.with_noise (as a functools.partial with further options), with noise_multiplier; "
        "make_private_with_epsilon calibrates it to a target"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SumSetting:
    """The private sum that a user chose: what builds it, its privacy number, and the ball of gradients."""

    factory: Callable[..., Any]
    privacy_parameter: str  # "local_epsilon" or "noise_multiplier"
    described: str  # for messages
    ball: ClippedBall
    privacy: float = 1.0

    @classmethod
    def of(
        cls, randomizer: Any, clipping: object, max_grad_norm: object, *, sizes: Sequence[int], cohort: int
    ) -> SumSetting:
        """From what the user passed, for parameters of these sizes; its privacy number is not chosen yet."""
        described = f"randomizer={randomizer!r}" if isinstance(randomizer, str) else "this randomizer"
        if randomizer == DEFAULT_RANDOMIZER:
            described += " (the default)"
        factory = randomizer
        if isinstance(randomizer, str):
            checked(registry.check_known, randomizer)
            factory = registry.factory(randomizer)
        owner = _innermost(factory)
        if owner is WindowedSum or isinstance(owner, WindowedSum):
            raise ShufflePrivacyError(
                "windows of sums are for records that are kept apart in time, which a data loader does not "
                "do: take 'vector-sum', or WindowedSum in Flower"
            )
        if isinstance(owner, PrivateSum) and owner.privacy_parameter == "noise_multiplier":
            raise ShufflePrivacyError(_no_builder("a built sum", type(owner)))
        if isinstance(owner, PrivateSum) or not callable(factory):
            raise ShufflePrivacyError(
                "randomizer must be a registered name, a LocalRandomizer class, or a factory taking "
                f"local_epsilon, dim and radius; got {randomizer!r}. An instance will not do: dim is known "
                "only here"
            )
        takes_noise = "noise_multiplier" in _parameters(factory)
        if isinstance(owner, type) and issubclass(owner, PrivateSum):
            takes_noise = owner.privacy_parameter == "noise_multiplier"
        found = cls(
            factory=_with_noise(factory) if takes_noise else factory,
            privacy_parameter="noise_multiplier" if takes_noise else "local_epsilon",
            described=described,
            ball=ClippedBall(radius=1.0),
        )
        clipping = clipping_of(clipping)
        if clipping == "per_layer":
            norm = getattr(_innermost(found.factory), "norm", None)
            if not isinstance(norm, Norm):
                norm = found.mechanism(dim=sum(sizes), cohort=cohort).norm
            return replace(found, ball=ClippedBall.of_layers(max_grad_norm, parameters=len(sizes), norm=norm))
        radius = positive("max_grad_norm", max_grad_norm)
        adaptive = clipping.starting_at(radius) if isinstance(clipping, AdaptiveClipping) else None
        return replace(found, ball=ClippedBall(radius=radius, adaptive=adaptive))

    def with_privacy(self, *, local_epsilon: float | None, noise_multiplier: float | None) -> SumSetting:
        """With that one of the two privacy numbers which the randomizer takes."""
        sums = " or ".join(map(repr, registry.available(registry.Kind.SUMS)))
        if self.takes_noise_multiplier:
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
            return replace(self, privacy=noise_multiplier)
        if noise_multiplier is not None:
            raise TypeError(
                "got an unexpected keyword argument 'noise_multiplier': for Opacus's noise pass "
                f"randomizer='vector-sum' (all that take it: {sums}); or keep {self.described} and pass "
                "local_epsilon="
            )
        if local_epsilon is None:
            raise ShufflePrivacyError(
                f"{self.described} needs local_epsilon, ε0 of one sample's gradient in one step, such as "
                f"4.0; or give noise_multiplier with randomizer={sums}. make_private_with_epsilon finds one"
            )
        return replace(self, privacy=local_epsilon)

    @property
    def takes_noise_multiplier(self) -> bool:
        """Whether privacy is set by a ``noise_multiplier``, and not by a ``local_epsilon``."""
        return self.privacy_parameter == "noise_multiplier"

    def mechanism(self, privacy: float = 1.0, *, dim: int, cohort: float, radius: float = 1.0) -> PrivateSum:
        """Build what randomises, and check what comes out."""
        asked: dict[str, float] = {"dim": dim, "radius": radius}
        asked |= {"cohort": cohort} if self.takes_noise_multiplier else {"local_epsilon": privacy}
        arguments = {**asked, self.privacy_parameter: privacy}
        try:
            built = self.factory(**arguments)
        except TypeError as error:
            raise ShufflePrivacyError(
                f"the randomizer cannot be built with {', '.join(sorted(arguments))} "
                "alone. Gradients are vectors: one of categories will not do, one with further options comes "
                f"as a functools.partial ({error})"
            ) from error
        if not isinstance(built, PrivateSum):
            raise ShufflePrivacyError(
                f"the randomizer factory returned {built!r}, not a LocalRandomizer or another PrivateSum"
            )
        if isinstance(built, LocalRandomizer) and not built.shufflable:
            raise ShufflePrivacyError(
                f"a report of {built!r} can be read only by whoever knows whose it is: it cannot be shuffled"
            )
        found = {name: getattr(built, name) for name in asked if name != "cohort" or built.cohort is not None}
        wrong = {name: value for name, value in found.items() if value != asked[name]}
        if wrong:
            raise ShufflePrivacyError(f"asked for {asked}, the randomizer has {wrong}")
        return built

    def build(self, *, dim: int, population: int, cohort: float, sampling: Sampling) -> RoundSum:
        """Build the sum of one round, or refuse batches for which no accounting is known."""
        privacy = positive(self.privacy_parameter, self.privacy)
        radius, adaptive = positive("max_grad_norm", self.ball.radius), self.ball.adaptive
        draw: dict[str, Any] = {"population": population, "cohort": cohort, "sampling": sampling}
        if self.takes_noise_multiplier and cohort < 2:
            raise ShufflePrivacyError(
                f"batch_size (the cohort, k) is {cohort}: a sum hides a record among others', so it must be "
                "at least 2, and is better some hundreds"
            )
        if adaptive is None:
            mechanism = self.mechanism(privacy, dim=dim, cohort=cohort, radius=radius)
            return RoundSum(mechanism=mechanism, round=self._round(mechanism, **draw))
        if self.takes_noise_multiplier:
            height = adaptive.height(radius, noise_multiplier=privacy, cohort=cohort)
            ball = math.hypot(radius, height)
            longer = self.mechanism(privacy, dim=dim + 1, cohort=cohort, radius=ball)
            if longer.norm is not Norm.L2:
                raise ShufflePrivacyError("clipping='adaptive' needs a sum of vectors in an l2 ball")
            cost = self._round(longer, **draw)
            return RoundSum(mechanism=longer, round=cost, radius=radius, height=height)
        bit_epsilon = adaptive.bit_epsilon(privacy, cohort=cohort)
        mechanism = self.mechanism(_rest(privacy, bit_epsilon), dim=dim, cohort=cohort, radius=radius)
        if mechanism.must_be_summed:
            raise ShufflePrivacyError(
                f"clipping='adaptive' adds a bit to every report, and reports of {mechanism.name!r} may be "
                "seen added up only: use a local randomizer, such as 'privunit', or another clipping"
            )
        return RoundSum(
            mechanism=mechanism,
            bit=BinaryRandomizedResponse(local_epsilon=bit_epsilon),
            round=ShuffleRound(
                local_epsilon=privacy, local_delta=mechanism.local_delta, channel_fixed=True, **draw
            ),
        )

    def _round(self, mechanism: PrivateSum, *, population: int, cohort: float, sampling: Sampling) -> Round:
        """What a round of the mechanism costs."""
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
        if math.isfinite(mechanism.local_epsilon):
            return cost
        try:
            cost.upper_losses(COARSE)  # without a finite ε0 there may be no ε at all
        except ArithmeticError as error:
            name, value = self.privacy_parameter, self.privacy
            raise ShufflePrivacyError(
                f"{name}={value:g} is too little noise for any ε to be certified ({error}): "
                f"raise {name}, to 0.25 at least"
            ) from error
        return cost


def _rest(whole_epsilon: float, part: float) -> float:
    """The largest float that with ``part`` adds up, exactly, to no more than the whole."""
    rest = whole_epsilon - part
    while Fraction(rest) + Fraction(part) > Fraction(whole_epsilon):
        rest = math.nextafter(rest, 0.0)
    return rest
