"""A file of another kind is refused, and one that is empty has lost what it held: neither is made anew."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import ClassVar

import pytest

from shuffle_plugins.core.database import Database


class Notes(Database):
    WHAT = "notebook"
    APPLICATION_ID = 0x4E4F5445
    ERROR: ClassVar[type[ValueError]] = ValueError
    SCHEMA = ("CREATE TABLE notes (text TEXT NOT NULL)",)


@pytest.mark.parametrize("create", [True, False])
def test_a_file_truncated_to_nothing_is_refused(tmp_path: Path, create: bool) -> None:
    path = tmp_path / "notes.db"
    with Notes(path) as notes, notes.writing() as connection:
        connection.execute("INSERT INTO notes VALUES ('spent')")
    os.truncate(path, 0)
    with pytest.raises(ValueError, match="has lost what it held"):
        Notes(path, create=create)
    assert path.stat().st_size == 0


def test_a_new_file_appears_whole_and_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    Notes.make(path)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.db"]
    assert path.stat().st_mode & 0o777 == 0o600
    with Notes(path) as notes, notes.writing() as connection:
        connection.execute("INSERT INTO notes VALUES ('kept')")
    with pytest.raises(FileExistsError):
        Notes.make(path)
    with Notes(path) as notes, notes.reading() as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("kept",)]
    with pytest.raises(FileNotFoundError):
        Notes(tmp_path / "other.db", create=False)


def test_what_is_no_such_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database, but long enough to be looked at as one " * 20)
    sqlite3.connect(tmp_path / "foreign").executescript("CREATE TABLE notes (text TEXT)")
    Notes.make(tmp_path / "later")
    sqlite3.connect(tmp_path / "later").executescript("PRAGMA user_version = 9")
    for name, said in {
        "text": "used as a notebook",
        "foreign": "not a notebook",
        "later": "version 9",
    }.items():
        content = (tmp_path / name).read_bytes()
        with pytest.raises(ValueError, match=said):
            Notes(tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
    with pytest.raises(ValueError, match="used as a notebook"):
        Notes(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        Notes(tmp_path / "nowhere" / "notes")
