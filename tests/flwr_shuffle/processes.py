"""A Flower deployment of real processes on loopback, for tests: SuperLink, SuperNodes, what they start.

Every process carries a mark, in its environment or as its name. The end of the ``with`` block kills, by PID,
whatever bears it; the kernel kills them all if the test process itself is killed.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from warm_processes import PROGRAMS

_MARK = "FLOWER_TEST_MARK"
_HERE = Path(__file__).parent
_REPOSITORY = _HERE.parent.parent
_SHIM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    request = {{"start": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}}
    os.chdir(os.environ["FLOWER_TEST_FOLDER"])  # a socket's whole path can be too long
    link.connect("socket")
    link.sendall((json.dumps(request) + "\\n").encode())
    link.recv(1)
"""


def free_port() -> int:
    """A port of loopback that nobody listens on now, and that the kernel gives to no outgoing connection."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def marked_pids(mark: str) -> list[int]:
    """Living processes with a mark in the environment that they were started with, or as their name."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            name = (folder / "comm").read_text().strip()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if (wanted in environment or name == mark) and state != "Z":
            found.append(int(folder.name))
    return sorted(found)


def wait_for(condition: Callable[[], object], *, seconds: float, what: str) -> object:
    """Poll until the condition is true and return its value; TimeoutError names what was waited for."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
    return value


def _environment(home: Path) -> dict[str, str]:
    """What Flower's programs, and the process that imports them, have in their environment."""
    inherited = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
    return {
        **inherited,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "3",
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, (_REPOSITORY, _REPOSITORY / "integrations"))),
    }


@functools.cache
def _warm_processes(*programs: str) -> Path:
    """Where to ask the process that has imported Flower's programs, or those named, for all deployments."""
    folder = tempfile.TemporaryDirectory(prefix="flwr-warm-")
    with open(Path(folder.name) / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(_HERE / "warm_processes.py"), folder.name, *programs],
            env=_environment(Path(folder.name)),
            stdout=log,
            stderr=log,
        )

    def end() -> None:
        process.kill()
        process.wait()
        folder.cleanup()

    atexit.register(end)

    def listens() -> bool:
        assert process.poll() is None, (Path(folder.name) / "log").read_text()
        return (Path(folder.name) / "socket").exists()

    wait_for(listens, seconds=600, what="import of Flower's programs")
    return Path(folder.name)


def _ask(where: Path, request: dict) -> dict:
    folder = os.open(where, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(30)
        try:
            link.connect(f"/proc/self/fd/{folder}/socket")  # its whole path can be too long
        finally:
            os.close(folder)
        with link.makefile("rw") as stream:
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            return dict(json.loads(stream.readline()))


def start_script(script: Path, *arguments: str, folder: Path) -> int:
    """Run a Python script in a fork of that process. Returns its PID.

    Its standard output and errors go to a file ``log`` in the folder, which it works in.
    """
    environment = {**_environment(folder), "FLOWER_TEST_LOG": str(folder / "log")}
    request = {"start": [str(script), *arguments], "env": environment, "cwd": str(folder)}
    return int(_ask(_warm_processes(), request)["pid"])


@dataclass
class Program:
    """A process of the deployment."""

    name: str
    pid: int
    log: Path
    folder: Path
    deployment: Deployment = field(repr=False)

    @property
    def exit_code(self) -> int | None:
        return self.deployment.ask({"status": self.pid})["code"]

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait(self, *, seconds: float) -> int:
        try:
            wait_for(lambda: self.exit_code is not None, seconds=seconds, what=f"end of {self.name}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.text()[-6000:]}") from None
        code = self.exit_code
        assert code is not None
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait_for(lambda: self.exit_code is not None, seconds=300, what=f"death of {self.name}")


class Deployment:
    """SuperLink and SuperNodes in a folder of their own, as a context manager; ``variables`` are added to all
    environments, ``programs`` are those of Flower's that will be started, by default any.
    """

    def __init__(
        self, folder: Path, *, variables: Mapping[str, str] | None = None, programs: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self.mark = secrets.token_hex(7)  # a process's name has at most 15 characters
        self.port = free_port()
        self.database = folder / "superlink.db"
        self._variables = dict(variables or {})
        self._programs = programs
        self._starting: int | None = None

    def __enter__(self) -> Self:
        programs = self.folder / "bin"
        programs.mkdir(parents=True)
        for name in {*PROGRAMS, *self._programs}:
            shim = programs / name
            shim.write_text(_SHIM.format(python=sys.executable))
            shim.chmod(0o755)
        answer = _ask(_warm_processes(*self._programs), {"deploy": str(self.folder), "name": self.mark})
        self._starting = answer["pid"]
        try:
            wait_for((self.folder / "socket").exists, seconds=600, what="the deployment's socket")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._starting = None  # is killed as well, and takes its children along
        wait_for(self._all_killed, seconds=300, what="end of the deployment's processes")

    def stop(self) -> None:
        wait_for(self._all_killed, seconds=300, what="end of the deployment's programs")

    def _all_killed(self) -> bool:
        pids = [pid for pid in marked_pids(self.mark) if pid != self._starting]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return not pids

    def environment(self, name: str) -> dict[str, str]:
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        path = [str(self.folder / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return {
            **_environment(home),
            _MARK: self.mark,
            "FLOWER_TEST_LOG": str(home / "log"),
            "FLOWER_TEST_FOLDER": str(self.folder),
            "PATH": os.pathsep.join(path),
            **self._variables,
        }

    def ask(self, request: dict) -> dict:
        return _ask(self.folder, request)

    def start(self, name: str, command: list[str], *, cwd: Path | None = None) -> Program:
        environment = self.environment(name)
        home = self.folder / name
        answer = self.ask({"start": command, "env": environment, "cwd": str(cwd or home)})
        return Program(name, answer["pid"], home / "log", home, self)

    def _started(self, name: str, command: list[str], *, says: str) -> Program:
        """Start a program, and wait until it says once more what it says when it is up."""
        log = self.folder / name / "log"
        before = log.read_text().count(says) if log.exists() else 0
        program = self.start(name, command)
        wait_for(lambda: program.text().count(says) > before, seconds=600, what=name)
        return program

    def start_superlink(self) -> Program:
        command = ["flower-superlink", "--insecure", "--port", str(self.port)]
        command += ["--database", str(self.database)]
        return self._started("superlink", command, says=f"running on http://127.0.0.1:{self.port}")

    def start_supernode(self, name: str, *, node_config: Mapping[str, str | int | float | bool]) -> Program:
        """Start a SuperNode with a configuration of its own, and wait until it is connected."""
        pairs = [
            f"{key}={value!r}" if isinstance(value, float) else f"{key}={json.dumps(value)}"
            for key, value in node_config.items()  # TOML, which writes an infinite number as Python does
        ]
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--port", str(free_port())]
        if pairs:
            command += ["--node-config", " ".join(pairs)]
        return self._started(name, command, says="SuperNode ID:")

    def start_run(
        self, app: Path, *, name: str, run_config: Mapping[str, str | int | float | bool]
    ) -> Program:
        """Submit an app with ``flwr run --stream``; the program ends with the run."""
        home = self.folder / name
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink.test]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        command = ["flwr", "run", str(app), "test", "--stream"]
        for key, value in run_config.items():
            command += ["--run-config", f"{key}={json.dumps(value)}"]
        return self.start(name, command, cwd=app)

    def processes(self) -> list[int]:
        return marked_pids(self.mark)
