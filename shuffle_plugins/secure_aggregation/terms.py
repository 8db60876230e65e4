"""The terms of a secure sum: the values that the server, the aggregators and the clients must agree on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from shuffle_plugins.secure_aggregation.expansion import SEED_BYTES
from shuffle_plugins.secure_aggregation.residues import ResidueLayout
from shuffle_plugins.shuffler import KEY_BYTES, RoundContext, ShuffleError

_TERMS = b"shuffle-plugins/1 secure sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """The terms of one round of a secure sum: the round, the layout of the shares, and the aggregators.

    A client's envelopes are bound to the terms: an aggregator can open them only if it was told the same.

    Attributes:
        context: the round; its fingerprint covers the mechanism and the check seed.
        layout: how many numbers a share has, and their bits w. An aggregator has to know w: a sum with fewer
            bits of each number would say something else than a sum mod 2^w.
        aggregators: the aggregators' public keys for sealing, 32 bytes each, in the server's order; at least
            one, and no key twice.

    Raises:
        ShuffleError: if there is no aggregator, a key has another length, or a key is there twice.
    """

    context: RoundContext
    layout: ResidueLayout
    aggregators: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not self.aggregators or any(
            type(key) is not bytes or len(key) != KEY_BYTES for key in self.aggregators
        ):
            raise ShuffleError(
                f"a shared sum needs at least one aggregator, each by a key of {KEY_BYTES} bytes"
            )
        if len(set(self.aggregators)) < len(self.aggregators):
            raise ShuffleError("an aggregator is named twice: each must be another organisation's")

    @property
    def share_bytes(self) -> int:
        """Number of bytes that a client sends to the server."""
        return self.layout.num_bytes

    @property
    def secret_bytes(self) -> int:
        """Number of bytes that a client seals to each aggregator, before sealing."""
        return SEED_BYTES

    def digest(self) -> bytes:
        """A SHA-256 digest of all terms, 32 bytes: different terms have different digests."""
        numbers = b"".join(
            number.to_bytes(8, "little")
            for number in (self.layout.size, self.layout.bits, len(self.aggregators))
        )
        return hashlib.sha256(_TERMS + self.context.digest() + numbers + b"".join(self.aggregators)).digest()
