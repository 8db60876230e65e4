"""What a server tells its clients of a shared sum, and the terms that follow from it for every party."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import CountRange
from shuffle_plugins.secure_aggregation import ResidueLayout, SumTerms, VerifiedTerms
from shuffle_plugins.shuffler import RoundContext

_FORM = struct.Struct("<32s32sQ?")


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTerms:
    """How a round's counts are shared between the server and aggregators.

    Attributes:
        check_seed: 32 random bytes, new for each round, from which the check of the sum is made. Clients and
            the server know it; aggregators must not.
        aggregators: :func:`digest_of` the aggregators' keys. The keys themselves are never sent: a client
            seals to those that its operator has pinned.
        clients: the most clients whose counts may be in the sum; it sets how many bits a share has.
        verified: whether clients prove that their counts are within bounds.

    Raises:
        ValueError: if a field is out of range.
    """

    check_seed: bytes
    aggregators: bytes
    clients: int
    verified: bool = False

    def __post_init__(self) -> None:
        if len(self.check_seed) != 32 or len(self.aggregators) != 32:
            raise ValueError("the seed of a check, and the digest of aggregators, have 32 bytes")
        checks.whole("clients", self.clients, at_least=2, at_most=(1 << 63) - 1)

    def to_bytes(self) -> bytes:
        """The terms as the 73 bytes that an instruction carries."""
        return _FORM.pack(self.check_seed, self.aggregators, self.clients, self.verified)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        if len(data) != _FORM.size:
            raise ValueError(f"the terms of a shared sum have {_FORM.size} bytes")
        check_seed, aggregators, clients, verified = _FORM.unpack(data)
        return cls(check_seed=check_seed, aggregators=aggregators, clients=clients, verified=verified)

    def of_round(
        self, context: RoundContext, *, counts: CountRange, aggregators: Sequence[bytes]
    ) -> SumTerms:
        """What all parties of the round must know alike.

        Args:
            context: the round.
            counts: of the round's mechanism.
            aggregators: the aggregators' public keys to seal to, in the server's order.

        Raises:
            ValueError: if so many clients' counts do not fit in a share.
        """
        largest, keys = counts.highest - counts.lowest, tuple(aggregators)
        layout = ResidueLayout.of_sum(size=counts.size, largest=largest, clients=self.clients)
        if self.verified:
            return VerifiedTerms(context=context, layout=layout, aggregators=keys, largest=largest)
        return SumTerms(context=context, layout=layout, aggregators=keys)


def digest_of(aggregators: Sequence[bytes]) -> bytes:
    """Digest of aggregators' public keys to seal to, 32 bytes; it depends on their order."""
    return hashlib.sha256(b"flwr_shuffle aggregators\n" + b"".join(aggregators)).digest()
