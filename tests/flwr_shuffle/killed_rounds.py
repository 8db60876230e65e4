"""Training that is killed at a point of one's choice: server, clients and service nodes, each with its files.

Run as ``python killed_rounds.py REQUESTS ANSWERS`` with two named pipes. Each line of the first,
``{"folder": …, "kill": [point, "before"], "kind": "mixed"}``, is trained in a fork that is killed by SIGKILL
at that point of its second round, or, with ``"kill": null``, goes on until all rounds are done. In rounds of
kind ``summed``, ``verified`` and ``windowed`` two aggregators add up a sum in place of a mix node's batch,
with range proofs, or in windows. The answer is a line with the fork's exit status, negative for a signal.
This process has trained itself before, so that forks find kernels compiled and losses computed.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import tempfile
import traceback
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    ClientLimits,
    Cyclic,
    FixedSize,
    InProcessGrid,
    MixNodeStage,
    SelfSampling,
    SharedSumStage,
    ShuffleMod,
    ShuffleStrategy,
    SimulatedNodes,
    Waiting,
    register_aggregator,
    register_mix_node,
    service_stages,
)
from flwr_shuffle import client as mod
from flwr_shuffle import service_nodes as nodes
from flwr_shuffle.grids import Series
from flwr_shuffle.inner_strategy import ModelState
from flwr_shuffle.messages import ROLE, SERVICE_KEY, instruction_of

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import BudgetLedger, ClientLedger
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.protocols import VectorSum, WindowedSum
from shuffle_plugins.secure_aggregation import Aggregator, RoundVerifier
from shuffle_plugins.secure_aggregation.aggregator import KeptSums
from shuffle_plugins.shuffler import SpentTokens

DIM = 12
DELTA = 1e-3
ROUNDS = 3
CLIENTS = 4
SPEC = MechanismSpec(name="laplace", local_epsilon=1.0)  # whose losses are quickly computed
SUM = VectorSum.with_noise(dim=DIM, cohort=CLIENTS, noise_multiplier=2.0, overhead=0.3)
WINDOWS = WindowedSum.with_noise(dim=DIM, cohort=2, noise_multiplier=2.0, overhead=0.3, coefficients=(2, 1))
AGGREGATORS = 2


class Training:
    """What clients do, so that it has a name to be killed at."""

    @staticmethod
    def train(message: Message, context: Context) -> Message:
        weight = message.content["arrays"]["weight"].numpy().copy()
        weight[int(context.node_config["partition-id"])] += 1
        records = {
            "arrays": ArrayRecord({"weight": Array(weight)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(records), reply_to=message)


class Point(NamedTuple):
    """A function that every round calls.

    Attributes:
        kinds: first letters of the kinds of rounds that call it: mixed, summed, verified, windowed.
        owner: whose function it is.
        name: its name there.
        before, after: the second round's state in the ledger before and after it runs; empty for none.
    """

    kinds: str
    owner: Any
    name: str
    before: str = "open"
    after: str = "open"


KINDS = {"m": "mixed", "s": "summed", "v": "verified", "w": "windowed"}
POINTS: dict[str, Point] = {
    "the server draws a cohort that samples itself": Point("m", SelfSampling, "draw", "", ""),
    "the ledger begins a round": Point("msw", BudgetLedger, "begin", ""),
    "a client charges its ledger": Point("msvw", ClientLedger, "charge"),
    "a client trains": Point("ms", Training, "train"),
    "a client draws its seeds": Point("sw", mod, "share"),
    "a client makes its proof": Point("v", mod, "share_with_proof"),
    "a client answers": Point("msvw", mod, "reply"),
    "the mixer answers": Point("m", nodes, "_mixed"),
    "the server begins to verify": Point("v", RoundVerifier, "start"),
    "an aggregator checks envelopes": Point("sw", Aggregator, "check"),
    "a service node spends the round": Point("msvw", SpentTokens, "spend"),
    "an aggregator checks proofs": Point("v", Aggregator, "verify"),
    "the server decides on a proof": Point("v", RoundVerifier, "decide"),
    "an aggregator has its verified sum": Point("v", Aggregator, "add_verified"),
    "an aggregator answers": Point("svw", nodes, "_aggregated"),
    "an aggregator looks whether a window is the next": Point("w", KeptSums, "check"),
    "an aggregator keeps a sum": Point("w", KeptSums, "advance"),
    "an aggregator has its share of a window": Point("w", Aggregator, "add_up"),
    "the server puts the total together": Point("sw", service_stages, "reconstruct"),
    "the server solves a window": Point("w", Series, "solve"),
    "the server has the verified total": Point("v", RoundVerifier, "total"),
    "the server opens reports": Point("m", service_stages, "open_reports"),
    "the ledger receives": Point("msvw", BudgetLedger, "receive", "open", "received"),
    "the strategy aggregates": Point("msvw", FedAvg, "aggregate_train", "received", "received"),
    "the checkpoint is written": Point("ms", ModelState, "to_bytes", "received", "received"),
    "the ledger completes the round": Point("msw", BudgetLedger, "complete", "received", "complete"),
}
"""Where processes are killed: at everything that is written, and once between two writes."""


SAMPLINGS = {
    "mixed": SelfSampling(1.0),
    "summed": FixedSize(CLIENTS),
    "verified": FixedSize(CLIENTS),
    "windowed": Cyclic(WINDOWS.cohort),
}


def die() -> None:
    """End as by ``kill -9``: no handler runs, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, when: str) -> None:
    """Once a round is complete, the next call at a point is the last thing this process does."""
    owner, name = POINTS[point].owner, POINTS[point].name
    original, complete = getattr(owner, name), BudgetLedger.complete
    done = False

    @wraps(original)
    def killing(*arguments: Any, **named: Any) -> Any:
        due = done
        if due and when == "before":
            die()
        answer = (completing if original is complete else original)(*arguments, **named)
        if due:
            die()
        return answer

    @wraps(complete)
    def completing(*arguments: Any, **named: Any) -> None:
        nonlocal done
        complete(*arguments, **named)
        done = True

    BudgetLedger.complete = completing  # type: ignore[method-assign]
    setattr(owner, name, staticmethod(killing) if owner is Training else killing)


class Notes:
    """Files to which every fork adds lines; a line is on disk before the process goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, name: str, value: object) -> None:
        with open(self._folder / name, "a") as file:
            file.write(json.dumps(value) + "\n")
            file.flush()
            os.fsync(file.fileno())


class NotingGrid(InProcessGrid):
    """Notes what leaves a client and what leaves the mixer."""

    notes: Notes

    def _answer(self, message: Message) -> Message:
        answer = super()._answer(message)
        if answer.has_error():
            return answer
        if (instruction := instruction_of(message)) is not None:
            self.notes.add("left", [message.metadata.dst_node_id, instruction.token.hex()])
        record = answer.content.config_records.get(SERVICE_KEY, {})
        if "reports" in record or "total" in record:
            self.notes.add("mixed", [message.metadata.dst_node_id, record["token"].hex()])
            asked = json.loads(message.content[SERVICE_KEY].get("terms", "{}")).get("window")
            if asked is not None:
                node, window = message.metadata.dst_node_id, [asked["series"], asked["index"]]
                self.notes.add("opened", [node, *window, os.getpid()])
        return answer


class NotingFedAvg(FedAvg):
    """Notes a round as soon as it is given one: from then on its outcome may be anywhere."""

    notes: Notes

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.notes.add("released", server_round)
        return super().aggregate_train(server_round, replies)


def nodes_of(context: Context, folder: Path, *, kind: str) -> SimulatedNodes:
    """The parties' keys, which the first process makes."""
    services = {"mixers": 1} if kind == "mixed" else {"aggregators": AGGREGATORS}
    return SimulatedNodes(context, folder=folder / "keys", **services)


def train(folder: Path, *, kind: str) -> None:
    shared = kind != "mixed"
    server = nodes_of(Context(1, 0, {}, RecordDict(), {}), folder, kind=kind)
    public = server.aggregator_public_keys if shared else server.mixer_public_keys

    def node_config(context: Context) -> dict[str, Any]:
        own: dict[str, Any] = nodes_of(context, folder, kind=kind).node_config
        if ROLE not in own:
            own["shuffle-ledger-file"] = str(folder / f"client-{own['partition-id']}.db")
        return own

    limits = ClientLimits(
        max_local_epsilon=math.inf if shared else 1.0,
        max_rounds=1000,
        **({"max_epsilon": 1e4, "delta": 1e-3} if shared else {}),
    )
    app = ClientApp(mods=[ShuffleMod(limits=limits, node_config=node_config)])
    register_mix_node(app)
    register_aggregator(app)
    app.train()(lambda message, context: Training.train(message, context))
    notes = Notes(folder)
    grid = NotingGrid(app, num_nodes=CLIENTS + len(public))
    inner = NotingFedAvg(fraction_evaluate=0.0)
    grid.notes = inner.notes = notes
    strategy = ShuffleStrategy(
        inner,
        randomizer=WINDOWS if kind == "windowed" else SUM if shared else SPEC,
        sampling=SAMPLINGS[kind],
        population=CLIENTS,
        shuffler=SharedSumStage(
            aggregator_public_keys=public, waiting=Waiting(discovery_timeout=1.0), verified=kind == "verified"
        )
        if shared
        else MixNodeStage(mixer_public_key=public[0], waiting=Waiting(discovery_timeout=1.0)),
        ledger=folder / "budget.db",
        delta=DELTA,
    )

    def note_spending(server_round: int, arrays: ArrayRecord) -> None:
        del arrays
        spent = [
            strategy.accountant.epsilon(DELTA, adversary=adversary, lower=False).upper
            for adversary in Adversary
        ]
        notes.add("spent", [server_round, *spent])

    strategy.start(
        grid,
        ArrayRecord({"weight": Array(np.zeros(DIM, np.float32))}),
        num_rounds=ROUNDS,
        evaluate_fn=note_spending,
    )


def main() -> None:
    for kind in KINDS.values():
        with tempfile.TemporaryDirectory() as folder:
            train(Path(folder), kind=kind)
    with open(sys.argv[1]) as requests, open(sys.argv[2], "w") as answers:
        for line in requests:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    if request["kill"]:
                        arm(*request["kill"])
                    train(Path(request["folder"]), kind=request["kind"])
                    status = 0
                except BaseException:
                    traceback.print_exc()
                os._exit(status)
            answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
            answers.flush()


if __name__ == "__main__":
    main()
