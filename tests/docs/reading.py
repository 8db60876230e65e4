"""Those who read the pages: how they run the code, and which reader is told what."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from code_blocks import Block, check_printed, commands, run_python, said_to_print

from shuffle_plugins import cli

Names = dict[str, Any]
Told = Generator[Names, str, None]
"""Yields the names that a reader has before the first block, and is sent what all blocks have printed."""


@dataclass(frozen=True)
class Reader:
    """Somebody who runs blocks of a page, one after another, in one session and in one empty folder.

    Attributes:
        told: what the reader has, and what it expects. Names of its own are ``rest_of_call`` and
            ``rest_of_code``, functions for what the page leaves out, and ``abbreviated``, the full texts of
            what it writes as ``90c3…``.
        slow: whether this takes more than two seconds of processor time.
        instead: text of the blocks, and what is run in its place, mostly to save time.
        by_chance: words of lines that a page shows and that differ from run to run.
        programs: what stands for a program in a shell, if it is not ours: a function of its arguments.
    """

    told: Callable[[], Told]
    slow: bool = False
    instead: Mapping[str, str] = field(default_factory=dict)
    by_chance: tuple[str, ...] = ()
    programs: Mapping[str, Callable[[list[str]], None]] = field(default_factory=dict)

    def read(self, blocks: list[Block]) -> None:
        """Run the blocks in the current folder."""
        code = {block: block.code for block in blocks}
        for old, new in self.instead.items():
            assert any(old in text for text in code.values()), f"{old!r} is not on {blocks[0].page}"
            code = {block: text.replace(old, new) for block, text in code.items()}
        told = self.told()
        names = next(told)
        everything = ""
        for block in blocks:
            with redirect_stdout(StringIO()) as printed:
                if block.language == "python":
                    text = code[block]
                    for short, full in names.get("abbreviated", {}).items():
                        text = text.replace(short, full)
                    run_python(block, text, names)
                else:
                    self._type(block, code[block], names)
            check_printed(said_to_print(block), printed.getvalue(), by_chance=self.by_chance)
            everything += printed.getvalue()
        with suppress(StopIteration):
            told.send(everything)
            raise AssertionError("a reader is told once what was printed")

    def _type(self, block: Block, code: str, names: Names) -> None:
        """Type the commands of a block, in one process."""
        abbreviated = names.get("abbreviated", {})
        printed_by: dict[str, str] = {}
        for words in commands(block, code):
            for short, full in abbreviated.items():
                # "$ COMMAND" stands for what this command has printed
                text = printed_by[full[2:]] if full.startswith("$ ") and full[2:] in printed_by else full
                words = [word.replace(short, text) for word in words]
            into = Path(words[words.index(">") + 1]) if ">" in words else None
            program, *arguments = words[: words.index(">")] if into else words
            with redirect_stdout(StringIO()) as printed:
                if program == "shuffle-plugins":
                    assert cli.main(arguments) == 0, " ".join(words)
                else:
                    assert program in self.programs, f"nobody has said how to run {program}"
                    self.programs[program](arguments)
            printed_by[" ".join(words)] = printed.getvalue().strip()
            if into:
                into.write_text(printed.getvalue())
            else:
                print(printed.getvalue(), end="")


READERS: dict[tuple[str, str, bool], Reader] = {}
"""By page, section ("" for the whole page) and whether a shell is meant."""


def reads(page: str, section: str = "", *, shell: bool = False, **how: Any) -> Callable[..., Any]:
    """Mark what the reader of a page, or of a section, is told."""

    def register(told: Callable[[], Told]) -> Callable[[], Told]:
        assert (page, section, shell) not in READERS
        READERS[page, section, shell] = Reader(told=told, **how)
        return told

    return register


def has(page: str, section: str = "", names: Callable[[], Names] = dict, **how: Any) -> None:
    """A reader who has these names, or files that they are made with, and expects no more than is shown."""

    def told() -> Told:
        yield names()

    reads(page, section, **how)(told)


def types(page: str, section: str, **how: Any) -> Callable[..., Any]:
    """Mark what somebody is told who types the commands of a section into a shell."""
    return reads(page, section, shell=True, **how)
