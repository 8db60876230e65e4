"""A grid in this process that keeps all messages, and the bytes of one."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Message
from flwr_shuffle import InProcessGrid


@contextmanager
def app_modules(folder: Path, package: str) -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    """The modules client_app, server_app and task of an example app, whose folder is no package."""
    sys.path.insert(0, str(folder))
    try:
        client_app, server_app, task = (
            importlib.import_module(f"{package}.{name}") for name in ("client_app", "server_app", "task")
        )
        yield client_app, server_app, task
    finally:
        sys.path.remove(str(folder))


class RecordedGrid(InProcessGrid):
    """Keeps every message of both directions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sent: list[Message] = []
        self.replies: list[Message] = []

    def send_and_receive(self, messages, *, timeout=None):
        asked = list(messages)
        replies = super().send_and_receive(asked, timeout=timeout)
        self.sent += asked
        self.replies += replies
        return replies

    def push_messages(self, messages):
        self.sent += (asked := list(messages))
        return super().push_messages(asked)

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        self.replies += replies
        return replies


def contents(part: Any) -> bytes:
    """All bytes of a message, of its records and of their arrays."""
    return part.deflate() + b"".join(contents(child) for child in (part.children or {}).values())
