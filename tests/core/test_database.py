"""A file that is there and empty has lost what it held: it is never taken for a new one."""

from __future__ import annotations

import os
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
