"""The page's server: on 127.0.0.1 alone, for pages that it served itself."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import webbrowser
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shuffle_plugins.cli.page import rendering
from shuffle_plugins.cli.page.rendering import NO_MORE

_LOOPBACK = "127.0.0.1"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def application() -> Starlette:
    """The page as an ASGI application, which answers to local names alone.

    A ``Host`` that is not local is refused, so that a page of another site, whose name its owner has made
    to mean 127.0.0.1, reads nothing. What a browser asks on behalf of another site is refused, too.
    """
    return Starlette(
        routes=[
            Route("/", _page),
            Route("/answer", _answer),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[_LOOPBACK, "localhost"], www_redirect=False),
            Middleware(BaseHTTPMiddleware, dispatch=_guarded),
        ],
        lifespan=_with_workers,
    )


def serve(*, port: int, browser: bool) -> None:
    """Serve the page at a port of 127.0.0.1, 0 for any free one, until Ctrl-C."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_LOOPBACK, port))
        except OSError as error:
            raise OSError(
                f"port {port} of {_LOOPBACK} cannot be used ({error.strerror}): give another one by --port, "
                "or --port 0 for any that is free"
            ) from error
        listening.listen()
        address = f"http://{_LOOPBACK}:{listening.getsockname()[1]}/"
        print(f"The page is at {address} on this machine alone; Ctrl-C ends it.", flush=True)
        if browser:  # in a thread: a browser in the terminal would not return
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        config = uvicorn.Config(
            application(),
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:
            return


async def _guarded(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Refuse what another site asks for, and tell browsers to load nothing from elsewhere."""
    from_elsewhere = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if from_elsewhere and request.url.path != "/":  # following a link to the page is fine
        return PlainTextResponse("only the page itself may ask", status_code=403)
    if len(request.url.query) > 4096:  # a setting has some two hundred characters
        return PlainTextResponse("the query is too long for a setting", status_code=414)
    response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


async def _page(request: Request) -> Response:
    return HTMLResponse(await anyio.to_thread.run_sync(rendering.page, dict(request.query_params)))


async def _answer(request: Request) -> Response:
    lines = request.app.state.workers.lines(dict(request.query_params))
    return StreamingResponse(lines, media_type="application/x-ndjson")


@asynccontextmanager
async def _with_workers(app: Starlette) -> AsyncIterator[None]:
    app.state.workers = Workers()
    warming = asyncio.ensure_future(app.state.workers.warm())
    try:
        yield
    finally:
        warming.cancel()
        app.state.workers.close()


# -- processes that compute answers, so that one that nobody waits for can be ended -------------------------


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

    Most parts of an answer take a tenth of a second, those of some settings minutes: a thread could not be
    stopped. A part that nobody wants any more may take ``grace`` seconds, then its process is ended.
    """

    def __init__(self, *, grace: float = 3.0) -> None:
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
            while (line := await worker.ask(message)) != NO_MORE.encode():
                if not line:
                    self._end(worker)
                    yield rendering.refused_part(
                        "the computation ended by itself, perhaps for lack of memory: try smaller numbers, "
                        "and see what was printed where shuffle-plugins app was started"
                    ).line()
                    return
                yield line.decode()
                message = {}
        finally:
            self._give_back(worker)

    async def warm(self) -> None:
        """Start a process, and have it load what answers need, before somebody asks."""
        async with self._starting:  # a question that comes meanwhile waits for this process
            worker = await self._start()
            await worker.ask({"query": {"population": "100", "cohort": "10", "rounds": "1"}})
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
                if len(self._workers) < 3:  # each takes some 150 MB
                    return await self._start()
                if self._settling:
                    self._end(next(iter(self._settling)))
                else:
                    self._freed.clear()
                    await self._freed.wait()

    async def _start(self) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shuffle_plugins.cli.page.rendering"),
            stdin=PIPE,
            stdout=PIPE,
            limit=1 << 22,
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
