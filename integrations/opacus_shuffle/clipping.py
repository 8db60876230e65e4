"""How each sample's gradient is clipped before it is randomised: by layer, and with a radius that adapts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from opacus_shuffle.errors import ShufflePrivacyError, checked
from shuffle_plugins.core import Rows, adapted_norm, checks
from shuffle_plugins.mechanisms import Norm


def positive(name: str, value: object) -> float:
    """One positive finite number.

    Raises:
        ShufflePrivacyError: if it is anything else.
    """
    if isinstance(value, Sequence):
        raise ShufflePrivacyError(
            f"{name} must be one number, got {value!r}. A list goes with clipping='per_layer'"
        )
    return checked(checks.number, name, value, above=0)


def within(rows: Rows, *, radius: float, norm: Norm) -> Tensor:
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
        checked(checks.fraction, "target_unclipped_quantile", self.target_unclipped_quantile)
        positive("clipbound_learning_rate", self.clipbound_learning_rate)
        for name in ("min_clipbound", "max_clipbound", "unclipped_num_std"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))

    def starting_at(self, radius: float) -> AdaptiveClipping:
        """With both bounds set, for a first radius.

        Raises:
            ShufflePrivacyError: if the radius is not between the bounds, or they are not in order.
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
            radius: the present radius.
            unclipped: estimated share of gradients within it; noise may take it out of [0, 1].
        """
        quantile, rate = float(self.target_unclipped_quantile), float(self.clipbound_learning_rate)
        return self.held(adapted_norm(radius, share=unclipped, quantile=quantile, learning_rate=rate))

    def held(self, radius: float) -> float:
        """A radius brought within the bounds."""
        return min(max(radius, self.min_clipbound or 0.0), self.max_clipbound or math.inf)

    def bit_epsilon(self, local_epsilon: float, *, cohort: int) -> float:
        """The part of a report's ε0 that is spent on the bit.

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
        """The h of a longer vector's last number ±h, for which its sum has the chosen noise.

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

    @classmethod
    def of(cls, max_grad_norm: object, *, parameters: int, norm: Norm) -> LayerLimits:
        """One clipping radius for each parameter.

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
        limits = tuple(positive(f"max_grad_norm[{i}]", value) for i, value in enumerate(max_grad_norm))
        return cls(limits=limits, norm=norm)

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
        """Clipped copies of per-sample gradients (samples, size), one tensor for each parameter.

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
        ShufflePrivacyError: if it is none of these; it says why.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ClippedBall:
    """The ball in which all clipped gradients of a round lie, and how it comes about.

    Attributes:
        radius: the ball's radius.
        adaptive: settings of adaptive clipping; None for a fixed radius.
        limits: radii of the parameters' own balls; None if gradients are clipped as a whole.
    """

    radius: float
    adaptive: AdaptiveClipping | None = None
    limits: LayerLimits | None = None

    @classmethod
    def of(
        cls,
        clipping: str | AdaptiveClipping,
        max_grad_norm: object,
        *,
        parameters: int,
        norm: Callable[[], Norm],
    ) -> ClippedBall:
        """From what the user passed as ``clipping`` and ``max_grad_norm``.

        Args:
            clipping: as :func:`clipping_of` returns it.
            max_grad_norm: a number, or with ``"per_layer"`` a list of them.
            parameters: how many trainable parameters there are.
            norm: gives the norm of the ball; asked for only where it matters.

        Raises:
            ShufflePrivacyError: if the two do not go together, or a radius is out of range.
        """
        if clipping == "per_layer":
            limits = LayerLimits.of(max_grad_norm, parameters=parameters, norm=norm())
            return cls(radius=limits.radius, limits=limits)
        radius = positive("max_grad_norm", max_grad_norm)
        adaptive = clipping.starting_at(radius) if isinstance(clipping, AdaptiveClipping) else None
        return cls(radius=radius, adaptive=adaptive)
