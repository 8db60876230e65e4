"""A mechanism as it is agreed on between parties: its name and numbers, as text, as a digest, built."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Self

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import registry

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms.base import LocalRandomizer

Option = int | float | str | bool

MAX_TEXT = 4096
"""Longest JSON text that is read, in characters."""

_FIELDS = {"local_epsilon", "name", "options", "radius"}
_RESERVED = {"dim", "local_epsilon", "name", "radius"}
_BUILT = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class MechanismSpec:
    """A randomizer of vectors in a norm ball, all but its dimension.

    Two parties that hold equal specs and the same dimension build the same mechanism and read each other's
    reports. A spec may come from somebody who is not trusted: what it builds has the ε0 it says, or building
    fails.

    Attributes:
        name: of a registered mechanism, see :func:`shuffle_plugins.mechanisms.available`.
        local_epsilon: ε0 of one report in nats, in [1e-9, 500].
        radius: of the ball, in the mechanism's norm, in [1e-30, 1e30].
        options: the mechanism's own further parameters, (name, value) each; kept sorted by name.

    Raises:
        ValueError: if a field is out of range or of another type. Whether the mechanism exists, and takes the
            options, :meth:`build` tells.
    """

    name: str
    local_epsilon: float
    radius: float = 1.0
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a mechanism's name is a string, got {self.name!r}")
        object.__setattr__(self, "local_epsilon", checks.local_epsilon(self.local_epsilon))
        try:
            object.__setattr__(self, "radius", checks.radius(self.radius))
        except OverflowError as error:
            raise ValueError("radius does not fit in a float") from error
        object.__setattr__(self, "options", _checked(self.options))

    def build(self, *, dim: int) -> LocalRandomizer:
        """The mechanism for vectors of length ``dim``. Each process keeps the last few it built.

        Raises:
            ValueError: if there is no such mechanism, it takes categories, it refuses an option or the
                dimension, its reports cannot be shuffled, or its ε0 is not the spec's.
        """
        return _built(self.to_json(), checks.dim(dim))

    def to_json(self) -> str:
        """The spec as canonical JSON: equal text means the same spec, to the last digit."""
        fields = {
            "local_epsilon": self.local_epsilon,
            "name": self.name,
            "options": dict(self.options),
            "radius": self.radius,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if the text is not a spec's: of another type, too long, malformed, with a field
                missing, repeated or unknown, or a value out of range.
        """
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ValueError(f"a mechanism's spec is JSON text of at most {MAX_TEXT} characters")
        try:
            fields = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError("a mechanism's spec is not JSON") from error
        if not isinstance(fields, dict) or set(fields) != _FIELDS:
            raise ValueError(f"a mechanism's spec has the fields {', '.join(sorted(_FIELDS))}, no other")
        options = fields.pop("options")
        if not isinstance(options, dict):
            raise ValueError("the options of a mechanism's spec are a JSON object")
        return cls(**fields, options=tuple(options.items()))

    def fingerprint(self, *, dim: int) -> bytes:
        """SHA-256 of the spec, the dimension and the version of reports on the wire: 32 bytes.

        Whoever holds the same fingerprint reads the same reports.

        Raises:
            ValueError: if the dimension is out of range.
        """
        from shuffle_plugins.core.reports import WIRE_VERSION

        text = f"shuffle_plugins mechanism\n{WIRE_VERSION}\n{checks.dim(dim)}\n{self.to_json()}"
        return hashlib.sha256(text.encode()).digest()

    def report_bytes(self, *, dim: int) -> int:
        """Length of one report's :meth:`Reports.to_bytes`, whatever it says.

        Raises:
            ValueError: as :meth:`build`.
        """
        return _report_bytes(self.to_json(), checks.dim(dim))


@lru_cache(maxsize=_BUILT)
def _built(text: str, dim: int) -> LocalRandomizer:
    """Keyed by the text, in which 1, 1.0 and true differ, as they may to a mechanism."""
    from shuffle_plugins.mechanisms.base import LocalRandomizer

    spec = MechanismSpec.from_json(text)
    try:
        mechanism = registry.get(
            spec.name,
            local_epsilon=spec.local_epsilon,
            dim=dim,
            radius=None if spec.radius == 1.0 else spec.radius,
            **dict(spec.options),
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(f"mechanism {spec.name!r} cannot be built from {text}: {error}") from error
    if not isinstance(mechanism, LocalRandomizer):
        raise ValueError(f"mechanism {spec.name!r} does not take vectors in a norm ball")
    if not mechanism.shufflable:
        raise ValueError(
            f"a report of {spec.name!r} with these options can be read only by who knows whose it is: "
            "it cannot be shuffled"
        )
    if mechanism.local_epsilon != spec.local_epsilon:
        raise ValueError(
            f"mechanism {spec.name!r} was asked for local_epsilon {spec.local_epsilon!r} and has "
            f"{mechanism.local_epsilon!r}"
        )
    return mechanism


@lru_cache(maxsize=_BUILT)
def _report_bytes(text: str, dim: int) -> int:
    import torch

    nobody = _built(text, dim).randomize(torch.zeros(0, dim))
    bits = {True: 0, False: 0}
    for field in nobody.fields:
        bits[field.values.is_floating_point()] += field.bits * field.width
    return nobody.header_bytes + (bits[False] + 7) // 8 + bits[True] // 8


def _checked(options: Any) -> tuple[tuple[str, Option], ...]:
    if not isinstance(options, tuple) or not all(
        isinstance(option, tuple) and len(option) == 2 for option in options
    ):
        raise ValueError(f"options are a tuple of (name, value), got {options!r}")
    for name, value in options:
        if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
            raise ValueError(f"{name!r} is not the name of an option")
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"option {name} is a whole number, number, string or bool, got {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"option {name} is not finite: {value!r}")
    if len({name for name, _ in options}) != len(options):
        raise ValueError("an option is given twice")
    return tuple(sorted(options))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field of a mechanism's spec is given twice")
    return fields


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} has no place in a mechanism's spec")
