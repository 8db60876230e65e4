"""What all parties of a secure sum must know alike."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from shuffle_plugins.secure_aggregation.expansion import SEED_BYTES
from shuffle_plugins.secure_aggregation.residues import ResidueLayout
from shuffle_plugins.shuffler import KEY_BYTES, RoundContext, ShuffleError

_TERMS = b"shuffle-plugins/1 secure sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """The round, the form of the shares, and who holds them.

    A client's envelopes are bound to all of it: they open only for an aggregator that was told the same.

    Attributes:
        context: the round; its fingerprint covers the mechanism and the seed of the check.
        layout: the form of the shares. An aggregator that added up fewer bits of each number would tell
            something else than a sum mod 2^w, so it has to know w.
        aggregators: the aggregators' public keys to seal to, 32 bytes each, in the server's order; at least
            one, none twice.

    Raises:
        ShuffleError: if the aggregators are not that.
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
        """Bytes of what the server gets of a client."""
        return self.layout.num_bytes

    @property
    def secret_bytes(self) -> int:
        """Bytes of what is sealed to an aggregator of a client."""
        return SEED_BYTES

    def digest(self) -> bytes:
        """32 bytes that differ wherever two terms differ."""
        numbers = b"".join(
            number.to_bytes(8, "little")
            for number in (self.layout.size, self.layout.bits, len(self.aggregators))
        )
        return hashlib.sha256(_TERMS + self.context.digest() + numbers + b"".join(self.aggregators)).digest()
