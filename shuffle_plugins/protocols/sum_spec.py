"""A sum as it is agreed on between parties: as text, as a digest, built."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from shuffle_plugins.mechanisms.reports import WIRE_VERSION
from shuffle_plugins.mechanisms.spec import MAX_TEXT
from shuffle_plugins.protocols.count_reports import CountReports
from shuffle_plugins.protocols.vector_sum import VectorSum

_FIELDS = {"clients", "coins", "dim", "honest_fraction", "levels", "radius"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SumSpec:
    """What :class:`~shuffle_plugins.mechanisms.spec.MechanismSpec` is to mechanisms, for a vector sum.

    Attributes:
        protocol: the sum, with its dimension.

    Raises:
        ValueError: if it is not a :class:`VectorSum`.
    """

    name: ClassVar[str] = VectorSum.name
    local_epsilon: ClassVar[float] = math.inf

    protocol: VectorSum

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, VectorSum):
            raise ValueError(f"protocol must be a VectorSum, got {self.protocol!r}")

    @property
    def radius(self) -> float:
        """ℓ2 radius of the ball."""
        return self.protocol.radius

    def build(self, *, dim: int) -> CountReports:
        """The sum, for vectors of length ``dim``.

        Raises:
            ValueError: if it is for another length.
        """
        if dim != self.protocol.dim:
            raise ValueError(
                f"the vector sum is for {self.protocol.dim:,} numbers, the model has {dim:,}: build it with "
                f"dim={dim}"
            )
        return CountReports(self.protocol)

    def to_json(self) -> str:
        """The spec as canonical JSON: equal text means the same sum, to the last digit."""
        return json.dumps({self.name: asdict(self.protocol)}, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if the text is not a spec's: of another type, too long, malformed, with a field
                missing or unknown, or a value out of range.
        """
        if not cls.is_json(text):
            raise ValueError("not the spec of a vector sum")
        fields = json.loads(text)
        if set(fields) != {cls.name} or not isinstance(fields[cls.name], dict):
            raise ValueError("the spec of a vector sum has one entry, its fields")
        values = fields[cls.name]
        if set(values) != _FIELDS:
            raise ValueError(f"a vector sum has the fields {', '.join(sorted(_FIELDS))}, no other")
        try:
            return cls(protocol=VectorSum(**values))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not the spec of a vector sum: {error}") from error

    @classmethod
    def is_json(cls, text: object) -> bool:
        """Whether a text is meant to be the spec of a sum."""
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            return False
        try:
            fields = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            return False
        return isinstance(fields, dict) and cls.name in fields

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
