"""Flower's SuperLink under many clients: seconds of its processor, its memory and its database, by step.

A real ``flower-superlink`` and a real ServerApp. The clients are threads of this process that speak the Fleet
API as a SuperNode does: register, fetch a message and its objects, push a reply and its objects. Steps take
turns: while one is timed, no other party works. Seconds are those of the SuperLink's processor, so what else
runs on the machine changes them little; seconds of wall time of the ServerApp's calls are given beside them.

Run: python benchmarks/superlink.py [--json FILE] [--nodes N ...]. What FILE holds already is not measured
again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

RESULTS = Path(__file__).parent / "results" / "superlink.json"
REPLY_BYTES = 43_024  # a client's share and envelope at d = 13,706, as in secure_sum.json
MODEL_NUMBERS = 13_706
THREADS = 4
LARGE = (64 << 20, 128 << 20, 256 << 20)
PYPROJECT = """[project]
name = "superlink-load"
version = "0.1.0"
dependencies = ["flwr>=1.41,<2"]
[tool.flwr.app]
publisher = "shuffle-plugins"
fab-include = ["superlink.py"]
[tool.flwr.app.components]
serverapp = "superlink:app"
clientapp = "superlink:client_app"
[tool.flwr.app.config]
folder = ""
nodes = 0
reply-bytes = "[]"
"""

# -- the server app ----------------------------------------------------------------------------------------

app = ServerApp()
client_app = ClientApp()


@app.main()
def serve(grid: Grid, context: Context) -> None:
    """Send every node a model and take the replies, for every size of replies, step by step."""
    folder, nodes = Path(str(context.run_config["folder"])), int(context.run_config["nodes"])
    meeting = Meeting(folder)
    for number, size in enumerate(json.loads(str(context.run_config["reply-bytes"]))):
        ids: list[int] = []
        while len(ids) < nodes:
            ids = list(grid.get_node_ids())
        model = np.random.default_rng(number).random(MODEL_NUMBERS, np.float32)
        content = RecordDict({"arrays": ArrayRecord([model]), "config": ConfigRecord({"reply-bytes": size})})
        sent: list[str] = []
        received: list[Message] = []

        def push(content: RecordDict = content, ids: list[int] = ids, sent: list[str] = sent) -> None:
            sent.extend(grid.push_messages([Message(content, node, "train") for node in ids]))

        def pull(sent: list[str] = sent, received: list[Message] = received) -> None:
            received.extend(grid.pull_messages(sent))

        meeting.tell(f"{number}-push", push)
        meeting.tell(f"{number}-exchange", lambda: None)
        meeting.tell(f"{number}-pull", pull)
        meeting.write(f"{number}-received", {"replies": sum(each.has_content() for each in received)})


@dataclass
class Meeting:
    """Files by which server app and driver agree on whose turn it is."""

    folder: Path

    def write(self, name: str, content: Any) -> None:
        """Leave a message for the other process, whole from the moment it can be seen."""
        (self.folder / "part").write_text(json.dumps(content))
        (self.folder / "part").rename(self.folder / name)

    def tell(self, name: str, action: Callable[[], None]) -> None:
        """As server app: say that a step is next, wait for leave, do it, and say what it took."""
        self.write(f"{name}.ready", {})
        self.read(f"{name}.go")
        start, error = time.perf_counter(), ""
        try:
            action()
        except Exception as failed:
            error = f"{type(failed).__name__}: {failed}"
        seconds = time.perf_counter() - start
        self.write(
            f"{name}.done", {"wall_seconds": seconds, "app_megabytes": peak(os.getpid()), "error": error}
        )

    def read(self, name: str, *, seconds: float = 150) -> dict[str, Any]:
        """Wait for a message."""
        end = time.monotonic() + seconds
        while not (self.folder / name).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{name} not within {seconds:g} s")
            time.sleep(0.02)
        return dict(json.loads((self.folder / name).read_text()))


# -- the driver --------------------------------------------------------------------------------------------


@dataclass
class Fleet:
    """Many nodes that speak the Fleet API through a few connections."""

    address: str
    nodes: list[tuple[int, Any]] = field(default_factory=list)
    _own: threading.local = field(default_factory=threading.local)

    def client(self, keys: Any) -> Any:
        """This thread's connection, in the name of the node with these keys."""
        from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        if not hasattr(self._own, "client"):
            own = self._own

            class Signs:
                def intercept(self, context: Any, call_next: Any) -> Any:
                    return NodeAuthHttpInterceptor(*own.keys).intercept(context, call_next)

            version: Any = RuntimeVersionHttpInterceptor(component_name="SuperNode")
            own.client = FleetHttpClient.from_server_address(self.address, True, None, [version, Signs()])
        self._own.keys = keys
        return self._own.client

    def join(self, _: int) -> None:
        """Register and activate one more node; it sends no heartbeats for half an hour."""
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
        from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

        keys = generate_key_pairs()
        public = public_key_to_bytes(keys[1])
        client = self.client(keys)
        client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
        answer = client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=1800))
        self.nodes.append((answer.node_id, keys))

    def look(self, node: tuple[int, Any]) -> Any:
        """Ask for a message, as every SuperNode does every three seconds."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.node_pb2 import Node

        return self.client(node[1]).PullMessages(PullMessagesRequest(node=Node(node_id=node[0])))

    def beat(self, node: tuple[int, Any]) -> None:
        """Send a heartbeat, as every SuperNode does every half minute."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
        from flwr.proto.node_pb2 import Node

        request = SendNodeHeartbeatRequest(node=Node(node_id=node[0]), heartbeat_interval=1800)
        self.client(node[1]).SendNodeHeartbeat(request)

    def answer(self, node: tuple[int, Any]) -> int:
        """Fetch a node's message with all objects, and reply. Returns how many objects the reply was."""
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_from_proto, message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import (
            ConfirmMessageReceivedRequest,
            PullObjectRequest,
            PushObjectRequest,
        )
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            iterate_object_tree,
        )
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        client, own = self.client(node[1]), Node(node_id=node[0])
        found = self.look(node)
        proto = found.messages_list[0]
        run, identity = proto.metadata.run_id, proto.metadata.message_id
        contents = {}
        for tree in iterate_object_tree(found.message_object_trees[0]):
            request = PullObjectRequest(node=own, run_id=run, object_id=tree.object_id)
            contents[tree.object_id] = client.PullObject(request).object_content
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=own, run_id=run, message_object_id=identity)
        )
        message: Any = inflate_object_from_contents(identity, contents)
        instruction = message_from_proto(proto)
        size = message.content["config"]["reply-bytes"]
        reply = Message(
            RecordDict({"report": ConfigRecord({"bytes": secrets.token_bytes(size)})}), reply_to=instruction
        )
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = get_all_nested_objects(reply)
        pushed = client.PushMessages(
            PushMessagesRequest(
                node=own,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[1.0],
            )
        )
        for name in pushed.objects_to_push:
            answer = client.PushObject(
                PushObjectRequest(
                    node=own,
                    run_id=run,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=pushed.session_id,
                )
            )
            if not answer.stored:
                raise RuntimeError("the SuperLink did not store an object")
        return len(pushed.objects_to_push)


def measured(nodes: int, database: str, sizes: list[int]) -> dict[str, Any]:
    """One SuperLink with so many nodes, and one run with a round for each size of replies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        with superlink(folder, database) as (process, address):
            fleet, found = Fleet(address), dict[str, Any]()
            before = peak(process)

            def step(action: Callable[[], Any]) -> tuple[float, str]:
                start, error = processor_seconds(process), ""
                try:
                    action()
                except Exception as failed:
                    error = f"{type(failed).__name__}: {failed}"[:200]
                return processor_seconds(process) - start, error

            def by_all(act: Callable[[Any], Any], of: Any) -> Callable[[], Any]:
                def acted() -> None:
                    with ThreadPoolExecutor(THREADS) as pool:
                        list(pool.map(act, of))

                return acted

            found["join_seconds_per_node"] = step(by_all(fleet.join, range(nodes)))[0] / nodes
            found["idle_look_seconds"] = step(by_all(fleet.look, fleet.nodes))[0] / nodes
            found["heartbeat_seconds"] = step(by_all(fleet.beat, fleet.nodes))[0] / nodes
            run = start_run(folder, address, nodes=nodes, sizes=sizes)
            meeting, rounds = Meeting(folder), []
            try:
                for number, size in enumerate(sizes):
                    row: dict[str, Any] = {"reply_bytes": size}
                    objects: list[int] = []
                    for phase in ("push", "exchange", "pull"):
                        meeting.read(f"{number}-{phase}.ready")

                        def act(
                            phase: str = phase, number: int = number, objects: list[int] = objects
                        ) -> None:
                            if phase == "exchange":
                                with ThreadPoolExecutor(THREADS) as pool:
                                    objects.extend(pool.map(fleet.answer, fleet.nodes))
                            meeting.write(f"{number}-{phase}.go", {})
                            meeting.read(f"{number}-{phase}.done")

                        seconds, error = step(act)
                        if error:
                            row[f"{phase}_error"] = error
                            break
                        said = meeting.read(f"{number}-{phase}.done")
                        row[f"{phase}_seconds_per_node"] = seconds / nodes
                        if phase != "exchange":
                            row[f"{phase}_wall_seconds"] = round(said["wall_seconds"], 2)
                        row["serverapp_peak_megabytes"] = said["app_megabytes"]
                        if said["error"]:
                            row[f"{phase}_error"] = said["error"][:200]
                    row["superlink_peak_megabytes"] = peak(process)
                    row["database_megabytes"] = disk(folder)
                    row["superlink_errors"] = errors(folder)
                    rounds.append(row)
                    print(json.dumps(row), flush=True)
                    if error:
                        break
                    row["objects_pushed_per_node"] = sum(objects) / nodes
                    row["replies"] = meeting.read(f"{number}-received")["replies"]
            finally:
                run.terminate()
                run.wait()
    return {
        "nodes": nodes,
        "database": database,
        "superlink_megabytes_before": before,
        **found,
        "rounds": rounds,
    }


@contextmanager
def superlink(folder: Path, database: str) -> Iterator[tuple[int, str]]:
    """A SuperLink in a process of its own: (its process id, its address)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["flower-superlink", "--insecure", "--port", address.rpartition(":")[2]]
    if database == "file":
        command += ["--database", str(folder / "superlink.db")]
    with open(folder / "superlink.log", "wb") as log:
        process = subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log)
    try:
        while f"running on http://{address}" not in (folder / "superlink.log").read_text(errors="replace"):
            if process.poll() is not None:
                raise RuntimeError((folder / "superlink.log").read_text())
            time.sleep(0.1)
        yield process.pid, address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_run(folder: Path, address: str, *, nodes: int, sizes: list[int]) -> subprocess.Popen[bytes]:
    """Submit this file as a Flower app."""
    source = folder / "load"
    source.mkdir()
    shutil.copy(__file__, source / "superlink.py")
    (source / "pyproject.toml").write_text(PYPROJECT)
    (folder / "home" / "config.toml").write_text(
        f'[superlink.load]\naddress = "{address}"\ninsecure = true\n'
    )
    command = ["flwr", "run", str(source), "load", "--stream"]
    for key, value in {"folder": str(folder), "nodes": nodes, "reply-bytes": json.dumps(sizes)}.items():
        command += ["--run-config", f"{key}={json.dumps(value)}"]
    with open(folder / "run.log", "wb") as log:
        return subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log)


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOG_LEVEL": "INFO",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


def processor_seconds(process: int) -> float:
    """Seconds that a process has had of a processor, all its threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(process: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


def errors(folder: Path) -> list[str]:
    """What the SuperLink complained of, each kind once, and without the names of sessions and nodes."""
    text = (folder / "superlink.log").read_text(errors="replace")
    found = re.findall(r"Error[:)\]] ?([A-Za-z][^\n]*)", text)
    return sorted({re.sub(r"[0-9a-f-]{16,}|\x1b\S*", "…", text)[:120] for text in found})[:6]


def disk(folder: Path) -> float:
    """Size of the SuperLink's database."""
    return round(sum(each.stat().st_size for each in folder.glob("superlink.db*")) / 2**20, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000, 4_000])
    options = parser.parse_args()
    found = json.loads(options.json.read_text()) if options.json.exists() else {"runs": []}
    found["machine"] = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "flwr": flwr.__version__,
    }
    wanted = [(nodes, database, [REPLY_BYTES]) for database in ("memory", "file") for nodes in options.nodes]
    wanted += [(1, "memory", [size]) for size in LARGE]
    done = {(row["nodes"], row["database"], row["rounds"][0]["reply_bytes"]) for row in found["runs"]}
    for nodes, database, sizes in wanted:
        if (nodes, database, sizes[0]) not in done:
            print(nodes, database, sizes, flush=True)
            found["runs"].append(measured(nodes, database, sizes))
            options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
