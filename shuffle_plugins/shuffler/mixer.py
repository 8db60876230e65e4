"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from typing import BinaryIO

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from shuffle_plugins.shuffler.batches import BatchRequest, MixedStatement, items_digest
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, Opened, agree
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal
from shuffle_plugins.shuffler.service import BatchService
from shuffle_plugins.shuffler.shuffler import RoundContext


class Mixer(BatchService):
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    It is run by an organisation that does not work together with the server. It never sees a report: those
    are sealed to the analyzer. A bad envelope is dropped alone, and its position is told: whoever relays the
    envelopes could have left it out as well, so this says nothing new about the others. Each round is mixed
    once, whatever the outcome: mixing subsets of a batch would show who sent a dummy.
    :class:`~shuffle_plugins.shuffler.spool.BatchSpool` sees to that.

    In a mix cascade the first mixer drops what is no good. The others take exactly what the one before has
    signed (:meth:`BatchRequest.check_previous`), with a ticket of each client, and refuse the whole batch
    unless the marks say that there is one layer of each (:mod:`shuffle_plugins.shuffler.envelopes`). Dummies
    go through all layers, and the last mixer drops them.

    The arguments are those of :class:`BatchService`; ``minimum`` does not count dummies. Where clients send
    several reports each, it counts clients.
    """

    role = "mixer"

    def check_unspent(self, context: RoundContext) -> None:
        """Check that a round has not begun, without recording anything.

        Raises:
            BatchRefused: REPLAYED if it has.
            ShuffleError: if the state file cannot be read.
        """
        if context.token in self._spent:
            raise BatchRefused(Refusal.REPLAYED)

    def spend(self, context: RoundContext) -> None:
        """Record that a round has begun; on disk when this returns.

        Raises:
            BatchRefused: REPLAYED if it has begun before.
            ShuffleError: if the state file cannot be written.
        """
        self._spent.spend(context.token)

    def mix_spent(
        self,
        items: Iterable[bytes],
        outputs: BinaryIO,
        *,
        request: BatchRequest,
        directory: Path | str | None = None,
    ) -> MixedStatement:
        """Mix a batch of a round that :meth:`spend` has recorded; the caller sees to it that it happens once.

        Args:
            items: those of the request, one after another. All are read before anything is written.
            outputs: where to write what comes out: the reports, sealed to the analyzer, or layers of the next
                mixer, in uniformly random order. If a client's envelope holds several reports, they are as
                far apart as any others.
            request: what the server asks.
            directory: folder of a temporary file as large as the outputs; None for the system's own.

        Returns:
            The signed statement. An item is dropped for UNREADABLE or UNKNOWN_SIGNER, see
            :class:`EnvelopeOpener`, and for DUPLICATE if one of the same signer came before it.

        Raises:
            BatchRefused: UNDER_MINIMUM for too few good reports; at a later mixer of a cascade also
                INCONSISTENT if the layers are not one of each client whose ticket came, and a ticket's own
                code if it is no good.
            OSError: if a file cannot be written.
        """
        opener = EnvelopeOpener(
            context=request.context,
            analyzer_key=request.analyzer_key,
            private_key=self._key.sealing,
            enrolled=self._enrolled,
            mixer_keys=request.mixer_keys,
        )
        tally, size = _Tally(opener, self._enrolled, split=request.layer_bytes), request.output_size
        last = request.position == len(request.mixers) - 1
        with ShuffledFile(size, directory=directory) as shuffled:
            for position, item in enumerate(items):
                try:
                    one = tally.take(item)
                except BatchRefused as refused:
                    tally.rejected[position] = refused.code
                    continue
                if one is not None and (one.real or not last):
                    for start in range(0, len(one.inner), size):
                        shuffled.add(one.inner[start : start + size])
            tally.check(request.earlier_masks)
            if tally.real < max(self._minimum, request.minimum, request.context.minimum):
                raise BatchRefused(Refusal.UNDER_MINIMUM, tally.rejected)
            said = MixedStatement(
                request=request.digest(),
                answered=tally.answered,
                rejected=tally.rejected,
                count=len(shuffled),
                outputs=items_digest(_written(shuffled.drain(), outputs), size=size),
                masks=tuple(tally.masks),
            )
        return replace(said, signature=self.sign(request.statement(said)))


class _Tally:
    """What a mixer counts and adds up while it opens a batch."""

    def __init__(self, opener: EnvelopeOpener, enrolled: frozenset[bytes], *, split: int) -> None:
        self._opener = opener
        self._first = opener.position == 0
        self._split = split  # bytes of an item's layer, before its ticket
        # Who has not come yet: the set shares its keys with the enrolled; one of those seen would not.
        self._absent = set(enrolled)
        self._masked = self._marks = 0
        self._whole = True
        self.answered = self.real = 0
        self.masks = [0] * (opener.mixers - 1 - opener.position)
        self.rejected: dict[int, Refusal] = {}

    def take(self, item: bytes) -> Opened | None:
        """What is inside; None for a layer of a later mixer that does not open.

        Raises:
            BatchRefused: why the envelope is dropped, or, at a later mixer, the ticket is no good.
        """
        if self._first:
            one = self._opener.open(item)
            self._come(one.signer, one.masks)
        else:
            ticket = self._opener.open_ticket(item[self._split :])
            self._come(ticket.signer, ticket.masks)
            self._masked += ticket.masked
            try:
                one = self._opener.open(item[: self._split])
            except BatchRefused:
                self._whole = False  # its place in the batch says nothing about whose it is
                return None
            self._marks += one.mark
        self.real += one.real
        return one

    def check(self, earlier_masks: int) -> None:
        """Check, at a later mixer, that the layers are those of the clients whose tickets came.

        Raises:
            BatchRefused: INCONSISTENT if they are not; the ticket's own code if one was no good.
        """
        if self._first:
            return
        for code in self.rejected.values():
            raise BatchRefused(code, self.rejected)
        agreed = agree(masked=self._masked, marks=self._marks, masks=earlier_masks)
        if not (self._whole and agreed):
            raise BatchRefused(Refusal.INCONSISTENT)

    def _come(self, signer: bytes, masks: tuple[int, ...]) -> None:
        if signer not in self._absent:
            raise BatchRefused(Refusal.DUPLICATE)
        self._absent.remove(signer)
        self.answered += 1
        self.masks = [sum(pair) for pair in zip(self.masks, masks, strict=True)]


class ShuffledFile:
    """Takes records of one size, one by one, and gives them all back in a uniformly random order.

    They lie in a file without a name, encrypted under a key that exists in this process alone; in memory are
    eight bytes of each. The operating system removes the file when the process ends, also when it is killed;
    what may be left on the disk's free blocks cannot be read.

    Args:
        size: bytes of every record.
        directory: folder of the file; None for the system's own.
        entropy: where the order comes from; the operating system by default.

    Raises:
        OSError: if the folder cannot be written to, or the disk is full.
    """

    def __init__(
        self, size: int, *, directory: Path | str | None = None, entropy: Random | None = None
    ) -> None:
        self._size = size
        self._entropy = entropy or SystemRandom()
        self._count = 0
        self._key = AES(os.urandom(32))
        self._encryptor = self._cipher(0).encryptor()
        # On Linux this file never has a name (O_TMPFILE); elsewhere it loses it at once.
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> ShuffledFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, record: bytes) -> None:
        """Take one more record.

        Raises:
            ValueError: if it has another size.
        """
        if len(record) != self._size:
            raise ValueError(f"every record has {self._size} bytes, got {len(record)}")
        self._file.write(self._encryptor.update(record))
        self._count += 1

    def drain(self) -> Iterator[bytes]:
        """All records, each once, in random order."""
        order = array("Q", range(self._count))
        self._entropy.shuffle(order)
        for place in order:
            start = place * self._size
            self._file.seek(start)
            data = self._file.read(self._size)
            if len(data) != self._size:
                raise OSError("the mixer's temporary file is shorter than what was written to it")
            before = start % (AES.block_size // 8)  # of the first block's keystream
            decryptor = self._cipher(start).decryptor()
            yield decryptor.update(bytes(before) + data)[before:]

    def _cipher(self, start: int) -> Cipher[CTR]:
        return Cipher(self._key, CTR((start // (AES.block_size // 8)).to_bytes(16, "big")))


def _written(items: Iterable[bytes], file: BinaryIO) -> Iterator[bytes]:
    for item in items:
        file.write(item)
        yield item
