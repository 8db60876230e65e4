"""The mixer: takes the sealed envelopes of a round, and gives back their contents in random order.

All items of a batch (layers, layers with tickets, or sealed reports) have one size. A mixer signs the digest
of all it was given, by way of the request, and of all it gives back; the next one takes nothing else. A batch
comes and goes in pieces, by way of files: a mixer may answer every message in a new process. What links what
came to what goes exists only while a process mixes, in memory and in an encrypted file that ends with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Annotated, Any, BinaryIO, Self

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Ranged, whole_number
from shuffle_plugins.shuffler.envelopes import (
    MODULUS,
    MOST_MIXERS,
    EnvelopeOpener,
    Opened,
    cascade_binding,
    check_several,
    cover_size,
    layer_size,
    ticket_size,
)
from shuffle_plugins.shuffler.keys import KEY_BYTES, ServicePublicKey, has_signed
from shuffle_plugins.shuffler.service import BatchService, encoded_number, statement
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
    """What a mixer says, signed, of a batch that it gives back."""

    request: Annotated[bytes, bytes_of(DIGEST_BYTES)]  # digest of the request that it answers
    answered: Annotated[int, whole_number(at_least=0)]  # good items that it was given, dummies included
    rejected: Mapping[int, Refusal] = field(default_factory=dict)  # items dropped, by position among all
    count: Count  # items that it gives back
    outputs: Annotated[bytes, bytes_of(DIGEST_BYTES)]  # their digest
    masks: tuple[int, ...] = ()  # sums of clients' masks for each mixer after this one, in order
    signature: bytes = b""  # of all this, of the cascade, the round, and the mixer's place

    @override
    @classmethod
    def _of(cls, values: dict[str, Any]) -> Self:
        rejected = {int(place): Refusal(code) for place, code in values.pop("rejected").items()}
        masks = tuple(checks.whole("a sum of masks", mask, at_least=0) for mask in values.pop("masks"))
        return cls(rejected=rejected, masks=masks, **_read(values, "request", "outputs", "signature"))


@dataclass(frozen=True, kw_only=True)
class BatchRequest(_Text):
    """What a server asks of one mixer of a cascade for one round; the items themselves travel apart.

    ``minimum`` are the fewest reports with which the server wants a batch. The largest of this, of what
    clients were promised (``context.minimum``), and of the mixer's own minimum holds.
    """

    context: RoundContext
    analyzer_key: Annotated[bytes, bytes_of(KEY_BYTES)]  # to which clients sealed their reports
    mixers: tuple[ServicePublicKey, ...]  # in the order in which they work; one for a single mixer
    position: Annotated[int, whole_number(at_least=0, at_most=MOST_MIXERS - 1)]  # of the mixer that is asked
    minimum: Annotated[int, whole_number(at_least=2)]
    size: Count  # bytes of every item: a layer, and at a later mixer one of the tickets after it
    count: Count  # items
    inputs: Annotated[bytes, bytes_of(DIGEST_BYTES)]  # their digest
    previous: tuple[MixedStatement, ...] = ()  # by the mixers before, the last of which gave these layers

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

    def statement(self, said: MixedStatement, *, position: int | None = None) -> bytes:
        """What the mixer that is asked, or that at another place, signs of the batch that it gives back."""
        binding = cascade_binding(
            context=self.context, analyzer_key=self.analyzer_key, mixer_keys=self.mixer_keys
        )
        place = encoded_number(self.position if position is None else position)
        text = replace(said, signature=b"").to_json().encode()
        return statement(b"shuffle-plugins/4 mixed batch", binding, place, text)

    def check_previous(self) -> None:
        """Check that the mixers before have signed their statements, for this round and cascade."""
        for place, said in enumerate(self.previous):
            by_it = self.statement(said, position=place)
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
        """Check that items are those that the mixer has signed; BatchRefused (NOT_PROVEN) if not.

        Clients may have sealed one report alike: it is there twice, and :func:`open_reports` takes it once.
        """
        sizes = {len(item) for item in items}
        if sizes != {self.output_size} or items_digest(items, size=self.output_size) != said.outputs:
            raise BatchRefused(Refusal.NOT_PROVEN)


def _read(values: dict[str, Any], *hexadecimal: str) -> dict[str, Any]:
    """The values, those of some names turned from hexadecimal digits into bytes."""
    return values | {name: bytes.fromhex(values[name]) for name in hexadecimal}


class Mixer(BatchService):
    """Opens the outer layer of a round's envelopes, drops dummies, and permutes the rest.

    A bad envelope is dropped alone, and its position told: whoever relays envelopes could have left it out.
    Each round is mixed once (:class:`BatchSpool`): mixing subsets of a batch would show who sent a dummy.

    In a mix cascade the first mixer drops what is no good. The others take exactly what the one before has
    signed, with a ticket of each client, and refuse the whole batch unless the marks say that there is one
    layer of each. The last one drops the dummies, which do not count for the minimum.
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
        split, size, rejected = request.layer_bytes, request.output_size, dict[int, Refusal]()

        def opened(item: bytes) -> tuple[bytes, tuple[Opened, Opened | None]]:
            """The signer, the ticket, which at the first mixer is the layer, and the layer if it opens."""
            if request.position == 0:
                named = opener.open(item)
                return named.signer, (named, named)
            ticket = opener.open_ticket(item[split:])
            layer: Opened | None = None
            with suppress(BatchRefused):  # its place in the batch says nothing about whose it is
                layer = opener.open(item[:split])
            return ticket.signer, (ticket, layer)

        further = len(request.mixers) - 1 - request.position  # mixers after this one
        masks, answered, real, whole, unbalanced = [0] * further, 0, 0, True, -request.earlier_masks
        with ShuffledFile(size, directory=directory) as shuffled:
            for _, (ticket, layer) in self._good(items, opened, rejected):
                answered += 1
                masks = [sum(pair) for pair in zip(masks, ticket.masks, strict=True)]
                unbalanced += ticket.mark
                if layer is None:
                    whole = False
                    continue
                unbalanced -= layer.mark
                real += layer.real
                if layer.real or further:
                    for start in range(0, len(layer.inner), size):
                        shuffled.add(layer.inner[start : start + size])
            if request.position:  # the layers must be those of the clients whose tickets came
                for code in rejected.values():
                    raise BatchRefused(code, rejected)
                if unbalanced % MODULUS or not whole:
                    raise BatchRefused(Refusal.INCONSISTENT)
            if real < max(self.minimum, request.minimum, request.context.minimum):
                raise BatchRefused(Refusal.UNDER_MINIMUM, rejected)
            said = MixedStatement(
                request=request.digest(),
                answered=answered,
                rejected=rejected,
                count=len(shuffled),
                outputs=items_digest(_written(shuffled.drain(), outputs), size=size),
                masks=tuple(masks),
            )
        return replace(said, signature=self.sign(request.statement(said)))


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

    Each round can be begun once, also if its mixer was killed while it mixed. What that leaves is removed
    when the next batch of the same run begins, or the next one a day later. ``cascade`` are the public keys
    of all mixers in their order, as this mixer's operator has pinned them; empty for a single mixer.
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
                such batch under way; UNREADABLE if pieces are not those of the request, in order; or as by
                :meth:`Mixer.mix_spent`. A batch that was under way is over then.
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
