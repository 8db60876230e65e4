"""A batch on its way through mixers: what is asked of one, what it signs, and both as text.

All items of a batch (layers, layers with tickets, or sealed reports) have one size. Their digest covers them
and their order. A mixer signs that of all it was given, by way of the request, and that of all it gives back;
the next one takes nothing that the one before it has not signed for the same round, cascade and place.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Self

from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.ranges import Count, Ranged, whole_number
from shuffle_plugins.shuffler.envelopes import (
    MOST_MIXERS,
    cascade_binding,
    check_several,
    cover_size,
    layer_size,
    ticket_size,
)
from shuffle_plugins.shuffler.keys import KEY_BYTES, ServicePublicKey, has_signed
from shuffle_plugins.shuffler.service import encoded_number, statement
from shuffle_plugins.shuffler.shuffler import (
    DIGEST_BYTES,
    BatchRefused,
    Refusal,
    RoundContext,
    ShuffleError,
    bytes_of,
)


def items_digest(items: Iterable[bytes], *, size: int) -> bytes:
    """32 bytes that differ wherever items of one size, their number or their order differ."""
    digest, count = hashlib.sha256(b"shuffle-plugins/4 items" + encoded_number(size)), 0
    for item in items:
        if len(item) != size:
            raise ShuffleError(f"every item of the batch has {size} bytes, got {len(item)}")
        digest.update(item)
        count += 1
    digest.update(encoded_number(count))
    return digest.digest()


@dataclass(frozen=True, kw_only=True)
class _Text(Ranged, ABC):
    """What travels as one line of text, the same for equal values."""

    def to_json(self) -> str:
        """The line of text."""
        return json.dumps(asdict(self), default=bytes.hex, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote; a ValueError if it is anything else."""
        try:
            return cls._of(json.loads(text))
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not the text of a {cls.__name__}") from error

    @classmethod
    @abstractmethod
    def _of(cls, values: dict[str, Any]) -> Self: ...


@dataclass(frozen=True, kw_only=True)
class MixedStatement(_Text):
    """What a mixer says, signed, of a batch that it gives back.

    Attributes:
        request: digest of the request that it answers.
        answered: good items that it was given, dummies included.
        rejected: why items were dropped, by their positions among all.
        count: how many items it gives back, of which ``outputs`` is the digest.
        masks: sums of clients' masks for each mixer after this one, in order.
        signature: of all this, of the cascade, the round, and the mixer's place.
    """

    request: Annotated[bytes, bytes_of(DIGEST_BYTES)]
    answered: Annotated[int, whole_number(at_least=0)]
    rejected: Mapping[int, Refusal] = field(default_factory=dict)
    count: Count
    outputs: Annotated[bytes, bytes_of(DIGEST_BYTES)]
    masks: tuple[int, ...] = ()
    signature: bytes = b""

    @override
    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        rejected = {int(place): Refusal(code) for place, code in values.pop("rejected").items()}
        masks = tuple(checks.whole("a sum of masks", mask, at_least=0) for mask in values.pop("masks"))
        return cls(rejected=rejected, masks=masks, **_read(values, "request", "outputs", "signature"))


@dataclass(frozen=True, kw_only=True)
class BatchRequest(_Text):
    """What a server asks of one mixer of a cascade for one round; the items themselves travel apart.

    Attributes:
        analyzer_key: public key to which clients sealed their reports.
        mixers: public keys of all mixers in the order in which they work; one for a single mixer.
        position: place in the cascade of the mixer that is asked, from 0.
        minimum: fewest reports with which the server wants a batch. The largest of this, of what clients were
            promised (``context.minimum``), and of the mixer's own minimum holds.
        size: bytes of every item: a layer, and at a later mixer one of the tickets after it.
        count: how many items there are, of which ``inputs`` is the digest.
        previous: what the mixers before have signed, in order; the last of them gave back these layers.
    """

    context: RoundContext
    analyzer_key: Annotated[bytes, bytes_of(KEY_BYTES)]
    mixers: tuple[ServicePublicKey, ...]
    position: Annotated[int, whole_number(at_least=0, at_most=MOST_MIXERS - 1)]
    minimum: Annotated[int, whole_number(at_least=2)]
    size: Count
    count: Count
    inputs: Annotated[bytes, bytes_of(DIGEST_BYTES)]
    previous: tuple[MixedStatement, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.position < len(self.mixers) <= MOST_MIXERS:
            raise ShuffleError(f"there are 1 to {MOST_MIXERS} mixers in a cascade, the one asked among them")
        if len(self.previous) != self.position:
            raise ShuffleError("each of the mixers before has signed what it gave back")
        check_several(self.context, mixers=len(self.mixers))
        sealed = layer_size(0, mixers=1, position=1)  # bytes of a sealed report of nothing
        if self._inside % self.context.reports or self.output_size < sealed:
            raise ShuffleError(
                f"items of {self.size} bytes do not hold {self.context.reports} reports of one size"
            )

    @classmethod
    def of(
        cls,
        items: Sequence[bytes],
        *,
        context: RoundContext,
        analyzer_key: bytes,
        mixers: Sequence[ServicePublicKey],
        minimum: int = 2,
        previous: Sequence[MixedStatement] = (),
    ) -> Self:
        """The request to mix these items, of the mixer after those that have signed."""
        size = len(items[0])
        return cls(
            context=context,
            analyzer_key=analyzer_key,
            mixers=tuple(mixers),
            position=len(previous),
            minimum=minimum,
            size=size,
            count=len(items),
            inputs=items_digest(items, size=size),
            previous=tuple(previous),
        )

    @override
    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        values["context"] = RoundContext(**_read(values["context"], "token", "fingerprint"))
        values["mixers"] = tuple(
            ServicePublicKey(**_read(key, "sealing", "verifying")) for key in values["mixers"]
        )
        values["previous"] = tuple(MixedStatement._of(said) for said in values["previous"])
        return cls(**_read(values, "analyzer_key", "inputs"))

    @property
    def mixer_keys(self) -> tuple[bytes, ...]:
        """The keys to which clients seal, in order."""
        return tuple(key.sealing for key in self.mixers)

    @property
    def layer_bytes(self) -> int:
        """Bytes of the layer at the beginning of every item."""
        return self.size - ticket_size(mixers=len(self.mixers), position=self.position)

    @property
    def output_size(self) -> int:
        """Bytes of every item that the mixer gives back."""
        return self._inside // self.context.reports

    @property
    def _inside(self) -> int:
        return self.layer_bytes - cover_size(mixers=len(self.mixers), position=self.position)

    @property
    def earlier_masks(self) -> int:
        """What the mixers before have signed as sums of their masks for this one, added up."""
        return sum(said.masks[self.position - place - 1] for place, said in enumerate(self.previous))

    def digest(self) -> bytes:
        """32 bytes that differ wherever two requests differ."""
        return statement(b"shuffle-plugins/4 mixer request", self.to_json().encode())

    def statement(self, said: MixedStatement) -> bytes:
        """What the mixer that is asked signs of the batch that it gives back."""
        return self._statement(said, position=self.position)

    def check_previous(self) -> None:
        """Check that the mixers before have signed their statements, for this round and cascade."""
        for place, said in enumerate(self.previous):
            by_it = self._statement(said, position=place)
            signed = has_signed(self.mixers[place].verifying, said.signature, by_it)
            if not signed or len(said.masks) != len(self.mixers) - 1 - place or said.count != self.count:
                raise BatchRefused(Refusal.NOT_PROVEN)

    def check_said(self, said: MixedStatement) -> None:
        """Check that the mixer that is asked has signed a statement, and that its numbers add up.

        BatchRefused (NOT_PROVEN) if it has not signed it for this request.
        """
        signed = has_signed(self.mixers[self.position].verifying, said.signature, self.statement(said))
        if said.request != self.digest() or not signed:
            raise BatchRefused(Refusal.NOT_PROVEN)
        clients, rest = divmod(said.count, self.context.reports)
        those = all(0 <= place < self.count for place in said.rejected)
        if not those or said.answered + len(said.rejected) != self.count or rest or clients > said.answered:
            raise ValueError("not as many good and bad items as were sent, or more reports than good ones")

    def check_outputs(self, items: Sequence[bytes], said: MixedStatement) -> None:
        """Check that items are those that the mixer has signed (or NOT_PROVEN), none of them twice."""
        sizes = {len(item) for item in items}
        if sizes != {self.output_size} or items_digest(items, size=self.output_size) != said.outputs:
            raise BatchRefused(Refusal.NOT_PROVEN)
        if len(set(items)) < len(items):
            raise ValueError("the same report twice: every one is sealed anew")

    def _statement(self, said: MixedStatement, *, position: int) -> bytes:
        binding = cascade_binding(
            context=self.context, analyzer_key=self.analyzer_key, mixer_keys=self.mixer_keys
        )
        text = replace(said, signature=b"").to_json().encode()
        return statement(b"shuffle-plugins/4 mixed batch", binding, encoded_number(position), text)


def _read(values: dict[str, Any], *hexadecimal: str) -> dict[str, Any]:
    """The values, those of some names turned from hexadecimal digits into bytes."""
    return values | {name: bytes.fromhex(values[name]) for name in hexadecimal}
