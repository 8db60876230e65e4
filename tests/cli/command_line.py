"""The command line in this process, and what it printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from shuffle_plugins import cli


@dataclass
class CommandLine:
    """Called with arguments, it gives the exit status and what went to stdout and to stderr."""

    capsys: pytest.CaptureFixture[str]
    command: tuple[str, ...] = ()

    def __call__(self, *arguments: Any) -> tuple[int, str, str]:
        code = cli.main([*self.command, *map(str, arguments)])
        printed = self.capsys.readouterr()
        return code, printed.out, printed.err

    def json(self, *arguments: Any) -> Any:
        """The answer, of a command that has nothing to complain of."""
        code, out, err = self(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def text(self, *arguments: Any) -> str:
        """What a command prints that has nothing to complain of."""
        code, out, err = self(*arguments)
        assert (code, err) == (0, "")
        return out

    def refused(self, *arguments: Any) -> str:
        """What a command says, in one line, that does nothing."""
        code, out, err = self(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: ")
        return err
