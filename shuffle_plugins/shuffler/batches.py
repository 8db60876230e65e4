"""A batch that travels in pieces, or through a mix cascade: what is asked of a mixer, and what it signs.

The items of a batch (layers of envelopes, layers with tickets, or sealed reports) all have one size. Their
digest covers them and their order, so a piece that is missing, repeated or in another place gives another
digest. A mixer signs the digest of all it was given, by way of the request, and the digest of all it gives
back. The next mixer in the cascade takes nothing that the one before it has not signed for the same round,
cascade and place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.envelopes import MOST_MIXERS, row_binding, ticket_size
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES, ServicePublicKey
from shuffle_plugins.shuffler.marks import mark_bytes
from shuffle_plugins.shuffler.shuffler import RoundContext
from shuffle_plugins.shuffler.statements import Statement, encoded_number, positions, statement

DIGEST_BYTES = 32
"""Bytes of a digest of items, and of a request."""

_ITEMS = b"shuffle-plugins/3 items"
_REQUEST = b"shuffle-plugins/3 mixer request"
_BATCH = b"shuffle-plugins/3 mixed batch"


class ItemsDigest:
    """Digest of items of one size and of their order, taken one by one.

    Args:
        size: bytes of every item.
    """

    def __init__(self, size: int) -> None:
        self._digest = hashlib.sha256(_ITEMS + encoded_number(size))
        self._size = size
        self._count = 0

    @classmethod
    def of(cls, items: Iterable[bytes], *, size: int) -> ItemsDigest:
        """The digest of some items.

        Raises:
            ShuffleError: if one has another size.
        """
        digest = cls(size)
        for item in items:
            digest.add(item)
        return digest

    @property
    def count(self) -> int:
        """How many items there were."""
        return self._count

    def add(self, item: bytes) -> None:
        """Take the next item.

        Raises:
            ShuffleError: if it has another size.
        """
        if len(item) != self._size:
            raise ShuffleError(f"every item of the batch has {self._size} bytes, got {len(item)}")
        self._digest.update(item)
        self._count += 1

    def value(self) -> bytes:
        """The digest so far, 32 bytes; with another number of items it is another."""
        counted = self._digest.copy()
        counted.update(encoded_number(self._count))
        return counted.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStatement:
    """What a mixer says, signed, of a batch that it gives back.

    Attributes:
        request: digest of the request that it answers, 32 bytes.
        answered: good items that it was given, dummies included.
        rejected: why items were dropped, by their positions among all.
        count: how many items it gives back.
        outputs: their digest, 32 bytes (:class:`ItemsDigest`).
        masks: sums of clients' masks for each mixer after this one, in order.
        signature: of all this, of the cascade, the round, and the mixer's place, 64 bytes.
    """

    request: bytes
    answered: int
    rejected: Mapping[int, Refusal] = field(default_factory=dict)
    count: int
    outputs: bytes
    masks: tuple[int, ...] = ()
    signature: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest:
    """What a server asks of one mixer of a cascade for one round; the items themselves travel apart.

    Attributes:
        context: the round.
        analyzer_key: public key to which clients sealed their reports, 32 bytes.
        mixers: public keys of all mixers in the order in which they work; one for a single mixer.
        position: place in the cascade of the mixer that is asked, from 0.
        minimum: fewest reports with which the server wants a batch, at least 2.
        size: bytes of every item.
        count: how many items there are, at least 1.
        inputs: their digest, 32 bytes (:class:`ItemsDigest`). An item is a layer, and at a later mixer one of
            the tickets after it.
        previous: what the mixers before have signed, in order; the last of them gave back these layers.

    Raises:
        ShuffleError: if a field is out of range.
    """

    context: RoundContext
    analyzer_key: bytes
    mixers: tuple[ServicePublicKey, ...]
    position: int
    minimum: int
    size: int
    count: int
    inputs: bytes
    previous: tuple[MixedStatement, ...] = ()

    def __post_init__(self) -> None:
        try:
            checks.whole("mixers of a cascade", len(self.mixers), at_most=MOST_MIXERS)
            checks.whole("position", self.position, at_least=0, at_most=len(self.mixers) - 1)
            checks.whole("minimum", self.minimum, at_least=2)
            checks.whole("size", self.size)
            checks.whole("count", self.count)
        except ValueError as error:
            raise ShuffleError(str(error)) from None
        if len(self.analyzer_key) != KEY_BYTES or len(self.inputs) != DIGEST_BYTES:
            raise ShuffleError(f"an analyzer's key has {KEY_BYTES} bytes, a digest {DIGEST_BYTES}")
        if len(self.previous) != self.position:
            raise ShuffleError("each of the mixers before has signed what it gave back")

    @property
    def mixer_keys(self) -> tuple[bytes, ...]:
        """The keys to which clients seal, in order."""
        return tuple(key.sealing for key in self.mixers)

    def digest(self) -> bytes:
        """32 bytes that differ wherever two requests differ."""
        keys = b"".join(key.verifying for key in self.mixers)
        numbers = (encoded_number(value) for value in (self.position, self.minimum, self.size, self.count))
        previous = b"".join(said.signature for said in self.previous)
        return statement(_REQUEST, self._binding(), keys, *numbers, self.inputs, previous).digest

    def statement(self, said: MixedStatement) -> Statement:
        """What the mixer that is asked signs of the batch that it gives back."""
        return self._statement(said, position=self.position)

    @property
    def ticket_bytes(self) -> int:
        """Bytes of the ticket at the end of every item; 0 at the first mixer."""
        return ticket_size(mixers=len(self.mixers), position=self.position)

    @property
    def earlier_masks(self) -> int:
        """What the mixers before have signed as sums of their masks for this one, added up."""
        return sum(said.masks[self.position - place - 1] for place, said in enumerate(self.previous))

    def check_previous(self) -> None:
        """Check that the mixers before have signed their statements, for this round and cascade.

        Raises:
            BatchRefused: NOT_PROVEN if not.
        """
        for place, said in enumerate(self.previous):
            by_it = self._statement(said, position=place)
            signed = by_it.holds(said.signature, verifying_key=self.mixers[place].verifying)
            if not signed or len(said.masks) != len(self.mixers) - 1 - place or said.count != self.count:
                raise BatchRefused(Refusal.NOT_PROVEN)

    def check_items(self, *, items: ItemsDigest, layers: ItemsDigest) -> None:
        """Check that all items have come, and that their layers are what the mixer before gave back.

        Args:
            items: digest of the items that came.
            layers: digest of their layers alone.

        Raises:
            BatchRefused: UNREADABLE if not.
        """
        whole = items.count == self.count and items.value() == self.inputs
        if not whole or (self.previous and layers.value() != self.previous[-1].outputs):
            raise BatchRefused(Refusal.UNREADABLE)

    def _statement(self, said: MixedStatement, *, position: int) -> Statement:
        return statement(
            _BATCH,
            self._binding(),
            encoded_number(position),
            said.request,
            encoded_number(said.answered),
            *positions(said.rejected),
            encoded_number(said.count),
            said.outputs,
            mark_bytes(*said.masks),
        )

    def _binding(self) -> bytes:
        return row_binding(context=self.context, analyzer_key=self.analyzer_key, mixer_keys=self.mixer_keys)
