"""The page's server: on 127.0.0.1 alone, for pages that it served itself."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from threading import Thread

import uvicorn
from anyio import BrokenWorkerProcess, CapacityLimiter, to_process, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shuffle_plugins.cli.page import rendering

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
        lifespan=_with_processes,
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
    return HTMLResponse(await to_thread.run_sync(rendering.page, dict(request.query_params)))


async def _answer(request: Request) -> Response:
    lines = answer_lines(dict(request.query_params), processes=request.app.state.processes)
    return StreamingResponse(lines, media_type="application/x-ndjson")


@asynccontextmanager
async def _with_processes(app: Starlette) -> AsyncIterator[None]:
    """A few processes compute answers; what comes at first waits for the one that loads what they need."""
    processes = app.state.processes = CapacityLimiter(1)

    async def load() -> None:
        await anext(answer_lines({"population": "100", "cohort": "10"}, processes=processes))
        processes.total_tokens = 3  # each takes some 150 MB

    loading = asyncio.ensure_future(load())
    yield
    loading.cancel()


async def answer_lines(
    query: dict[str, str], *, processes: CapacityLimiter, grace: float = 3.0
) -> AsyncIterator[str]:
    """The parts of an answer as lines of JSON, from processes that are kept for what they have computed.

    Most parts take a tenth of a second, those of some settings minutes: a thread could not be stopped. Once
    this is closed nothing more is computed: a part that is under way may take ``grace`` seconds, then its
    process is ended.
    """
    for place in count():
        part = asyncio.ensure_future(
            to_process.run_sync(rendering.line, query, place, cancellable=True, limiter=processes)
        )
        try:
            line = await asyncio.shield(part)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(grace, part.cancel)
            raise
        except BrokenWorkerProcess:
            said = "the computation ended by itself, perhaps for lack of memory: try smaller numbers"
            yield rendering.refused_part(said).line()
            return
        if line is None:
            return
        yield line
