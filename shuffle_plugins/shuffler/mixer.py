"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order.

A batch comes and goes in pieces, by way of files: a mixer may answer every message in a new process. On disk
lie ciphertexts as the server sent them, and later, in their new order, as the server gets them. What links
one to the other exists only while a process mixes, in memory and in an encrypted file that ends with it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import BinaryIO

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from shuffle_plugins.core.ranges import Count, Ranged
from shuffle_plugins.shuffler.batches import BatchRequest, MixedStatement, items_digest
from shuffle_plugins.shuffler.envelopes import MODULUS, EnvelopeOpener, Opened
from shuffle_plugins.shuffler.keys import ServicePublicKey
from shuffle_plugins.shuffler.service import BatchService
from shuffle_plugins.shuffler.shuffler import BatchRefused, Refusal, ShuffleError


class Mixer(BatchService):
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    It never sees a report: those are sealed to the analyzer. A bad envelope is dropped alone, and its
    position told: whoever relays envelopes could have left it out. Each round is mixed once, whatever the
    outcome (:class:`BatchSpool`): mixing subsets of a batch would show who sent a dummy.

    In a mix cascade the first mixer drops what is no good. The others take exactly what the one before has
    signed, with a ticket of each client, and refuse the whole batch unless the marks say that there is one
    layer of each (:mod:`shuffle_plugins.shuffler.envelopes`). The last one drops the dummies, which do not
    count for the minimum.
    """

    role = "mixer"

    def mix_spent(
        self,
        items: Iterable[bytes],
        outputs: BinaryIO,
        *,
        request: BatchRequest,
        directory: Path | str | None = None,
    ) -> MixedStatement:
        """Mix a batch of a round that is recorded as spent; the caller sees to it that it happens once.

        An item is dropped for UNREADABLE or UNKNOWN_SIGNER, and for DUPLICATE if one of the same signer came
        before it.

        Args:
            items: those of the request, one after another. All are read before anything is written.
            outputs: where to write what comes out, in uniformly random order, also of one client.
            directory: folder of a temporary file as large as the outputs; None for the system's own.

        Raises:
            BatchRefused: UNDER_MINIMUM for too few good reports; at a later mixer of a cascade also
                INCONSISTENT if the layers are not one of each client whose ticket came, and a ticket's own
                code if it is no good.
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
            if tally.real < max(self.minimum, request.minimum, request.context.minimum):
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
        """What is inside; None for a layer of a later mixer that does not open."""
        if self._first:
            one = self._opener.open(item)
            self._come(one.signer, one.masks)
        else:
            ticket = self._opener.open_ticket(item[self._split :])
            self._come(ticket.signer, ticket.masks)
            self._masked += ticket.mark
            try:
                one = self._opener.open(item[: self._split])
            except BatchRefused:
                self._whole = False  # its place in the batch says nothing about whose it is
                return None
            self._marks += one.mark
        self.real += one.real
        return one

    def check(self, earlier_masks: int) -> None:
        """Check, at a later mixer, that the layers are those of the clients whose tickets came."""
        if self._first:
            return
        for code in self.rejected.values():
            raise BatchRefused(code, self.rejected)
        agreed = (self._masked - self._marks - earlier_masks) % MODULUS == 0
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
    eight bytes of each. The operating system removes the file when the process ends, also when it is killed.
    The order comes from ``entropy``, by default the operating system's.
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
        """Take one more record."""
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


@dataclass(frozen=True, kw_only=True)
class BatchLimits(Ranged):
    """Most items, and bytes of them, of all batches under way together, so that no server fills the disk.

    A batch counts with what its server announces, from its first piece until its last one has been given out.
    It is also refused if the disk has no room for it: while it is mixed its files take up to twice its bytes.
    """

    most_reports: Count = 10_000_000
    most_bytes: Count = 1 << 36


class BatchSpool:
    """Files of a mixer's batches: a folder for each, from its first piece until its last has been given out.

    Each round can be begun once. A batch whose pieces are not exactly those of its request, in order, is
    refused and cannot be tried again; so is one whose mixer was killed while it mixed. Their folders are
    removed when the next batch of the same run begins, or the next one a day later.

    Args:
        folder: where to keep the files; made if it does not exist, for its owner alone.
        cascade: public keys of all mixers in their order, as this mixer's operator has pinned them; empty for
            a single mixer.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        mixer: Mixer,
        cascade: Sequence[ServicePublicKey] = (),
        limits: BatchLimits | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._mixer = mixer
        self._cascade = tuple(cascade) or (mixer.public_key,)
        self._limits = BatchLimits() if limits is None else limits

    def mix(self, request: BatchRequest, items: Sequence[bytes]) -> tuple[MixedStatement, list[bytes]]:
        """Mix a batch that comes in one piece, and give all of it back; errors are those of :meth:`put`."""
        said = self.put(request, items, first=0)
        if said is None:
            raise ShuffleError(f"the request is to mix {request.count} items, got {len(items)}")
        return said, self.take(request, first=0, most=said.count)

    def put(self, request: BatchRequest, items: Sequence[bytes], *, first: int) -> MixedStatement | None:
        """Take the next piece; ``first`` is how many items have come before.

        The first one begins the batch: if that is too large nothing is kept, and otherwise the round is spent
        on disk before anything else happens. With the last one it is mixed, and signed; before, it is None.

        Raises:
            BatchRefused: REPLAYED for a spent round; TOO_LARGE if the batch, with those under way, is beyond
                the limits; NOT_PROVEN if the mixers before have not signed it; WRONG_ROUND if there is no
                such batch under way; UNREADABLE if a piece is missing, came before, or has items of another
                size, or if all together are not those of the request; or as by :meth:`Mixer.mix_spent`. A
                batch that was under way is over then.
            ShuffleError: if the cascade is another than the pinned one, or files cannot be used.
        """
        with _files():
            folder = self._under_way(request) if first else self._begin(request)
            try:
                with open(folder / "inputs", "ab") as file:
                    come, rest = divmod(file.tell(), request.size)
                    if rest or first != come or {len(item) for item in items} != {request.size}:
                        raise BatchRefused(Refusal.UNREADABLE)
                    file.writelines(items)
                come += len(items)
                if come < request.count:
                    return None
                if come > request.count:
                    raise BatchRefused(Refusal.UNREADABLE)
                os.rename(folder / "inputs", folder / "mixing")  # of processes that are asked, one can
                return self._mixed(request, folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def take(self, request: BatchRequest, *, first: int, most: int) -> list[bytes]:
        """At most so many items of a mixed batch, from a position on; its files end with the last one.

        BatchRefused (WRONG_ROUND) if there is no such batch, or it has no such items.
        """
        size = request.output_size
        with _files():
            folder = self._under_way(request)
            try:
                whole = (folder / "outputs").stat().st_size // size
            except FileNotFoundError:
                raise BatchRefused(Refusal.WRONG_ROUND) from None
            if not 0 <= first < whole or most < 1:
                raise BatchRefused(Refusal.WRONG_ROUND)
            stop = min(first + most, whole)
            with open(folder / "outputs", "rb") as file:
                file.seek(first * size)
                taken = [file.read(size) for _ in range(first, stop)]
        if stop == whole:
            shutil.rmtree(folder, ignore_errors=True)
        return taken

    def _begin(self, request: BatchRequest) -> Path:
        """Make a batch's folder, if there is room for it, and spend its round."""
        mixer = self._mixer
        if request.context.token in mixer.spent:
            raise BatchRefused(Refusal.REPLAYED)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._folder / request.context.token.hex()
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # another process begins it, or was killed before it spent the round
            raise BatchRefused(Refusal.REPLAYED) from None
        try:
            (folder / "request").write_text(request.to_json())
            (folder / "inputs").touch(mode=0o600)
            self._make_room(request, own=folder)
            mixer.spent.spend(request.context.token)
            if request.mixers != self._cascade or request.mixers[request.position] != mixer.public_key:
                raise ShuffleError(
                    "the server asks for other mixers, or in another order, than "
                    "shuffle-mixer-public-key in this node's node_config names"
                )
            request.check_previous()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _mixed(self, request: BatchRequest, folder: Path) -> MixedStatement:
        """Mix what has come, if it is what the request says, and sign what comes out of it."""
        path, split = folder / "mixing", request.layer_bytes
        good = items_digest(_records(path, request.size), size=request.size) == request.inputs
        if good and request.previous:
            layers = (item[:split] for item in _records(path, request.size))
            good = items_digest(layers, size=split) == request.previous[-1].outputs
        if not good:
            raise BatchRefused(Refusal.UNREADABLE)

        def items() -> Iterator[bytes]:
            yield from _records(path, request.size)
            os.unlink(path)  # before outputs take its place on the disk

        with open(folder / "outputs", "xb") as outputs:
            return self._mixer.mix_spent(items(), outputs, request=request, directory=folder)

    def _under_way(self, request: BatchRequest) -> Path:
        folder = self._folder / request.context.token.hex()
        try:
            begun = (folder / "request").read_text()
        except FileNotFoundError:
            raise BatchRefused(Refusal.WRONG_ROUND) from None
        if begun != request.to_json():
            raise BatchRefused(Refusal.WRONG_ROUND)
        return folder

    def _make_room(self, request: BatchRequest, *, own: Path) -> None:
        """Check that the new batch, with those under way, is within the limits and fits on the disk.

        First it removes what batches that ended early have left: those of the same run or a day ago.
        """
        reports = size = coming = 0  # coming: bytes that may still be written
        for folder in self._folder.glob("[0-9a-f]" * 32):
            batch, age, there = None, 0.0, 0
            with suppress(FileNotFoundError, ValueError):  # it is over meanwhile, or was killed as it began
                age = time.time() - folder.stat().st_mtime
                there = sum(file.stat().st_size for file in folder.iterdir())
                batch = BatchRequest.from_json((folder / "request").read_text())
            ended = age > 86400.0 or (batch and batch.context.run == request.context.run)
            if folder != own and ended:
                shutil.rmtree(folder, ignore_errors=True)
            elif batch is not None:
                reports += batch.count * batch.context.reports
                size += batch.count * batch.size + (1 << 16)  # files take whole blocks of a disk
                coming += max(0, 2 * batch.count * batch.size - there)
        beyond = reports > self._limits.most_reports or size > self._limits.most_bytes
        if beyond or coming > shutil.disk_usage(self._folder).free:
            raise BatchRefused(Refusal.TOO_LARGE)


@contextmanager
def _files() -> Iterator[None]:
    """Turn an error of the file system into one that says what it means for the mixer."""
    try:
        yield
    except OSError as error:
        raise ShuffleError(f"the mixer's files of a batch cannot be used: {error}") from error


def _records(path: Path, size: int) -> Iterator[bytes]:
    """The records of a file, one after another."""
    with open(path, "rb", buffering=max(size, 1 << 22)) as file:
        while record := file.read(size):
            yield record
