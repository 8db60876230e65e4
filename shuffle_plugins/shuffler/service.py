"""What an organisation that handles sealed batches holds, and what it signs, so that a server knows it.

A statement is a digest, 32 bytes, of all that its reader relies on, and of the question that it answers, so
that an answer cannot be passed off as the answer to another question. Different statements differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, TypeVar

from shuffle_plugins.core import checks
from shuffle_plugins.core.database import Database, StrPath
from shuffle_plugins.shuffler.keys import KEY_BYTES, ServiceKey, ServicePublicKey, check_key
from shuffle_plugins.shuffler.shuffler import BatchRefused, Refusal, ShuffleError

_Item = TypeVar("_Item")
_Content = TypeVar("_Content")

CHALLENGE_BYTES = 32
"""Bytes of the random challenge, used once, to which a mixer answers who it is."""


def role_statement(
    *, role: str, challenge: bytes, run: str, node: int, sealing_key: bytes, minimum: int
) -> bytes:
    """A service's statement of who it is, as which node of a run, in answer to the asker's random bytes."""
    kind = f"shuffle-plugins/4 {role} role".encode()
    name = run.encode("utf-8", "surrogatepass")
    return statement(kind, challenge, name, encoded_number(node), sealing_key, encoded_number(minimum))


def refusal_statement(*, request: bytes, code: Refusal, rejected: Mapping[int, Refusal]) -> bytes:
    """A service's statement that it gives back nothing for a request, and why."""
    return statement(b"shuffle-plugins/4 refused", request, str(code).encode(), *positions(rejected))


def positions(rejected: Mapping[int, Refusal]) -> list[bytes]:
    """Parts of a statement that say which envelopes were dropped, and why."""
    pairs = [encoded_number(position) + str(code).encode() for position, code in sorted(rejected.items())]
    return [encoded_number(len(pairs)), *pairs]


def encoded_number(value: int) -> bytes:
    """The part of a statement that is a whole number."""
    return value.to_bytes(16, "big", signed=True)


def statement(kind: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the parts, each with its length before it, so that different lists have other digests."""
    digest = hashlib.sha256()
    for part in (kind, *parts):
        digest.update(encoded_number(len(part)) + part)
    return digest.digest()


class _StateFile(Database):
    WHAT = "mixer's state file"
    APPLICATION_ID = 0x53504D58
    ERROR = ShuffleError
    SCHEMA = (
        "CREATE TABLE owner (public_key BLOB NOT NULL)",
        "CREATE TABLE spent (token BLOB PRIMARY KEY) WITHOUT ROWID",
    )


class SpentTokens:
    """Tokens of rounds that a mixer has begun; each can be spent once, whatever came of the round.

    A mixer that forgot them could be made to mix a batch again without one envelope, which would show that
    client's report. Hence a file belongs to one key, is made together with it (:meth:`create`), and is never
    replaced automatically. It is opened for every use, so that no connection is shared with a fork.
    """

    def __init__(self, path: StrPath, *, public_key: bytes) -> None:
        self._path = path
        with self._file() as file, file.reading() as connection:
            if connection.execute("SELECT public_key FROM owner").fetchall() != [(public_key,)]:
                raise ShuffleError(f"the state file {path} belongs to another mixer's key")

    @classmethod
    def create(cls, path: StrPath, *, public_key: bytes) -> SpentTokens:
        """Make the file of a new mixer key, at a path where there is none, readable by its owner alone."""
        check_key(public_key)
        _StateFile.make(path)
        with _StateFile(path) as file, file.writing() as connection:
            connection.execute("INSERT INTO owner VALUES (?)", (public_key,))
        return cls(path, public_key=public_key)

    def __contains__(self, token: object) -> bool:
        with self._file() as file, file.reading() as connection:
            return connection.execute("SELECT 1 FROM spent WHERE token = ?", (token,)).fetchone() is not None

    def spend(self, token: bytes) -> None:
        """Record a token, on disk when this returns; BatchRefused (REPLAYED) if it was spent before."""
        with self._file() as file, file.writing() as connection:
            if not connection.execute("INSERT OR IGNORE INTO spent VALUES (?)", (token,)).rowcount:
                raise BatchRefused(Refusal.REPLAYED)

    def _file(self) -> _StateFile:
        try:
            return _StateFile(self._path, create=False)
        except FileNotFoundError:
            raise ShuffleError(
                f"there is no state file {self._path}. It is made together with the mixer's key "
                "(shuffle-plugins keys mixer). If it was lost, make a new key and give it to the clients: "
                "rounds of the old one could be replayed"
            ) from None


def state_beside(key_file: Path | str) -> Path:
    """The default path of a mixer's state file."""
    return Path(f"{key_file}.rounds")


class BatchService:
    """Takes the sealed envelopes of a round's clients, and serves each round once.

    Args:
        enrolled: public signing keys of the clients that may take part.
        minimum: fewest reports that are given out, or added up; at least 2.
        state: the file of spent rounds that was made with the key (:meth:`SpentTokens.create`).
    """

    role: ClassVar[str]  # what the service does, as it stands in its signed statement of who it is

    def __init__(
        self, *, key: ServiceKey, enrolled: frozenset[bytes], minimum: int, state: Path | str
    ) -> None:
        if not enrolled or any(len(client) != KEY_BYTES for client in enrolled):
            raise ShuffleError(
                f"the {self.role} needs enrolled clients, each by a public key of {KEY_BYTES} bytes"
            )
        self._key = key
        self._enrolled = frozenset(enrolled)
        self.minimum = checks.whole("minimum", minimum, at_least=2)
        self.spent = SpentTokens(state, public_key=key.public.sealing)

    @property
    def public_key(self) -> ServicePublicKey:
        """The key that clients and the server pin."""
        return self._key.public

    def _good(
        self,
        items: Iterable[_Item],
        opened: Callable[[_Item], tuple[bytes, _Content]],
        rejected: dict[int, Refusal],
    ) -> Iterator[tuple[int, _Content]]:
        """Position and content of each good item, ``opened`` being its signer and content; of those of one
        signer the first. Why others are not good is entered in ``rejected``, by their position."""
        # Who has not come yet: the set shares its keys with the enrolled; one of those seen would not.
        absent = set(self._enrolled)
        for position, item in enumerate(items):
            try:
                signer, content = opened(item)
                if signer not in absent:
                    raise BatchRefused(Refusal.DUPLICATE)
            except BatchRefused as refused:
                rejected[position] = refused.code
                continue
            absent.remove(signer)
            yield position, content

    def sign(self, statement: bytes) -> bytes:
        """The service's signature of a statement, 64 bytes; who pinned its public key can check it."""
        return self._key.signing.sign(statement)
