"""Processes that compute the page's answers, so that one that nobody waits for can be ended.

Most parts of an answer take a tenth of a second, those of some settings minutes: a thread could not be
stopped. A process reads a line from stdin for each part that is wanted, and writes the part to stdout.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any

from shuffle_plugins.cli.page.rendering import Part, parts, refused_part

_MOST = 3  # processes; each takes some 150 MB
_GRACE = 3.0  # seconds in which a part that is not wanted any more may end, so that its process is kept
_LONGEST_LINE = 1 << 22  # bytes
_NO_MORE = b"null\n"
_EASY = {"population": "100", "cohort": "10", "rounds": "1"}  # takes milliseconds
_ENDED = (
    "the computation ended by itself, perhaps for lack of memory: try smaller numbers, and see what was "
    "printed where shuffle-plugins app was started"
)


class _Worker:
    """A process, and the line that it still owes if somebody gave up waiting for it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.idle = False
        self.owed: asyncio.Future[bytes] | None = None

    async def ask(self, message: Mapping[str, Any]) -> bytes:
        """Send a line, and return the line that answers it; empty if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.owed = asyncio.ensure_future(self.process.stdout.readline())
        found = await asyncio.shield(self.owed)
        self.owed = None
        return found


class Workers:
    """A few processes, started when they are needed and kept for what they have computed.

    Args:
        grace: seconds that a part may still take once nobody wants it, before its process is ended.
    """

    def __init__(self, *, grace: float = _GRACE) -> None:
        self._grace = grace
        self._workers: list[_Worker] = []
        self._settling: dict[_Worker, asyncio.Task[None]] = {}
        self._starting = asyncio.Lock()
        self._freed = asyncio.Event()

    async def lines(self, query: Mapping[str, str]) -> AsyncIterator[str]:
        """The parts of an answer as lines of JSON. Nothing more is computed once this is closed."""
        worker = await self._take()
        message: dict[str, Any] = {"query": dict(query)}
        try:
            while (line := await worker.ask(message)) != _NO_MORE:
                if not line:
                    self._end(worker)
                    yield refused_part(_ENDED).line()
                    return
                yield line.decode()
                message = {}
        finally:
            self._give_back(worker)

    async def warm(self) -> None:
        """Start a process, and have it load what answers need, before somebody asks."""
        async with self._starting:  # a question that comes meanwhile waits for this process
            worker = await self._start()
            await worker.ask({"query": _EASY})
        self._give_back(worker)

    def close(self) -> None:
        """End all processes that compute answers, also those at work."""
        for worker in tuple(self._workers):
            self._end(worker)

    async def _take(self) -> _Worker:
        async with self._starting:
            while True:
                for worker in self._workers:
                    if worker.idle:
                        worker.idle = False
                        return worker
                if len(self._workers) < _MOST:
                    return await self._start()
                if self._settling:
                    self._end(next(iter(self._settling)))
                else:
                    self._freed.clear()
                    await self._freed.wait()

    async def _start(self) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shuffle_plugins.cli.page.workers"),
            stdin=PIPE,
            stdout=PIPE,
            limit=_LONGEST_LINE,
            start_new_session=True,  # Ctrl-C is for the server, which ends its processes
        )
        self._workers.append(_Worker(process))
        return self._workers[-1]

    def _give_back(self, worker: _Worker) -> None:
        """Keep a process for the next answer, or see whether it can be kept."""
        if worker not in self._workers:
            return
        if worker.owed is None:
            worker.idle = True
            self._freed.set()
        else:
            self._settling[worker] = asyncio.ensure_future(self._settle(worker, worker.owed))

    async def _settle(self, worker: _Worker, owed: asyncio.Future[bytes]) -> None:
        try:
            ended = not await asyncio.wait_for(owed, self._grace)
        except TimeoutError:
            ended = True
        self._settling.pop(worker, None)
        if ended:
            self._end(worker)
        else:
            worker.owed, worker.idle = None, True
            self._freed.set()

    def _end(self, worker: _Worker) -> None:
        task = self._settling.pop(worker, None)
        if task is not None:
            task.cancel()
        if worker in self._workers:
            self._workers.remove(worker)
        with suppress(ProcessLookupError):
            worker.process.kill()
        self._freed.set()


def answer_lines() -> None:
    """Answer the lines on stdin until there are no more."""
    found: Iterator[Part] = iter(())
    for line in sys.stdin:
        asked = json.loads(line)
        if "query" in asked:
            found = parts(asked["query"])
        part = next(found, None)
        sys.stdout.write(_NO_MORE.decode() if part is None else part.line())
        sys.stdout.flush()


if __name__ == "__main__":
    answer_lines()
