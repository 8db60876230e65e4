"""A sum as it is agreed on between parties: as text, as a digest, built."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import Any, Self

from shuffle_plugins.core.reports import WIRE_VERSION
from shuffle_plugins.mechanisms.spec import MAX_TEXT
from shuffle_plugins.protocols.coins.vector_sum import VectorSum
from shuffle_plugins.protocols.sum_reports import Sum, SumReports, sum_reports
from shuffle_plugins.protocols.tags.ball_sum import BallSum

_KINDS: dict[str, type[VectorSum] | type[BallSum]] = {kind.name: kind for kind in (VectorSum, BallSum)}


@dataclass(frozen=True, kw_only=True, slots=True)
class SumSpec:
    """What :class:`~shuffle_plugins.mechanisms.spec.MechanismSpec` is to mechanisms, for multi-message sums.

    Attributes:
        protocol: the sum, with its dimension.

    Raises:
        ValueError: if it is no sum of vectors in an ℓ2 ball.
    """

    protocol: Sum

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, Sum):
            raise ValueError(f"protocol must be a VectorSum or a BallSum, got {self.protocol!r}")

    @property
    def name(self) -> str:
        """The protocol's."""
        return self.protocol.name

    @property
    def radius(self) -> float:
        """ℓ2 radius of the ball."""
        return self.protocol.radius

    @property
    def local_epsilon(self) -> float:
        """ε0 of one client's messages together, in nats; infinite for a vector sum."""
        return sum_reports(self.protocol).local_epsilon

    def build(self, *, dim: int) -> SumReports[Any]:
        """The sum, for vectors of length ``dim``.

        Raises:
            ValueError: if it is for another length.
        """
        if dim != self.protocol.dim:
            raise ValueError(
                f"the sum is for {self.protocol.dim:,} numbers, the model has {dim:,}: build it with "
                f"dim={dim}"
            )
        return sum_reports(self.protocol)

    def to_json(self) -> str:
        """The spec as canonical JSON: equal text means the same sum, to the last digit."""
        values = {name: getattr(self.protocol, name) for name in _fields(type(self.protocol))}
        return json.dumps({self.name: values}, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if the text is not a spec's: of another type, too long, malformed, with a field
                missing or unknown, or a value out of range.
        """
        found = _read(text)
        if found is None or len(found) != 1:
            raise ValueError("not the spec of a multi-message sum")
        [(name, values)] = found.items()
        if not isinstance(values, dict) or set(values) != _fields(_KINDS[name]):
            known = ", ".join(sorted(_fields(_KINDS[name])))
            raise ValueError(f"the spec of a {name} has the fields {known}, no other")
        try:
            return cls(protocol=_KINDS[name](**values))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not the spec of a {name}: {error}") from error

    @classmethod
    def is_json(cls, text: object) -> bool:
        """Whether a text is meant to be the spec of a sum."""
        return _read(text) is not None

    def fingerprint(self, *, dim: int) -> bytes:
        """SHA-256 of the spec, the dimension and the version of reports on the wire: 32 bytes."""
        text = f"shuffle_plugins sum\n{WIRE_VERSION}\n{dim}\n{self.to_json()}"
        return hashlib.sha256(text.encode()).digest()

    def report_bytes(self, *, dim: int) -> int:
        """Length of one report's :meth:`Reports.to_bytes`, whatever it says.

        Raises:
            ValueError: as :meth:`build`.
        """
        import torch

        nobody = self.build(dim=dim).randomize(torch.zeros(0, dim))
        return nobody.header_bytes + (nobody.bits_per_report + 7) // 8


def _fields(kind: type[VectorSum] | type[BallSum]) -> set[str]:
    return {field.name for field in fields(kind) if field.init}


def _read(text: object) -> dict[str, Any] | None:
    """The JSON of a text if it is an object with an entry that is a sum's name."""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        return None
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    named = isinstance(found, dict) and bool(found) and found.keys() <= _KINDS.keys()
    return found if named else None
