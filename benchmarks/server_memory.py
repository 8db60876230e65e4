"""Peak memory of the server of a shared sum, with replies kept in memory, and with shares in a file.

Each round is a process of its own, with real clients' shares and a real aggregator.

Run: python benchmarks/server_memory.py [--dim 200000] [--clients 125 500] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import (
    Anonymous,
    InProcessGrid,
    Replies,
    SharedSumStage,
    ShuffleStage,
    arriving,
    register_aggregator,
)
from flwr_shuffle.messages import Instruction, reply

from shuffle_plugins.mechanisms import SumSpec
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.secure_aggregation import seal_seed, share
from shuffle_plugins.shuffler import SpentTokens, state_beside
from shuffle_plugins.shuffler.keys import ServiceKey, SigningKey, public_key_bytes, write_private_key

RESULTS = Path(__file__).parent / "results" / "server_memory.json"


class KeepingStage(SharedSumStage):
    """Leaves replies as they are until all have come."""

    take = ShuffleStage.take


class Clients(InProcessGrid):
    """Clients whose replies are made as they are asked for; one node, the first, is a real aggregator."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        """Made one by one for clients; for the aggregator as by any grid in this process."""
        asked = list(messages)
        return self._replies(asked) if asked[0].metadata.message_type == "train" else self._answers(asked)

    def _replies(self, messages: list[Message]) -> Iterator[Message]:
        layout = self.terms.layout
        counts = np.random.default_rng(1).integers(0, 2, layout.size)
        for message in messages:
            split = share(counts, layout=layout, aggregators=1, check_seed=self.check_seed)
            data = split.share.to_bytes()
            client = message.metadata.dst_node_id - self.get_node_ids()[1]
            envelope = seal_seed(
                split.seeds[0],
                terms=self.terms,
                share=data,
                aggregator_key=self.terms.aggregators[0],
                signing_key=self.signing_keys[client],
            )
            answer = reply(data + envelope, to=message)
            answer.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            yield answer


def memory(line: str) -> int:
    """A line of this process's status in bytes: VmRSS, what it has now, or VmHWM, the most so far."""
    found = re.search(rf"^{line}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def one_round(clients: int, dim: int, stage_class: type[SharedSumStage], folder: Path) -> dict[str, Any]:
    """Peak memory of one round beyond what the process has before."""
    key, signing_keys = ServiceKey.generate(), [SigningKey.generate() for _ in range(clients)]
    write_private_key(folder / "key", key)
    SpentTokens.create(state_beside(folder / "key"), public_key=key.public.sealing)
    (folder / "enrolled").write_text("".join(f"{public_key_bytes(one).hex()}\n" for one in signing_keys))
    config = {
        "shuffle-role": "aggregator",
        "shuffle-aggregator-key-file": str(folder / "key"),
        "shuffle-enrolled-file": str(folder / "enrolled"),
        "shuffle-min-batch": 2,
    }
    app = ClientApp()
    register_aggregator(app)
    grid = Clients(app, num_nodes=1 + clients, node_config=lambda place: config if place == 0 else {})
    stage = stage_class(aggregator_public_keys=[key.public.hex()], share_folder=folder)
    protocol = VectorSum.with_noise(dim=dim, cohort=clients, noise_multiplier=4.0, overhead=0.5)
    shared = stage.shared(protocol, clients=clients)
    instruction = Instruction(
        token=secrets.token_bytes(16),
        run="1",
        server_round=1,
        mechanism=SumSpec(protocol=protocol),
        shared=shared,
    )
    grid.signing_keys, grid.check_seed = signing_keys, shared.check_seed
    grid.terms = shared.of_round(instruction, protocol, dim=dim, aggregators=[key.public.sealing])
    nodes = grid.get_node_ids()[1:]
    stage._nodes._asked = dict.fromkeys(nodes)  # clients here answer no question about roles
    stage.open(grid)
    Path("/proc/self/clear_refs").write_text("5")  # the most from here on
    before, start = memory("VmRSS"), time.process_time()
    sent = [Message(RecordDict(), node, "train") for node in nodes]
    replies = [
        stage.take(one, instruction=instruction, dim=dim) for one in arriving(grid, sent, timeout=None)
    ]
    found: Anonymous = stage.collect(
        Replies(messages=replies, instruction=instruction, dim=dim, grid=grid, timeout=None)
    )
    assert found.total is not None, found.refusal
    assert found.total.reports == clients
    return {
        "clients": clients,
        "dim": dim,
        "share_bytes": grid.terms.share_bytes,
        "shares_in": "memory" if stage_class is KeepingStage else "a file",
        "peak_bytes": memory("VmHWM") - before,
        "seconds": time.process_time() - start,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[125, 500])
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind = KeepingStage if options.one[1] == "memory" else SharedSumStage
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(one_round(int(options.one[0]), options.dim, kind, Path(folder))))
        return
    rounds = []
    for clients in options.clients:
        for where in ("memory", "file"):
            command = [sys.executable, __file__, "--dim", str(options.dim), "--one", str(clients), where]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
            print(rounds[-1], flush=True)
    options.json.write_text(json.dumps({"machine": platform.machine(), "rounds": rounds}, indent=2) + "\n")


if __name__ == "__main__":
    main()
