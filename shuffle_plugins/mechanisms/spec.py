"""What parties agree on before they exchange reports: as text, as a digest, built."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import LocalEpsilon, Radius, Ranged
from shuffle_plugins.core.reports import WIRE_VERSION, ReportLayout
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.base import LocalRandomizer

if TYPE_CHECKING:
    from shuffle_plugins.mechanisms.base import PrivateSum

Option = int | float | str | bool

MAX_TEXT = 4096
"""Longest JSON text that is read, in characters."""


class Spec(ABC):
    """A private sum of vectors as parties agree on it.

    Two parties that hold equal specs and the same dimension read each other's reports. A spec may come from
    somebody who is not trusted: what it builds has the ε0 it says, or building fails.
    """

    _title: ClassVar[str]

    if TYPE_CHECKING:  # fields of the dataclasses below

        @property
        def name(self) -> str:
            """Under which the sum is registered."""

        @property
        def radius(self) -> float:
            """Of the ball that holds the vectors."""

        @property
        def local_epsilon(self) -> float:
            """ε0 of one client's whole report, in nats; infinite for a vector sum."""

    @property
    @abstractmethod
    def cohort(self) -> int | None:
        """The number of clients whose noise makes up the sum's; None if every report has its own."""

    @property
    def must_be_summed(self) -> bool:
        """Whether reports may be seen added up only; otherwise they are shuffled one by one."""
        return self.cohort is not None

    @property
    def reports_per_client(self) -> int:
        """How many reports a client's vector makes."""
        return 1

    @abstractmethod
    def build(self, *, dim: int) -> PrivateSum:
        """The mechanism for vectors of length ``dim``, refused if it cannot be built or is for another."""

    @abstractmethod
    def to_json(self) -> str:
        """The spec as canonical JSON: equal text means the same spec, to the last digit."""

    def fingerprint(self, *, dim: int) -> bytes:
        """SHA-256 of the spec, the dimension and the version of reports on the wire: 32 bytes."""
        text = f"shuffle_plugins {self._title}\n{WIRE_VERSION}\n{checks.dim(dim)}\n{self.to_json()}"
        return hashlib.sha256(text.encode()).digest()

    def layout(self, *, dim: int) -> ReportLayout:
        """The form of every report."""
        return self.build(dim=dim).layout

    def report_bytes(self, *, dim: int) -> int:
        """Length of one report's :meth:`Reports.to_bytes`."""
        return self.layout(dim=dim).report_bytes


@dataclass(frozen=True, kw_only=True)
class MechanismSpec(Ranged, Spec):
    """A randomizer of vectors in a norm ball, all but its dimension.

    Attributes:
        name: of a registered mechanism, see :func:`shuffle_plugins.mechanisms.available`.
        options: the mechanism's own further parameters, (name, value) each; kept sorted by name.
    """

    _title: ClassVar[str] = "mechanism"

    name: str
    local_epsilon: LocalEpsilon
    radius: Radius = 1.0
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"a mechanism's name is a string, got {self.name!r}")
        super().__post_init__()
        object.__setattr__(self, "options", _checked(self.options))

    @property
    @override
    def cohort(self) -> None:
        return None

    def build(self, *, dim: int) -> LocalRandomizer:
        """As of :class:`Spec`; each process keeps the last few it built."""
        return _built(self.to_json(), checks.dim(dim))

    @override
    def to_json(self) -> str:
        return _canonical({**vars(self), "options": dict(self.options)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote, and nothing else."""
        fields = _fields_of(text)
        if set(fields) != {"local_epsilon", "name", "options", "radius"}:
            raise ValueError(
                "a mechanism's spec has the fields local_epsilon, name, options, radius, no other"
            )
        options = fields.pop("options")
        if not isinstance(options, dict):
            raise ValueError("the options of a mechanism's spec are a JSON object")
        return cls(**fields, options=tuple(options.items()))


@dataclass(frozen=True, kw_only=True)
class SumSpec(Spec):
    """A multi-message sum: a registered dataclass, with all its fields and its dimension."""

    _title: ClassVar[str] = "sum"

    protocol: PrivateSum

    def __post_init__(self) -> None:
        name = getattr(self.protocol, "name", None)
        if not _is_sum(name) or type(self.protocol) is not _sum_class(name):
            known = ", ".join(registry.available(registry.Kind.SUMS))
            raise ValueError(f"protocol must be a registered sum ({known}), got {self.protocol!r}")
        if self.protocol.must_be_summed and self.protocol.cohort is None:
            raise ValueError(
                f"reports of {name} may be seen added up only, but its cohort is None: nothing says how many "
                "clients' noise protects a sum"
            )

    @property
    @override
    def name(self) -> str:
        return self.protocol.name

    @property
    @override
    def radius(self) -> float:
        return self.protocol.radius

    @property
    @override
    def local_epsilon(self) -> float:
        return self.protocol.local_epsilon

    @property
    @override
    def cohort(self) -> int | None:
        return self.protocol.cohort

    @property
    @override
    def must_be_summed(self) -> bool:
        return self.protocol.must_be_summed

    @property
    @override
    def reports_per_client(self) -> int:
        return self.protocol.reports_per_client

    @override
    def build(self, *, dim: int) -> PrivateSum:
        if dim != self.protocol.dim:
            raise ValueError(
                f"the sum is for {self.protocol.dim:,} numbers, an update has {dim:,}: build it with "
                f"dim={dim} (with adaptive clipping an update is one longer than the model)"
            )
        return self.protocol

    @override
    def to_json(self) -> str:
        return _canonical({self.name: {f: getattr(self.protocol, f) for f in _sum_fields(self.name)}})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote, and nothing else."""
        fields = _fields_of(text)
        name = next(iter(fields), "")
        if len(fields) != 1 or not _is_sum(name):
            raise ValueError("not the spec of a multi-message sum")
        values, names = fields[name], _sum_fields(name)
        if not isinstance(values, dict) or set(values) != set(names):
            raise ValueError(f"the spec of a {name} has the fields {', '.join(sorted(names))}, no other")
        try:
            return cls(protocol=_sum_class(name)(**values))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not the spec of a {name}: {error}") from error


def spec_from_json(text: str) -> Spec:
    """Read what ``to_json`` of either spec wrote."""
    return (SumSpec if len(_fields_of(text)) == 1 else MechanismSpec).from_json(text)


def _fields_of(text: str) -> dict[str, Any]:
    """A JSON object, without a field twice and without numbers that JSON has not."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a field of a mechanism's spec is given twice")
        return dict(pairs)

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} has no place in a mechanism's spec")

    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise ValueError(f"a mechanism's spec is JSON text of at most {MAX_TEXT} characters")
    try:
        fields = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError("a mechanism's spec is not JSON") from error
    if not isinstance(fields, dict):
        raise ValueError("a mechanism's spec is a JSON object")
    return fields


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sum_class(name: Any) -> type[Any]:
    found = registry.factory(name)
    if not isinstance(found, type) or not is_dataclass(found):
        raise ValueError(f"{name} is no dataclass, so that nothing says how it is written as text")
    return found


def _sum_fields(name: str) -> list[str]:
    return [field.name for field in fields(_sum_class(name)) if field.init]


def _is_sum(name: object) -> bool:
    try:
        return isinstance(name, str) and registry.kind_of(name) is registry.Kind.SUMS
    except ValueError:
        return False


@lru_cache(maxsize=16)  # a federated run uses one or two
def _built(text: str, dim: int) -> LocalRandomizer:
    """Keyed by the text, in which 1, 1.0 and true differ, as they may to a mechanism."""
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
    if mechanism.must_be_summed:
        raise ValueError(f"reports of {spec.name!r} may be seen added up only: it cannot be agreed on by ε0")
    if not mechanism.shufflable:
        raise ValueError(
            f"a report of {spec.name!r} with these options can be read only by whoever knows whose it is: "
            "it cannot be shuffled"
        )
    if mechanism.local_epsilon != spec.local_epsilon:
        raise ValueError(
            f"mechanism {spec.name!r} was asked for local_epsilon {spec.local_epsilon!r} and has "
            f"{mechanism.local_epsilon!r}"
        )
    return mechanism


def _checked(options: Any) -> tuple[tuple[str, Option], ...]:
    pairs = isinstance(options, tuple) and all(isinstance(o, tuple) and len(o) == 2 for o in options)
    if not pairs or len({name for name, _ in options}) != len(options):
        raise ValueError(f"options are a tuple of (name, value), each name once, got {options!r}")
    for name, value in options:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} is not the name of an option")
        finite = math.isfinite(value) if isinstance(value, float) else isinstance(value, (bool, int, str))
        if not finite or name in ("dim", "local_epsilon", "name", "radius"):
            raise ValueError(f"{name} = {value!r} is no option of a mechanism's spec")
    return tuple(sorted(options))
