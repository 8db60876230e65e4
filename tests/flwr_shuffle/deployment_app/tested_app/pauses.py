"""Places where a process waits to be killed, if a test has asked for it.

A test makes a file ``stop-NAME`` in the folder TESTED_APP_FOLDER. Who comes by leaves its PID in ``at-NAME``
and waits until the file is gone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def folder() -> Path:
    return Path(os.environ["TESTED_APP_FOLDER"])


def pause(name: str) -> None:
    stop = folder() / f"stop-{name}"
    if stop.exists():
        note(f"at-{name}", str(os.getpid()))
        while stop.exists():
            time.sleep(0.02)


def note(name: str, text: str) -> None:
    """Leave a file that is whole as soon as it is there."""
    draft = folder() / f".{name}-{os.getpid()}"
    draft.write_text(text)
    draft.rename(folder() / name)


def add_line(name: str, line: str) -> None:
    """Add a line to a file that several processes write to."""
    with open(folder() / name, "a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())
