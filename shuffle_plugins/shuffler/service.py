"""What an organisation that handles sealed batches holds: keys, enrolled clients, spent rounds."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import ClassVar

from shuffle_plugins.core import checks
from shuffle_plugins.shuffler.errors import BatchRefused, Refusal, ShuffleError
from shuffle_plugins.shuffler.keys import KEY_BYTES, ServiceKey, ServicePublicKey
from shuffle_plugins.shuffler.statements import Statement

_APPLICATION = 0x53504D58
_VERSION = 1
_WAIT_SECONDS = 30.0
_SCHEMA = """
    CREATE TABLE owner (public_key BLOB NOT NULL);
    CREATE TABLE spent (token BLOB PRIMARY KEY) WITHOUT ROWID;
"""


class SpentTokens:
    """Tokens of rounds that a mixer has begun; each can be spent once, whatever came of the round.

    An envelope opens only in the round of its own token, so tokens are all that must be remembered. A mixer
    that forgot them could be made to mix a batch again without one envelope, which would show that client's
    report. Hence a file belongs to one key, is made together with it, and is never replaced automatically.

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
            stamp = (_pragma(connection, "application_id"), _pragma(connection, "user_version"))
            if stamp[0] != _APPLICATION:
                raise ShuffleError(f"{path} is not the state file of a mixer")
            if stamp[1] != _VERSION:
                raise ShuffleError(
                    f"{path} is a state file of version {stamp[1]}; this is version {_VERSION}"
                )
            if connection.execute("SELECT public_key FROM owner").fetchall() != [(public_key,)]:
                raise ShuffleError(f"the state file {path} belongs to another mixer's key")

    @classmethod
    def create(cls, path: Path | str, *, public_key: bytes) -> SpentTokens:
        """Make the file of a new mixer key, at a path where there is none, readable by its owner alone."""
        if len(public_key) != KEY_BYTES:
            raise ShuffleError(f"a public key has {KEY_BYTES} bytes, got {len(public_key)}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
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
                    timeout=_WAIT_SECONDS,
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


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


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
        self._minimum = checks.whole("minimum", minimum, at_least=2)
        self.spent = SpentTokens(state, public_key=key.public.sealing)

    @property
    def minimum(self) -> int:
        """Fewest reports that are given out, or added up."""
        return self._minimum

    @property
    def public_key(self) -> ServicePublicKey:
        """The key that clients and the server pin."""
        return self._key.public

    def sign(self, statement: Statement) -> bytes:
        """The service's signature of a statement, 64 bytes; who pinned its public key can check it."""
        return statement.signed(self._key.signing)
