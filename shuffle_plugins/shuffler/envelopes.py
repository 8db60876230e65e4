"""Sealed envelopes: a report that only the analyzer can read, in a cover that only the mixer can open.

    envelope = layer 1 ‖ ticket 2 ‖ … ‖ ticket k, for k mixers; k = 1 for a single one
    layer 1  = HPKE to mixer 1 of   signer (32) ‖ signature (64) ‖ flag (1) ‖ k - 1 masks ‖ layer 2
    layer i  = HPKE to mixer i of   flag (1) ‖ mark ‖ layer i + 1, or inner after the last mixer
    ticket i = HPKE to mixer i of   signer (32) ‖ signature (64) ‖ masked mark ‖ k - i masks
    inner    = HPKE to the analyzer of each of the client's reports, one after another

HPKE is RFC 9180 in base mode with X25519, HKDF-SHA256 and AES-128-GCM. All layers and signatures are bound to
the round, the analyzer's key and all mixers, so that an envelope opens only if its client was told the same
about them. docs/guides/shuffling.md says who can learn what, docs/proofs/shared-sums.md why there are marks.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from shuffle_plugins.shuffler.keys import (
    SEAL_BYTES,
    SIGNER_BYTES,
    SealingKey,
    SigningKey,
    check_key,
    public_key_bytes,
    sealed_to,
    signed_by,
    signed_to,
    unsealed,
)
from shuffle_plugins.shuffler.shuffler import BatchRefused, Refusal, RoundContext, ShuffleError

MOST_MIXERS = 16
"""How many mixers there may be in a cascade."""

MARK_BYTES = 16
"""Bytes of a mark, of a mask, and of the sum of both."""

MODULUS = 1 << (8 * MARK_BYTES)
"""All masked marks and, negative, all marks and masks add up to 0 modulo this: layers are the clients'."""

_REPORT, _DUMMY = b"\x01", b"\x00"

_TO_ANALYZER = b"shuffle-plugins/4 to the analyzer"
_CASCADE = b"shuffle-plugins/4 cascade"
_LAYER = b"shuffle-plugins/4 layer"
_TICKET = b"shuffle-plugins/4 ticket"


class Opened(NamedTuple):
    """What a mixer sees in an envelope or a ticket whose signature holds, or in a layer."""

    signer: bytes  # the client's public signing key; empty in a layer of a later mixer
    real: bool = True  # False for a dummy
    inner: bytes = b""  # the sealed report; before the last mixer, the next mixer's layer
    mark: int = 0  # of the layer of a later mixer; in its ticket, masked
    masks: tuple[int, ...] = ()  # for the mixers after this one, in the first layer and in tickets


def envelope_size(size: int, *, mixers: int = 1, reports: int = 1) -> int:
    """Bytes of an envelope around so many reports of ``size`` bytes each, or around a dummy."""
    return sum(part_sizes(size, mixers=mixers, reports=reports))


def part_sizes(size: int, *, mixers: int, reports: int = 1) -> list[int]:
    """Bytes of an envelope's parts: the first mixer's layer, and the ticket for each of the others."""
    tickets = [ticket_size(mixers=mixers, position=position) for position in range(1, mixers)]
    further = (reports - 1) * (size + SEAL_BYTES)
    return [layer_size(size, mixers=mixers, position=0) + further, *tickets]


def layer_size(size: int, *, mixers: int, position: int) -> int:
    """Bytes of the layer that the mixer at a position gets; after the last mixer, of a sealed report."""
    covers = (cover_size(mixers=mixers, position=place) for place in range(position, mixers))
    return size + SEAL_BYTES + sum(covers)


def cover_size(*, mixers: int, position: int) -> int:
    """Bytes by which the layer of the mixer at a position is longer than what is inside."""
    named = MARK_BYTES if position else SIGNER_BYTES + (mixers - 1) * MARK_BYTES
    return SEAL_BYTES + 1 + named


def ticket_size(*, mixers: int, position: int) -> int:
    """Bytes of the ticket that goes with a layer; the first mixer needs none."""
    return SIGNER_BYTES + (mixers - position) * MARK_BYTES + SEAL_BYTES if position else 0


def seal(
    report: bytes | None,
    *,
    size: int,
    context: RoundContext,
    analyzer_key: bytes,
    mixer_key: bytes | Sequence[bytes],
    signing_key: SigningKey,
) -> bytes:
    """Seal a client's report, or a dummy, in an envelope of ``envelope_size(size)`` bytes.

    Args:
        report: exactly ``size`` bytes for each of ``context.reports``, one after another; None for a dummy,
            which only the mixer can recognise, and drops.
        analyzer_key: public key of whoever reads the shuffled reports, as the server announced it.
        mixer_key: public key of the mixer, as pinned by the client, never one that the server sent; of a
            cascade all keys in the order in which the mixers work.
    """
    whole = size * context.reports
    if report is not None and len(report) != whole:
        raise ShuffleError(f"every client's reports of the round have {whole} bytes, got {len(report)}")
    mixer_keys = (mixer_key,) if isinstance(mixer_key, bytes) else tuple(mixer_key)
    check_several(context, mixers=len(mixer_keys))
    binding = cascade_binding(context=context, analyzer_key=analyzer_key, mixer_keys=mixer_keys)
    flag = _DUMMY if report is None else _REPORT
    drawn = draw_marks(len(mixer_keys))
    text = report or bytes(whole)
    parts = [text[place * size : (place + 1) * size] for place in range(context.reports)]
    info = _TO_ANALYZER + context.digest()
    inner = b"".join(sealed_to(analyzer_key, part, info=info) for part in parts)
    tickets = []
    for position in range(len(mixer_keys) - 1, 0, -1):
        marked = flag + mark_bytes(drawn.marks[position]) + inner
        inner = sealed_to(mixer_keys[position], marked, info=_at(_LAYER, binding, position))
        masked = mark_bytes(drawn.masked[position], *drawn.masks[position])
        info = _at(_TICKET, binding, position)
        tickets.append(signed_to(mixer_keys[position], masked, signing_key=signing_key, info=info))
    first = flag + mark_bytes(*drawn.masks[0]) + inner
    first = signed_to(mixer_keys[0], first, signing_key=signing_key, info=_at(_LAYER, binding, 0))
    return b"".join([first, *tickets[::-1]])


class EnvelopeOpener:
    """Opens a mixer's layer of a round's envelopes: the outer one, or, after other mixers, the next.

    ``enrolled`` are the public signing keys of the clients that may take part, and ``mixer_keys`` those of
    all ``mixers`` of a cascade, this one's at ``position``; empty for a single mixer.
    """

    def __init__(
        self,
        *,
        context: RoundContext,
        analyzer_key: bytes,
        private_key: SealingKey,
        enrolled: frozenset[bytes],
        mixer_keys: Sequence[bytes] = (),
    ) -> None:
        own = public_key_bytes(private_key)
        keys = tuple(mixer_keys) or (own,)
        if own not in keys:
            raise ShuffleError("this mixer is not one of the mixers that clients were told to seal to")
        self._private_key = private_key
        self._enrolled = enrolled
        self._binding = cascade_binding(context=context, analyzer_key=analyzer_key, mixer_keys=keys)
        self.position, self.mixers = keys.index(own), len(keys)

    def open(self, envelope: bytes) -> Opened:
        """Open one layer: the outer one of an envelope, or what the mixer before gave back.

        Raises:
            BatchRefused: UNREADABLE if it was altered or sealed to another key or for another round;
                UNKNOWN_SIGNER if no enrolled client signed it, at the first mixer.
        """
        info, signer = _at(_LAYER, self._binding, self.position), b""
        if self.position:
            text = unsealed(envelope, self._private_key, info=info)
        else:
            signer, text = signed_by(envelope, self._private_key, enrolled=self._enrolled, info=info)
        flag, start = text[:1], 1 + MARK_BYTES * (1 if self.position else self.mixers - 1)
        if flag not in (_REPORT, _DUMMY) or len(text) - start < SEAL_BYTES:
            raise BatchRefused(Refusal.UNREADABLE)
        one = Opened(signer=signer, real=flag == _REPORT, inner=text[start:])
        marks = read_marks(text[1:start])
        return one._replace(mark=marks[0]) if self.position else one._replace(masks=marks)

    def open_ticket(self, ticket: bytes) -> Opened:
        """Open one ticket, at a later mixer; errors as of :meth:`open` at the first."""
        if len(ticket) != ticket_size(mixers=self.mixers, position=self.position):
            raise BatchRefused(Refusal.UNREADABLE)
        info = _at(_TICKET, self._binding, self.position)
        signer, masked = signed_by(ticket, self._private_key, enrolled=self._enrolled, info=info)
        first, *masks = read_marks(masked)
        return Opened(signer=signer, mark=first, masks=tuple(masks))


def open_reports(
    inner: Sequence[bytes], *, context: RoundContext, analyzer_private_key: SealingKey
) -> list[bytes]:
    """The reports inside what the last mixer returned, in its order.

    A ciphertext that does not open is left out, and so is one that was there before, as every report is
    sealed anew: no mixer can see that, and one client must not stop a round.
    """
    info = _TO_ANALYZER + context.digest()
    reports = []
    for ciphertext in dict.fromkeys(inner):
        with suppress(BatchRefused):
            reports.append(unsealed(ciphertext, analyzer_private_key, info=info))
    return reports


def check_several(context: RoundContext, *, mixers: int) -> None:
    """Refuse a round of several reports per client in a mix cascade."""
    if context.reports > 1 and mixers > 1:
        raise ShuffleError("clients that send several reports each need a single mixer, not a mix cascade")


def cascade_binding(*, context: RoundContext, analyzer_key: bytes, mixer_keys: Sequence[bytes]) -> bytes:
    """32 bytes that differ wherever the round, the analyzer's key, a mixer or the mixers' order differs."""
    for key in (analyzer_key, *mixer_keys):
        check_key(key)
    if not 1 <= len(mixer_keys) <= MOST_MIXERS or len(set(mixer_keys)) < len(mixer_keys):
        raise ShuffleError(f"there are 1 to {MOST_MIXERS} mixers in a cascade, each with keys of its own")
    return hashlib.sha256(_CASCADE + context.digest() + analyzer_key + b"".join(mixer_keys)).digest()


def _at(label: bytes, binding: bytes, position: int) -> bytes:
    """What a layer or a ticket is bound to, of the mixer at a position."""
    return label + binding + position.to_bytes(1, "big")


class Marks(NamedTuple):
    """What a client draws for a mix cascade, for each mixer in order."""

    marks: tuple[int, ...]  # of its layer; the first is 0
    masked: tuple[int, ...]  # what stands in its ticket: mark and masks together
    masks: tuple[tuple[int, ...], ...]  # what it gets: one for each mixer after it


def draw_marks(
    mixers: int, *, modulus: int = MODULUS, draw: Callable[[int], int] = secrets.randbelow
) -> Marks:
    """Marks and masks of one client, whole numbers below the modulus, uniform by ``draw``."""
    marks = (0, *(draw(modulus) for _ in range(1, mixers)))
    masks = tuple(tuple(draw(modulus) for _ in range(holder + 1, mixers)) for holder in range(mixers))
    masked = [0]
    for position in range(1, mixers):
        given = sum(masks[holder][position - holder - 1] for holder in range(position))
        masked.append((marks[position] + given) % modulus)
    return Marks(marks=marks, masked=tuple(masked), masks=masks)


def mark_bytes(*values: int) -> bytes:
    """Marks or masks, or sums of them, as they travel."""
    return b"".join((value % MODULUS).to_bytes(MARK_BYTES, "big") for value in values)


def read_marks(data: bytes) -> tuple[int, ...]:
    """What :func:`mark_bytes` wrote."""
    if len(data) % MARK_BYTES:
        raise ValueError(f"a mark has {MARK_BYTES} bytes")
    return tuple(
        int.from_bytes(data[start : start + MARK_BYTES], "big") for start in range(0, len(data), MARK_BYTES)
    )
