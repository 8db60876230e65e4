"""What a user may pass as ``randomizer=``, and how a private sum is built from it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from opacus_shuffle.errors import ShufflePrivacyError, checked
from shuffle_plugins.mechanisms import LocalRandomizer, Norm, PrivateSum, registry

DEFAULT_RANDOMIZER = "privunit"

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


class RandomizerFactory(Protocol):
    """Builds a randomizer; a ``LocalRandomizer`` class is one, and so is a ``functools.partial`` of it."""

    def __call__(self, *, local_epsilon: float, dim: int, radius: float) -> PrivateSum:
        """Build for ε0 in nats, the number of trainable numbers, and the radius of the norm ball."""


class SumFactory(Protocol):
    """Builds a multi-message sum; ``VectorSum``, its ``with_noise``, and partials of either are such."""

    def __call__(self, *, noise_multiplier: float, dim: int, cohort: int, radius: float) -> PrivateSum:
        """Build for a noise multiplier, the number of trainable numbers, the cohort and the ball's radius."""


Randomizer = str | RandomizerFactory | SumFactory
"""A name in the registry, a :class:`PrivateSum` class, a partial of it, or a factory of either kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SumBuilder:
    """Builds the private sum that a user chose, once the number of parameters and the cohort are known.

    Attributes:
        factory: called with the privacy parameter, ``dim``, ``radius`` and, for sums, ``cohort``.
        privacy_parameter: ``"local_epsilon"`` or ``"noise_multiplier"``, the number that sets its privacy.
        described: the choice in words, for messages.
    """

    factory: Callable[..., Any]
    privacy_parameter: str
    described: str

    @classmethod
    def of(cls, randomizer: Any) -> SumBuilder:
        """From what the user passed.

        Raises:
            ShufflePrivacyError: if it cannot build a private sum; it says what to pass.
        """
        described = f"randomizer={randomizer!r}" if isinstance(randomizer, str) else "this randomizer"
        if randomizer == DEFAULT_RANDOMIZER:
            described += " (the default)"
        if isinstance(randomizer, str):
            checked(registry.check_known, randomizer)
            factory = registry.factory(randomizer)
            kind = registry.kind_of(randomizer)
            parameter = "noise_multiplier" if kind is registry.Kind.SUMS else "local_epsilon"
        else:
            _refuse_built(randomizer)
            factory, parameter = randomizer, _privacy_parameter(randomizer)
        return cls(factory=_with_noise(factory, parameter), privacy_parameter=parameter, described=described)

    @property
    def takes_noise_multiplier(self) -> bool:
        """Whether privacy is set by a noise multiplier, and otherwise by ``local_epsilon``."""
        return self.privacy_parameter == "noise_multiplier"

    def norm(self, *, dim: int, cohort: int) -> Norm:
        """The norm of the ball in which vectors are taken.

        Raises:
            ShufflePrivacyError: if what is built is no private sum.
        """
        of = getattr(_innermost(self.factory), "norm", None)
        return of if isinstance(of, Norm) else self.build(1.0, dim=dim, cohort=cohort, radius=1.0).norm

    def build(self, privacy: float, *, dim: int, cohort: int, radius: float) -> PrivateSum:
        """Build the sum, and check that it is the one asked for.

        Args:
            privacy: ``local_epsilon`` or ``noise_multiplier``.
            dim: length of a gradient.
            cohort: k, the size of a batch.
            radius: radius of the norm ball.

        Raises:
            ShufflePrivacyError: if the factory returned something else than was asked for.
            ValueError: from the factory, for values outside its range.
        """
        asked: dict[str, float] = {"dim": dim, "radius": radius}
        if self.takes_noise_multiplier:
            asked["cohort"] = cohort
        else:
            asked["local_epsilon"] = privacy
        try:
            built = self.factory(**{**asked, self.privacy_parameter: privacy})
        except TypeError as error:
            raise ShufflePrivacyError(
                f"the randomizer cannot be built with {', '.join(sorted({*asked, self.privacy_parameter}))} "
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
        found = {name: getattr(built, name) for name in asked}
        if built.cohort is None:
            found.pop("cohort", None)
        wrong = {name: value for name, value in found.items() if value != asked[name]}
        if wrong:
            raise ShufflePrivacyError(f"asked for {asked}, the randomizer has {wrong}")
        return built


def _innermost(factory: Any) -> Any:
    """The class or function behind partials and bound methods."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__self__", None) or factory


def _refuse_built(randomizer: object) -> None:
    """Refuse what builds nothing.

    Raises:
        ShufflePrivacyError: for an instance, or anything that cannot be called.
    """
    owner = _innermost(randomizer)
    if isinstance(owner, PrivateSum) and owner.privacy_parameter == "noise_multiplier":
        raise ShufflePrivacyError(_no_builder("a built sum", type(owner)))
    if isinstance(owner, PrivateSum) or not callable(randomizer):
        raise ShufflePrivacyError(
            "randomizer must be a registered name, a LocalRandomizer class, or a factory taking "
            f"local_epsilon, dim and radius; got {randomizer!r}. An instance will not do: dim is known "
            "only here"
        )


def _privacy_parameter(factory: Any) -> str:
    """The number by which a factory's sum is made private: its class says so, or its signature."""
    owner = _innermost(factory)
    if isinstance(owner, type) and issubclass(owner, PrivateSum):
        return owner.privacy_parameter
    return "noise_multiplier" if "noise_multiplier" in _parameters(factory) else "local_epsilon"


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return {}


def _with_noise(factory: Any, parameter: str) -> Callable[..., Any]:
    """What takes the noise multiplier: the class's ``with_noise`` where a class or its partial was given.

    Raises:
        ShufflePrivacyError: for another builder of a sum, which takes no noise multiplier.
    """
    if parameter != "noise_multiplier":
        return factory  # type: ignore[no-any-return]
    if isinstance(factory, functools.partial):
        inner = _with_noise(factory.func, parameter)
        return functools.partial(inner, *factory.args, **factory.keywords)
    found = getattr(factory, "with_noise", factory)
    if "noise_multiplier" not in _parameters(found):
        what = getattr(factory, "__qualname__", repr(factory))
        raise ShufflePrivacyError(_no_builder(what, _innermost(factory)))
    return found  # type: ignore[no-any-return]


def _no_builder(what: str, kind: type[PrivateSum]) -> str:
    return (
        f"{what} will not do as randomizer, since dim and cohort are known only here: pass {kind.name!r}, or "
        f"{kind.__name__}.with_noise (as a functools.partial with further options), with noise_multiplier; "
        "make_private_with_epsilon calibrates it to a target"
    )


def sum_names() -> str:
    """Names of the registered sums, for messages."""
    return " or ".join(map(repr, registry.available(registry.Kind.SUMS)))
