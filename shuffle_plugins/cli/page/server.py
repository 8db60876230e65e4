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


class Workers:
    """A few processes, started when they are needed and kept for what they have computed.

    Most parts of an answer take a tenth of a second, those of some settings minutes: a thread could not be
    stopped. A part that nobody wants any more may take ``grace`` seconds, then its process is ended.
    """

    def __init__(self, *, grace: float = 3.0) -> None:
        self._grace = grace
        self._processes: set[Process] = set()
        self._idle: list[Process] = []
        self._room = asyncio.Semaphore(3)  # each process takes some 150 MB
        self._starting = asyncio.Lock()
        self._given_back: set[asyncio.Task[None]] = set()

    async def lines(self, query: Mapping[str, str]) -> AsyncIterator[str]:
        """The parts of an answer as lines of JSON. Nothing more is computed once this is closed."""
        async with self._starting:
            process = await self._take()
        line = asyncio.ensure_future(_answer_of(process, {"query": dict(query)}))
        try:
            while (found := await asyncio.shield(line)) != NO_MORE.encode():
                if not found:
                    yield rendering.refused_part(
                        "the computation ended by itself, perhaps for lack of memory: try smaller numbers, "
                        "and see what was printed where shuffle-plugins app was started"
                    ).line()
                    return
                yield found.decode()
                line = asyncio.ensure_future(_answer_of(process, {}))
        finally:
            given_back = asyncio.ensure_future(self._give_back(process, line))
            self._given_back.add(given_back)
            given_back.add_done_callback(self._given_back.discard)

    async def warm(self) -> None:
        """Start a process, and have it load what answers need, before somebody asks."""
        async with self._starting:  # a question that comes meanwhile waits for this process
            process = await self._take()
            asked = {"query": {"population": "100", "cohort": "10", "rounds": "1"}}
            found = asyncio.ensure_future(_answer_of(process, asked))
            await asyncio.wait([found])
            await self._give_back(process, found)

    def close(self) -> None:
        """End all processes that compute answers, also those at work."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()

    async def _take(self) -> Process:
        await self._room.acquire()
        if self._idle:
            return self._idle.pop()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "shuffle_plugins.cli.page.rendering"),
                stdin=PIPE,
                stdout=PIPE,
                limit=1 << 22,
                start_new_session=True,  # Ctrl-C is for the server, which ends its processes
            )
        except BaseException:  # who asked may be gone already
            self._room.release()
            raise
        self._processes.add(process)
        return process

    async def _give_back(self, process: Process, owed: asyncio.Future[bytes]) -> None:
        """Keep a process for the next answer if it gives the line that it still owes in time."""
        if not owed.done():
            await asyncio.wait([owed], timeout=self._grace)
        if owed.done() and owed.result():
            self._idle.append(process)
        else:
            self._processes.discard(process)
            with suppress(ProcessLookupError):
                process.kill()
        self._room.release()


async def _answer_of(process: Process, message: Mapping[str, Any]) -> bytes:
    """Send a line to a process, and return the line that answers it; empty if the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    return await process.stdout.readline()
