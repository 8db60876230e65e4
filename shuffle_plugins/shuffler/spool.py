"""Batches that come to a mixer in pieces, one or many, and go back in pieces, by way of files.

A mixer may answer every message in a new process, so what has come so far lies on disk: ciphertexts as the
server sent them, and later, in their new order, ciphertexts as the server gets them. Neither tells anything
to those who do not hold the mixer's private key. What links one to the other exists only while a process
mixes, in memory and in an encrypted file that ends with it (``ShuffledFile`` in ``mixer.py``).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shuffle_plugins.core import Count, Ranged
from shuffle_plugins.shuffler.batches import BatchRequest, MixedStatement, items_digest
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import ServicePublicKey
from shuffle_plugins.shuffler.mixer import Mixer

_REQUEST, _INPUTS, _MIXING, _OUTPUTS = "request", "inputs", "mixing", "outputs"
_FOLDER_BYTES = 1 << 16  # that a batch counts for, however small: files take whole blocks of a disk
_ABANDONED_SECONDS = 86400.0  # a batch that nobody has touched for a day is removed
_READ_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class BatchLimits(Ranged):
    """How much a mixer takes at once, so that no server can fill its disk.

    The limits are for all batches under way together. A batch counts with what its server announces, from
    its first piece until its last one has been given out.

    Attributes:
        most_reports: most items.
        most_bytes: most bytes of items. While a batch is mixed its files take up to twice its bytes; so a
            batch is also refused if the disk has no room for them beside what the others may still write.
    """

    most_reports: Count = 10_000_000
    most_bytes: Count = 1 << 36


class BatchSpool:
    """Files of a mixer's batches: a folder for each, from its first piece until its last has been given out.

    Each round can be begun once (:meth:`Mixer.spend`). A batch whose pieces are not exactly those of its
    request, in order, is refused and cannot be tried again; so is one whose mixer was killed while it mixed.
    Folders of such batches are removed when the next one of the same run begins, or the next one a day later.

    Args:
        folder: where to keep the files; made if it does not exist, for its owner alone.
        mixer: mixes the batches.
        cascade: public keys of all mixers in their order, as this mixer's operator has pinned them; empty for
            a single mixer.
        limits: how much may lie in the folder at once; by default 10 million reports and 64 GiB.
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
        """Take the next piece. The first one begins the batch: if that is too large nothing is kept, and
        otherwise the round is spent on disk before anything else happens. With the last one it is mixed.

        Args:
            request: what the server asks, the same for every piece.
            items: the items of the piece, at least one.
            first: how many items have come before.

        Returns:
            What the mixer has signed of the batch, after the last piece; None before.

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
                with open(folder / _INPUTS, "ab") as file:
                    come, rest = divmod(file.tell(), request.size)
                    if rest or first != come or {len(item) for item in items} != {request.size}:
                        raise BatchRefused(Refusal.UNREADABLE)
                    file.writelines(items)
                come += len(items)
                if come < request.count:
                    return None
                if come > request.count:
                    raise BatchRefused(Refusal.UNREADABLE)
                os.rename(folder / _INPUTS, folder / _MIXING)  # of processes that are asked, one can
                return self._mixed(request, folder)
            except BaseException:
                self._remove(folder)
                raise

    def take(self, request: BatchRequest, *, first: int, most: int) -> list[bytes]:
        """Items of a mixed batch. With the last one the batch is over, and its files are removed.

        Args:
            request: the batch's request.
            first: position of the first item.
            most: how many items at most, at least 1.

        Raises:
            BatchRefused: WRONG_ROUND if there is no such batch, or it has no such items.
            ShuffleError: if files cannot be read.
        """
        size = request.output_size
        with _files():
            folder = self._under_way(request)
            try:
                whole = (folder / _OUTPUTS).stat().st_size // size
            except FileNotFoundError:
                raise BatchRefused(Refusal.WRONG_ROUND) from None
            if not 0 <= first < whole or most < 1:
                raise BatchRefused(Refusal.WRONG_ROUND)
            stop = min(first + most, whole)
            with open(folder / _OUTPUTS, "rb") as file:
                file.seek(first * size)
                taken = [file.read(size) for _ in range(first, stop)]
        if stop == whole:
            self._remove(folder)
        return taken

    def _begin(self, request: BatchRequest) -> Path:
        """Make a batch's folder, if there is room for it, and spend its round."""
        mixer = self._mixer
        mixer.check_unspent(request.context)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._batch(request)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:  # another process begins it, or was killed before it spent the round
            raise BatchRefused(Refusal.REPLAYED) from None
        try:
            (folder / _REQUEST).write_text(request.to_json())
            (folder / _INPUTS).touch(mode=0o600)
            self._make_room(request, own=folder)
            mixer.spend(request.context)
            if request.mixers != self._cascade or request.mixers[request.position] != mixer.public_key:
                raise ShuffleError(
                    "the server asks for other mixers, or in another order, than "
                    "shuffle-mixer-public-key in this node's node_config names"
                )
            request.check_previous()
        except BaseException:
            self._remove(folder)
            raise
        return folder

    def _mixed(self, request: BatchRequest, folder: Path) -> MixedStatement:
        """Mix what has come, if it is what the request says, and sign what comes out of it."""
        path, split = folder / _MIXING, request.layer_bytes
        good = items_digest(_records(path, request.size), size=request.size) == request.inputs
        if good and request.previous:
            layers = (item[:split] for item in _records(path, request.size))
            good = items_digest(layers, size=split) == request.previous[-1].outputs
        if not good:
            raise BatchRefused(Refusal.UNREADABLE)

        def items() -> Iterator[bytes]:
            yield from _records(path, request.size)
            os.unlink(path)  # before outputs take its place on the disk

        with open(folder / _OUTPUTS, "xb") as outputs:
            return self._mixer.mix_spent(items(), outputs, request=request, directory=folder)

    def _batch(self, request: BatchRequest) -> Path:
        return self._folder / request.context.token.hex()

    def _under_way(self, request: BatchRequest) -> Path:
        folder = self._batch(request)
        try:
            begun = (folder / _REQUEST).read_text()
        except FileNotFoundError:
            raise BatchRefused(Refusal.WRONG_ROUND) from None
        if begun != request.to_json():
            raise BatchRefused(Refusal.WRONG_ROUND)
        return folder

    def _make_room(self, request: BatchRequest, *, own: Path) -> None:
        """Remove what batches that ended early have left: those of the same run, and those of a day ago.
        Check that the new batch, with those under way, is within the limits and fits on the disk.

        Raises:
            BatchRefused: TOO_LARGE if not.
        """
        reports = size = coming = 0  # coming: bytes that may still be written
        for folder in self._folder.glob("[0-9a-f]" * 32):
            batch, age, there = None, 0.0, 0
            with suppress(FileNotFoundError, ValueError):  # it is over meanwhile, or was killed as it began
                age = time.time() - folder.stat().st_mtime
                there = sum(file.stat().st_size for file in folder.iterdir())
                batch = BatchRequest.from_json((folder / _REQUEST).read_text())
            ended = age > _ABANDONED_SECONDS or (batch and batch.context.run == request.context.run)
            if folder != own and ended:
                self._remove(folder)
            elif batch is not None:
                reports += batch.count * batch.context.reports
                size += batch.count * batch.size + _FOLDER_BYTES
                coming += max(0, 2 * batch.count * batch.size - there)
        beyond = reports > self._limits.most_reports or size > self._limits.most_bytes
        if beyond or coming > shutil.disk_usage(self._folder).free:
            raise BatchRefused(Refusal.TOO_LARGE)

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _files() -> Iterator[None]:
    """Turn an error of the file system into one that says what it means for the mixer."""
    try:
        yield
    except OSError as error:
        raise ShuffleError(f"the mixer's files of a batch cannot be used: {error}") from error


def _records(path: Path, size: int) -> Iterator[bytes]:
    """The records of a file, one after another."""
    with open(path, "rb", buffering=max(size, _READ_BYTES)) as file:
        while record := file.read(size):
            yield record
