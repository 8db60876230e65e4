"""SQLite files that are whole after a crash: one writer at a time, on the disk before a commit returns."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

StrPath = str | os.PathLike[str]

VERSION = 1
"""Version of all files. Nothing reads a file of another."""


class Database:
    """One connection to a file, which its owner alone can read; ``create`` makes it if it is not there.

    FileNotFoundError says that the file, or with ``create`` its folder, is missing, and ``ERROR`` that it is
    not of this format, is damaged, or stays locked for half a minute.
    """

    WHAT: ClassVar[str]  # the kind of file, in words
    APPLICATION_ID: ClassVar[int]  # SQLite's mark of the file's owner
    SCHEMA: ClassVar[tuple[str, ...]]  # statements that make an empty file one of this kind
    ERROR: ClassVar[type[ValueError]]

    def __init__(self, path: StrPath, *, create: bool = True) -> None:
        self.path = Path(path).absolute()
        if not (self.path.parent if create else self.path).exists():
            missing = f"folder {self.path.parent}" if create else f"file {self.path}"
            raise FileNotFoundError(f"{self.WHAT}: the {missing} does not exist")
        if create and not self.path.exists():
            with suppress(FileExistsError):  # another process was quicker
                self.make(self.path)
        uri = f"{self.path.as_uri()}?mode=rw"
        with self._explained():
            # One process waits that long for another's transaction, which takes milliseconds.
            self._connection = sqlite3.connect(uri, uri=True, timeout=30.0, isolation_level=None)
        try:
            with self._explained():
                # Rollback journal, not WAL: readers then need no files beside it. EXTRA: a power cut cannot
                # bring a deleted journal back.
                self._connection.execute("PRAGMA synchronous = EXTRA")
                self._connection.execute("PRAGMA foreign_keys = ON")
            self._identify()
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def make(cls, path: StrPath) -> None:
        """Put an empty file of this kind at a path where there is none; FileExistsError if there is one.

        It appears as a whole, so that a file without content is one that has lost it.
        """
        path = Path(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("BEGIN")
                for statement in cls.SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {cls.APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("COMMIT")
            os.link(draft, path)
        except FileExistsError:
            raise
        except (OSError, sqlite3.Error) as error:
            raise cls.ERROR(f"{path} cannot be made: {error}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _identify(self) -> None:
        with self.reading() as connection:
            (mark,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if self.path.stat().st_size == 0:
                raise self.ERROR(
                    f"{self.path} is empty: the {self.WHAT} has lost what it held. Put a copy in its place; "
                    "delete the file only if nothing was recorded in it"
                )
            if mark != self.APPLICATION_ID:
                raise self.ERROR(f"{self.path} is not a {self.WHAT}; give another file")
            elif version != VERSION:
                raise self.ERROR(
                    f"{self.path} is a {self.WHAT} of version {version}; this release reads version "
                    f"{VERSION}. Use the release that wrote it, or another file"
                )

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that excludes other writers from its start, and is all or nothing."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the file."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._connection.execute(begin)
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise self.ERROR(
                f"{self.path} was closed, or is used by a thread that did not open it"
            ) from error
        except sqlite3.Error as error:
            raise self.ERROR(f"{self.path} cannot be used as a {self.WHAT}: {error}") from error

    def close(self) -> None:
        """Close the file; harmless to repeat."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
