"""What an organisation that handles sealed batches holds, and what it signs, so that a server knows it.

A statement contains all that its reader relies on, and the question that it answers, so that an answer cannot
be passed off as the answer to another question. Different statements have different bytes.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.keys import (
    KEY_BYTES,
    ServiceKey,
    ServicePublicKey,
    SigningKey,
    check_key,
    has_signed,
)
from shuffle_plugins.shuffler.shuffler import BatchRefused, Refusal, ShuffleError

CHALLENGE_BYTES = 32
"""Bytes of the random challenge to which a mixer answers who it is."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Bytes that a service can sign: a digest, 32 bytes, different for different statements."""

    digest: bytes

    def signed(self, key: SigningKey) -> bytes:
        """The statement's signature with a key, 64 bytes (Ed25519)."""
        return key.sign(self.digest)

    def holds(self, signature: bytes, *, verifying_key: bytes) -> bool:
        """Whether the owner of a key has signed this statement."""
        return has_signed(verifying_key, signature, self.digest)


def role_statement(
    *, role: str, challenge: bytes, run: str, node: int, sealing_key: bytes, minimum: int
) -> Statement:
    """A service's statement of who it is, and as which node of the run, so that no other can pass it off.

    ``challenge`` are :data:`CHALLENGE_BYTES` random bytes of who asks, used for one question.
    """
    kind = f"shuffle-plugins/4 {role} role".encode()
    name = run.encode("utf-8", "surrogatepass")
    return statement(kind, challenge, name, encoded_number(node), sealing_key, encoded_number(minimum))


def refusal_statement(*, request: bytes, code: Refusal, rejected: Mapping[int, Refusal]) -> Statement:
    """A service's statement that it gives back nothing for a request, and why."""
    return statement(b"shuffle-plugins/4 refused", request, str(code).encode(), *positions(rejected))


def positions(rejected: Mapping[int, Refusal]) -> list[bytes]:
    """Parts of a statement that say which envelopes were dropped, and why."""
    pairs = [encoded_number(position) + str(code).encode() for position, code in sorted(rejected.items())]
    return [encoded_number(len(pairs)), *pairs]


def encoded_number(value: int) -> bytes:
    """The part of a statement that is a whole number."""
    return value.to_bytes(16, "big", signed=True)


def statement(kind: bytes, *parts: bytes) -> Statement:
    """The digest of the parts, each with its length before it, so that different lists have other bytes."""
    digest = hashlib.sha256()
    for part in (kind, *parts):
        digest.update(encoded_number(len(part)) + part)
    return Statement(digest.digest())


_APPLICATION, _VERSION = 0x53504D58, 1


class SpentTokens:
    """Tokens of rounds that a mixer has begun; each can be spent once, whatever came of the round.

    A mixer that forgot them could be made to mix a batch again without one envelope, which would show that
    client's report. Hence a file belongs to one key, is made together with it, and is never replaced
    automatically.

    Args:
        path: a file that :meth:`create` made.
        public_key: public key of the mixer that it belongs to.
    """

    def __init__(self, path: Path | str, *, public_key: bytes) -> None:
        self._path = Path(path)
        if not self._path.is_file():
            raise ShuffleError(
                f"there is no state file {path}. It is made together with the mixer's key (shuffle-plugins "
                "keys mixer). If it was lost, make a new key and give it to the clients: rounds of the old "
                "one could be replayed"
            )
        with self._connection() as connection:
            stamp = [
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            ]
            if stamp != [_APPLICATION, _VERSION]:
                raise ShuffleError(f"{path} is not a mixer's state file of version {_VERSION}")
            if connection.execute("SELECT public_key FROM owner").fetchall() != [(public_key,)]:
                raise ShuffleError(f"the state file {path} belongs to another mixer's key")

    @classmethod
    def create(cls, path: Path | str, *, public_key: bytes) -> SpentTokens:
        """Make the file of a new mixer key, at a path where there is none, readable by its owner alone."""
        check_key(public_key)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE owner (public_key BLOB NOT NULL)")
            connection.execute("CREATE TABLE spent (token BLOB PRIMARY KEY) WITHOUT ROWID")
            connection.execute("INSERT INTO owner VALUES (?)", (public_key,))
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={_VERSION}")
            connection.execute("COMMIT")
        return cls(path, public_key=public_key)

    def __contains__(self, token: object) -> bool:
        with self._connection() as connection:
            found = connection.execute("SELECT 1 FROM spent WHERE token = ?", (token,)).fetchone()
        return found is not None

    def spend(self, token: bytes) -> None:
        """Record a token, on disk when this returns; BatchRefused (REPLAYED) if it was spent before."""
        with self._connection() as connection:
            try:
                connection.execute("INSERT INTO spent VALUES (?)", (token,))
            except sqlite3.IntegrityError:
                raise BatchRefused(Refusal.REPLAYED) from None

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A new connection for every use, so that none is shared with a fork; each statement commits."""
        try:
            with closing(
                sqlite3.connect(
                    f"{self._path.absolute().as_uri()}?mode=rw",
                    uri=True,
                    timeout=30.0,
                    isolation_level=None,
                )
            ) as connection:
                connection.execute("PRAGMA synchronous=EXTRA")
                yield connection
        except sqlite3.Error as error:
            raise ShuffleError(f"the state file {self._path} cannot be used: {error}") from error


def state_beside(key_file: Path | str) -> Path:
    """The default path of a mixer's state file: the key file's name and ``.rounds``."""
    return Path(f"{key_file}.rounds")


class BatchService:
    """Takes the sealed envelopes of a round's clients, and serves each round once.

    Args:
        key: the service's private keys; clients and the server pin the public ones.
        enrolled: public signing keys of the clients that may take part.
        minimum: fewest reports that are given out, or added up; at least 2.
        state: the file of spent rounds that was made with the key (:meth:`SpentTokens.create`).

    Attributes:
        role: what the service does, as it stands in its signed statement of who it is.
        spent: the rounds that it has begun.
    """

    role: ClassVar[str]

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

    def sign(self, statement: Statement) -> bytes:
        """The service's signature of a statement, 64 bytes; who pinned its public key can check it."""
        return statement.signed(self._key.signing)
