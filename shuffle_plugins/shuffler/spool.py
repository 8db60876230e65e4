"""Batches that come to a mixer in pieces, and go back in pieces, by way of files.

A mixer may answer every message in a new process, so what has come so far lies on disk: ciphertexts as the
server sent them, and later, in their new order, ciphertexts as the server gets them. Neither tells anything
to those who do not hold the mixer's private key. What links one to the other exists only while a process
mixes, in memory and in an encrypted file that ends with it (:mod:`shuffle_plugins.shuffler.permutation`).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.batches import DIGEST_BYTES, BatchRequest, ItemsDigest, MixedStatement
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import ServicePublicKey
from shuffle_plugins.shuffler.mixer import Mixer
from shuffle_plugins.shuffler.permutation import DEFAULT_MEMORY

_REQUEST, _INPUTS, _MIXING, _OUTPUTS = "request", "inputs", "mixing", "outputs"
_NUMBER_BYTES, _RUN_FROM = 16, 64  # of a number, and where a run's name begins, in a file of a request
_FOLDER_BYTES = 1 << 16  # that a batch counts for, however small: files take whole blocks of a disk
_ABANDONED_SECONDS = 86400.0  # a batch that nobody has touched for a day is removed
_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much a mixer takes at once in batches that come in pieces, so that no server can fill its disk.

    The limits are for all batches under way together. A batch counts with what its server announces, from
    when it begins until its last piece has been given out.

    Attributes:
        most_reports: most items.
        most_bytes: most bytes of items. While a batch is mixed its files take up to twice its bytes; so a
            batch is also refused if the disk has no room for them beside what the others may still write.

    Raises:
        ValueError: if a field is no whole number, at least 1.
    """

    most_reports: int = 10_000_000
    most_bytes: int = 1 << 36

    def __post_init__(self) -> None:
        checks.whole("most_reports", self.most_reports)
        checks.whole("most_bytes", self.most_bytes)


class BatchSpool:
    """Files of a mixer's batches: one folder for each, from its first piece until its last has been given
    out.

    Each round can be begun once (:meth:`Mixer.spend`). A batch whose pieces are not exactly those of its
    request, in order, is refused and cannot be tried again; so is one whose mixer was killed while it mixed.
    Folders of such batches are removed when the next one of the same run begins, or the next one a day later.

    Args:
        folder: where to keep the files; made if it does not exist, for its owner alone.
        memory: bytes of reports that are held in memory while they are mixed.
        limits: how much may lie in the folder at once; by default 10 million reports and 64 GiB.
    """

    def __init__(
        self, folder: Path | str, *, memory: int = DEFAULT_MEMORY, limits: BatchLimits | None = None
    ) -> None:
        self._folder = Path(folder)
        self._memory = memory
        self._limits = BatchLimits() if limits is None else limits

    def begin(self, request: BatchRequest, *, mixer: Mixer, cascade: Sequence[ServicePublicKey] = ()) -> None:
        """Begin a batch. A batch that is too large is refused before anything is written. Otherwise the round
        is spent on disk before anything else happens.

        Args:
            request: what the server asks.
            mixer: the mixer that is asked.
            cascade: public keys of all mixers in their order, as this mixer's operator has pinned them;
                empty for a single mixer.

        Raises:
            BatchRefused: REPLAYED for a spent round; TOO_LARGE if the batch, with those under way, is beyond
                the limits; NOT_PROVEN if the mixer before in the cascade has not signed this batch.
            ShuffleError: if the cascade is another than the pinned one, or files cannot be written.
        """
        run = request.context.run.encode("utf-8", "surrogatepass")
        mixer.check_unspent(request.context)
        with _files():
            self._check_room(request, run=run)
        mixer.spend(request.context)
        pinned = tuple(cascade) or (mixer.public_key,)
        if request.mixers != pinned or pinned[request.position] != mixer.public_key:
            raise ShuffleError(
                "the server asks for other mixers, or in another order, than "
                "shuffle-mixer-public-key in this node's node_config names"
            )
        request.check_previous()
        with _files():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._sweep(run)
            folder = self._batch(request.context.token)
            folder.mkdir(mode=0o700)
            (folder / _INPUTS).touch(mode=0o600)
            numbers = (each.to_bytes(_NUMBER_BYTES, "big") for each in _room(request))
            (folder / _REQUEST).write_bytes(request.digest() + b"".join(numbers) + run)
            try:
                self._check_room(request, run=run, own=folder)  # another process may have begun one meanwhile
            except BatchRefused:
                self._remove(folder)
                raise

    def put(self, request: BatchRequest, items: Sequence[bytes], *, first: int) -> None:
        """Take the next piece.

        Args:
            request: the batch's request, as it was begun.
            items: the items of the piece, at least one.
            first: how many items have come before.

        Raises:
            BatchRefused: WRONG_ROUND if there is no such batch under way; UNREADABLE, and the batch is over,
                if a piece is missing, came before, or has items of another size.
            ShuffleError: if files cannot be written.
        """
        folder = self._under_way(request)
        with _files(), open(folder / _INPUTS, "ab") as file:
            come, rest = divmod(file.tell(), request.size)
            sizes = {len(item) for item in items}
            if not rest and first == come and sizes == {request.size} and come + len(items) <= request.count:
                file.writelines(items)
                return
        self._remove(folder)
        raise BatchRefused(Refusal.UNREADABLE)

    def mix(self, request: BatchRequest, *, mixer: Mixer) -> MixedStatement:
        """Mix a batch all of whose pieces have come, and sign what comes out of it.

        Raises:
            BatchRefused: WRONG_ROUND if there is no such batch under way, or it was mixed before; NOT_PROVEN
                if the mixers before have not signed what it says of them; UNREADABLE if the pieces are not
                those of the request; or as by :meth:`Mixer.mix`. The batch is over then.
            ShuffleError: if files cannot be written.
        """
        folder = self._under_way(request)
        try:
            # The digest that was compared with that of the begun request covers the signatures alone.
            request.check_previous()
            with _files():
                try:
                    os.rename(folder / _INPUTS, folder / _MIXING)  # no second process, and no second time
                except FileNotFoundError:
                    raise BatchRefused(Refusal.WRONG_ROUND) from None
                if (folder / _MIXING).stat().st_size != request.size * request.count:
                    raise BatchRefused(Refusal.UNREADABLE)
                split = request.size - request.ticket_bytes
                items, layers = ItemsDigest(request.size), ItemsDigest(split)
                records = _digested(_records(folder / _MIXING, request.size), items)
                try:
                    stream = mixer.mix_spent(
                        _digested(records, layers, part=split),
                        context=request.context,
                        analyzer_key=request.analyzer_key,
                        size=request.size,
                        count=request.count,
                        minimum=request.minimum,
                        mixer_keys=request.mixer_keys,
                        earlier_masks=request.earlier_masks,
                        memory=self._memory,
                        directory=folder,
                    )
                except BatchRefused:
                    request.check_items(items=items, layers=layers)  # other pieces are nobody else's fault
                    raise
                os.unlink(folder / _MIXING)
                request.check_items(items=items, layers=layers)
                outputs = ItemsDigest(stream.size)
                with open(folder / _OUTPUTS, "xb") as file:
                    file.writelines(_digested(stream.reports, outputs))
        except BaseException:
            self._remove(folder)
            raise
        said = MixedStatement(
            request=request.digest(),
            answered=stream.answered,
            rejected=stream.rejected,
            count=outputs.count,
            outputs=outputs.value(),
            masks=stream.masks,
        )
        return replace(said, signature=mixer.sign(request.statement(said)))

    def take(self, request: BatchRequest, *, first: int, count: int, size: int) -> list[bytes]:
        """Items of a mixed batch. With the last one the batch is over, and its files are removed.

        Args:
            request: the batch's request.
            first: position of the first item.
            count: how many items, at least 1.
            size: bytes of an item that the mixer gives back.

        Raises:
            BatchRefused: WRONG_ROUND if there is no such batch, or it has no such items.
            ShuffleError: if files cannot be read.
        """
        folder = self._under_way(request)
        with _files():
            try:
                whole = (folder / _OUTPUTS).stat().st_size
            except FileNotFoundError:
                raise BatchRefused(Refusal.WRONG_ROUND) from None
            if first < 0 or count < 1 or size < 1 or (first + count) * size > whole:
                raise BatchRefused(Refusal.WRONG_ROUND)
            with open(folder / _OUTPUTS, "rb") as file:
                file.seek(first * size)
                data = file.read(count * size)
        if (first + count) * size == whole:
            self._remove(folder)
        return [data[start : start + size] for start in range(0, len(data), size)]

    def _batch(self, token: bytes) -> Path:
        return self._folder / token.hex()

    def _under_way(self, request: BatchRequest) -> Path:
        folder = self._batch(request.context.token)
        try:
            begun = (folder / _REQUEST).read_bytes()
        except FileNotFoundError:
            raise BatchRefused(Refusal.WRONG_ROUND) from None
        digest = request.digest()
        if begun[: len(digest)] != digest:
            raise BatchRefused(Refusal.WRONG_ROUND)
        return folder

    def _check_room(self, request: BatchRequest, *, run: bytes, own: Path | None = None) -> None:
        """Check that a batch, with those under way, is within the limits and fits on the disk.

        Raises:
            BatchRefused: TOO_LARGE if not.
        """
        reports, size = _room(request)
        free = _free(self._folder)
        coming = 2 * request.count * request.size  # bytes that this batch and the others may still write
        for folder, written in self._batches():
            if folder != own and not self._ended(folder, written, run):
                reports += _number(written, 0)
                size += _number(written, 1)
                coming += max(0, 2 * (_number(written, 1) - _FOLDER_BYTES) - _bytes_in(folder))
        if reports > self._limits.most_reports or size > self._limits.most_bytes or coming > free:
            raise BatchRefused(Refusal.TOO_LARGE)

    def _sweep(self, run: bytes) -> None:
        """Remove what batches that ended early have left: those of the same run, and those of a day ago."""
        for folder, written in self._batches():
            if self._ended(folder, written, run):
                self._remove(folder)

    def _batches(self) -> Iterator[tuple[Path, bytes]]:
        """The folders of batches, and what was written down of each when it began."""
        if not self._folder.is_dir():
            return
        for folder in self._folder.iterdir():
            try:
                yield folder, (folder / _REQUEST).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue

    def _ended(self, folder: Path, written: bytes, run: bytes) -> bool:
        try:
            age = time.time() - folder.stat().st_mtime
        except FileNotFoundError:
            return True
        return written[_RUN_FROM:] == run or age > _ABANDONED_SECONDS

    def _remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


def _room(request: BatchRequest) -> tuple[int, int]:
    """Reports and bytes that a batch counts for."""
    return request.count * request.context.reports, request.count * request.size + _FOLDER_BYTES


def _number(written: bytes, place: int) -> int:
    """Of what was written down of a batch: its reports (0) or bytes (1)."""
    start = DIGEST_BYTES + place * _NUMBER_BYTES
    return int.from_bytes(written[start : start + _NUMBER_BYTES], "big")


def _bytes_in(folder: Path) -> int:
    """Bytes of the files of a batch; none if it is over meanwhile."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:
        return 0


def _free(folder: Path) -> int:
    """Bytes that are free on the disk of a folder, which need not exist yet."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


class _files:
    """Turns an error of the file system into one that says what it means for the mixer."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise ShuffleError(f"the mixer's files of a batch cannot be used: {error}") from error


def _records(path: Path, size: int) -> Iterator[bytes]:
    """The records of a file, one after another."""
    with open(path, "rb", buffering=max(size, _READ_BYTES)) as file:
        while record := file.read(size):
            yield record


def _digested(items: Iterator[bytes], digest: ItemsDigest, *, part: int | None = None) -> Iterator[bytes]:
    """The items as they are, while a digest takes them, or a part from the beginning of each."""
    for item in items:
        digest.add(item[:part])
        yield item
