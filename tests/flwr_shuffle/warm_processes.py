"""Starts Flower's programs as forks of a process that has already imported them.

A program of Flower takes three seconds to start where torch is imported, and a deployment starts one per
message. Every fork is a process of its own: it has its own session, environment, FLWR_HOME and log, and can
be killed alone. All of them die with their parent, and this one dies with the process that started it.

Run as ``python warm_processes.py FOLDER``, with the names of programs if others are not needed. A request is
one line of JSON on FOLDER/socket:

- ``{"deploy": folder, "name": …}`` starts a process that answers the same requests in that folder, and bears
  this name as do its forks; the answer is ``{"pid": …}``;
- ``{"start": [program, arguments…], "env": {…}, "cwd": folder}`` starts a program, likewise, or a Python
  script that ends in ``.py``. The environment must have FLOWER_TEST_LOG, the file that takes its output;
- ``{"status": pid}`` answers ``{"code": exit status, negative for a signal, or null while it runs}``.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_POLL = 0.3  # seconds between looks at what costs something
_LOOK = 0.05  # and at what does not

PROGRAMS = (
    "flower-superexec",
    "flower-superlink",
    "flower-supernode",
    "flwr",
    "flwr-clientapp",
    "flwr-serverapp",
)


def die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def imported_programs(names: Sequence[str]) -> dict[str, Callable[[], object]]:
    installed = {entry.name: entry for entry in entry_points(group="console_scripts")}
    programs = {name: installed[name].load() for name in names}
    if set(names) <= {"flower-superexec", "flower-superlink"}:
        return programs
    flwr_shuffle = importlib.import_module("flwr_shuffle")
    for name in (
        "cryptography.hazmat.primitives.hpke",
        "flwr.clientapp",
        "flwr.serverapp.strategy",
        "flwr.superlink.main",
        "flwr.supernode.main",
        "httpcore",
        "sklearn.datasets",
        "torch",
        "torch._dynamo",  # which every optimiser imports, for two seconds
        "torch.nn",
    ):
        importlib.import_module(name)
    # The package's own face imports a module when it is asked for, so that each has to be named.
    for module in pkgutil.walk_packages(flwr_shuffle.__path__, "flwr_shuffle."):
        importlib.import_module(module.name)
    # The first compiled kernel loads half a second's worth of numba.
    protocols = importlib.import_module("shuffle_plugins.protocols")
    total = protocols.VectorSum.with_noise(dim=2, cohort=2, noise_multiplier=1.0)
    total.randomize(sys.modules["torch"].zeros(1, 2), clip=True)
    return programs


def news(name: str, *, of: str) -> Path:
    return Path(os.environ[of], f"news-of-{name}")


def waiting(name: str, *, of: str) -> Callable[[float], None]:
    """In place of ``time.sleep``: waits at most as long, and less if something has come since."""
    seen = 0

    def wait(seconds: float) -> None:
        nonlocal seen
        file, end = news(name, of=of), time.monotonic() + seconds
        while (now := file.stat().st_mtime_ns if file.exists() else 0) == seen and time.monotonic() < end:
            time.sleep(_LOOK)
        if now != seen:
            time.sleep(_LOOK)  # what belongs to it comes at once
        seen = now

    return wait


def telling(function: Callable[..., Any], name: str, *, of: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def told(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        news(name, of=of).touch()
        return answer

    return told


def shorten_waits() -> None:
    """Wait no longer than until something has come, and miss a silent process after ten seconds.

    To be called before Flower's other modules are imported, which take these constants as defaults.
    """
    from flwr.common import constant as common
    from flwr.supercore import constant as core

    common.HEARTBEAT_CALL_TIMEOUT = 3
    common.HEARTBEAT_DEFAULT_INTERVAL = 5
    common.HEARTBEAT_MIN_INTERVAL = 1
    core.PULL_INITIAL_BACKOFF = 0.1  # type: ignore[assignment]

    def patch(module: str, sleep: Callable[[float], None]) -> None:
        quick = {name: getattr(time, name) for name in dir(time) if not name.startswith("__")}
        importlib.import_module(module).time = SimpleNamespace(**quick | {"sleep": sleep})  # type: ignore[attr-defined]

    message, task = (waiting("messages", of="FLOWER_TEST_FOLDER"), waiting("tasks", of="FLWR_HOME"))
    # A SuperNode without a message waits for three seconds, one whose app is at work for less.
    patch(
        "flwr.supernode.start_client_internal",
        lambda seconds: message(seconds) if seconds > 1 else time.sleep(_POLL),
    )
    patch("flwr.superlink.grid.http_grid", lambda seconds: time.sleep(min(seconds, _POLL)))
    patch("flwr.supercore.superexec.run_superexec", task)
    for module, owner, function, name, of in (
        (
            "server.superlink.linkstate.sql_linkstate",
            "SqlLinkState",
            "store_message_ins",
            "messages",
            "FLOWER_TEST_FOLDER",
        ),
        ("supercore.corestate.sql_corestate", "SqlCoreState", "create_task", "tasks", "FLWR_HOME"),
        ("supercore.corestate.in_memory_corestate", "InMemoryCoreState", "create_task", "tasks", "FLWR_HOME"),
    ):
        state = getattr(importlib.import_module(f"flwr.{module}"), owner)
        setattr(state, function, telling(getattr(state, function), name, of=of))


def prepare(request: dict) -> None:
    """Make this process that of a request: its session, folder, environment, arguments and log."""
    os.setsid()
    die_with_parent()
    if "deploy" in request:
        Path("/proc/self/comm").write_text(request["name"])
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    log = os.open(request["env"]["FLOWER_TEST_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    sys.argv = list(request["start"])
    folders = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder for folder in folders if folder and folder not in sys.path]
    random.seed()


def listening(folder: str) -> socket.socket:
    os.chdir(folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("draft")
    os.chmod("draft", 0o600)
    listener.listen(64)
    os.rename("draft", "socket")
    listener.settimeout(0.05)
    return listener


def serve(listener: socket.socket) -> dict:
    """Answer requests. Returns, in a process that was started for one, that request."""
    codes: dict[int, int | None] = {}
    while True:
        while codes:  # nobody must take a dead parent for a living one: Flower looks for its PID
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            codes[pid] = os.waitstatus_to_exitcode(status)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        with connection, connection.makefile("rw") as stream:
            request = json.loads(stream.readline())
            if "status" in request:
                answer: dict = {"code": codes.get(request["status"])}
            else:
                pid = os.fork()
                if pid == 0:
                    prepare(request)
                    return request
                codes[pid] = None
                answer = {"pid": pid}
            stream.write(json.dumps(answer) + "\n")
            stream.flush()


def end(program: Callable[[], object]) -> NoReturn:
    """Run a program and end as the interpreter would, but for taking torch apart, which lasts seconds."""
    code: object = 1
    try:
        code = program()
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main() -> None:
    die_with_parent()
    shorten_waits()
    programs = imported_programs(sys.argv[2:] or PROGRAMS)
    sys.path.pop(0)  # the tests' own folder is no part of any program
    gc.freeze()
    request = {"deploy": sys.argv[1]}
    while "deploy" in request:
        with listening(request["deploy"]) as listener:
            request = serve(listener)
    program = request["start"][0]
    if program.endswith(".py"):
        end(lambda: runpy.run_path(program, run_name="__main__"))
    end(programs[Path(program).name])


if __name__ == "__main__":
    main()
