from __future__ import annotations

import pytest
from command_line import CommandLine


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.delenv("COLUMNS", raising=False)
    return CommandLine(capsys)
