"""Training that is killed at a point of one's choice: server, clients and service nodes, each with its files.

Run as ``python killed_rounds.py``. Each line of standard input, ``{"folder": …, "kill": [point, "before"],
"shared": false}``, is trained in a fork that is killed by SIGKILL at that point of its second round, or, with
``"kill": null``, goes on until all rounds are done; if ``shared``, two aggregators add up a sum in place of a
mix node's batch. The answer is a line with the fork's exit status, negative for a signal.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import flwr_shuffle.client.mod
import flwr_shuffle.client.packing
import flwr_shuffle.server.rounds
import flwr_shuffle.stages.aggregator_node
import flwr_shuffle.stages.mix_node
import flwr_shuffle.stages.mix_stage
import flwr_shuffle.stages.shared_stage
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    FixedSize,
    InProcessGrid,
    MixNodeStage,
    SelfSampling,
    SharedSumStage,
    ShuffleMod,
    ShuffleStrategy,
    register_aggregator,
    register_mix_node,
)
from flwr_shuffle.client.limits import NodeKey
from flwr_shuffle.messages import instruction_of
from flwr_shuffle.server.checkpoints import ModelState
from flwr_shuffle.service_messages import ROLE, SERVICE_KEY, Role
from flwr_shuffle.stages import serving

from shuffle_plugins.accounting import Adversary, FederatedAccountant
from shuffle_plugins.ledger import BudgetLedger, ClientLedger
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.secure_aggregation import Aggregator, Expansion, SeedOpener
from shuffle_plugins.shuffler import EnvelopeOpener, ExternalPermutation, SpentTokens

DIM = 12
DELTA = 1e-3
ROUNDS = 3
CLIENTS = 4
SPEC = MechanismSpec(name="linf-block", local_epsilon=1.0)
SUM = VectorSum.with_noise(dim=DIM, cohort=CLIENTS, noise_multiplier=2.0, overhead=0.3)
AGGREGATORS = 2


class Training:
    """What clients do, so that it has a name to be killed at."""

    @staticmethod
    def train(message: Message, context: Context) -> Message:
        """One client's training."""
        weight = message.content["arrays"]["weight"].numpy().copy()
        weight[int(context.node_config["partition-id"])] += 1
        records = {
            "arrays": ArrayRecord({"weight": Array(weight)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(records), reply_to=message)


POINTS: dict[str, tuple[Any, str, str, str]] = {
    "the server draws": (SelfSampling, "draw", "", ""),
    "the ledger begins a round": (BudgetLedger, "begin", "", "open"),
    "the server is to send": (ShuffleStrategy, "configure_train", "", "open"),
    "a client charges its ledger": (ClientLedger, "charge", "open", "open"),
    "a client trains": (Training, "train", "open", "open"),
    "a client tosses its coin": (flwr_shuffle.client.mod, "_coin", "open", "open"),
    "a client seals": (flwr_shuffle.client.packing, "seal", "open", "open"),
    "a client answers": (flwr_shuffle.client.mod, "reply", "open", "open"),
    "the server has the envelopes": (MixNodeStage, "collect", "open", "open"),
    "the mixer spends the round": (SpentTokens, "spend", "open", "open"),
    "the mixer opens an envelope": (EnvelopeOpener, "open", "open", "open"),
    "the mixer permutes": (ExternalPermutation, "drain", "open", "open"),
    "the mixer answers": (flwr_shuffle.stages.mix_node, "batch_content", "open", "open"),
    "the server opens reports": (flwr_shuffle.stages.mix_stage, "open_reports", "open", "open"),
    "the server adds reports": (flwr_shuffle.server.rounds, "valid_sum", "open", "open"),
    "the ledger receives": (BudgetLedger, "receive", "open", "received"),
    "the accountant adds the round": (FederatedAccountant, "step", "received", "received"),
    "the strategy aggregates": (FedAvg, "aggregate_train", "received", "received"),
    "the checkpoint is written": (ModelState, "to_bytes", "received", "received"),
    "the ledger completes the round": (BudgetLedger, "complete", "received", "complete"),
}
"""By name: whose function it is, and the second round's state in the ledger before and after it runs."""

SHARED_POINTS: dict[str, tuple[Any, str, str, str]] = {
    "the server draws": (FixedSize, "draw", "", ""),
    "the server makes the check's seed": (SharedSumStage, "shared", "", ""),
    "the ledger begins a round": (BudgetLedger, "begin", "", "open"),
    "the server is to send": (ShuffleStrategy, "configure_train", "", "open"),
    "a client charges its ledger": (ClientLedger, "charge", "open", "open"),
    "a client trains": (Training, "train", "open", "open"),
    "a client tosses its coins": (VectorSum, "randomize", "open", "open"),
    "a client draws its seeds": (flwr_shuffle.client.packing, "share", "open", "open"),
    "a client seals a seed": (flwr_shuffle.client.packing, "seal_seed", "open", "open"),
    "a client answers": (flwr_shuffle.client.mod, "reply", "open", "open"),
    "the server has the shares": (SharedSumStage, "collect", "open", "open"),
    "an aggregator checks envelopes": (Aggregator, "check", "open", "open"),
    "an aggregator opens an envelope": (SeedOpener, "open", "open", "open"),
    "the server reads who is good": (flwr_shuffle.stages.shared_stage, "read_checked", "open", "open"),
    "an aggregator spends the round": (SpentTokens, "spend", "open", "open"),
    "an aggregator expands a seed": (Expansion, "add", "open", "open"),
    "an aggregator has its sum": (Aggregator, "add_up", "open", "open"),
    "an aggregator answers": (
        flwr_shuffle.stages.aggregator_node,
        "answered_content",
        "open",
        "open",
    ),
    "the server reads a sum": (flwr_shuffle.stages.shared_stage, "read_sum", "open", "open"),
    "the server puts the total together": (
        flwr_shuffle.stages.shared_stage,
        "reconstruct",
        "open",
        "open",
    ),
    "the server estimates": (VectorSum, "estimate", "open", "open"),
    "the ledger receives": (BudgetLedger, "receive", "open", "received"),
    "the accountant adds the round": (FederatedAccountant, "step", "received", "received"),
    "the strategy aggregates": (FedAvg, "aggregate_train", "received", "received"),
    "the checkpoint is written": (ModelState, "to_bytes", "received", "received"),
    "the ledger completes the round": (BudgetLedger, "complete", "received", "complete"),
}
"""The same of a sum that aggregators add up."""


def die() -> None:
    """End as by ``kill -9``: no handler runs, no buffer is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, when: str, points: Mapping[str, tuple[Any, str, str, str]]) -> None:
    """Once a round is complete, the next call at a point is the last thing this process does."""
    owner, name, *_ = points[point]
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
        """Add one line."""
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
        return answer


class NotingFedAvg(FedAvg):
    """Notes a round as soon as it is given one: from then on its outcome may be anywhere."""

    notes: Notes

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """FedAvg's, noted."""
        self.notes.add("released", server_round)
        return super().aggregate_train(server_round, replies)


def train(folder: Path, *, shared: bool) -> None:
    """Train until all rounds are done."""
    role = Role.AGGREGATOR if shared else Role.MIXER
    nodes = AGGREGATORS if shared else 1
    public = [(folder / f"service-{i}.public").read_text() for i in range(nodes)]
    pinned = NodeKey.AGGREGATOR_PUBLIC_KEYS if shared else NodeKey.MIXER_PUBLIC_KEY

    def node_config(position: int) -> dict[str, Any]:
        if position >= CLIENTS:
            return {
                ROLE: role,
                f"shuffle-{role}-key-file": str(folder / f"service-{position - CLIENTS}.key"),
                serving.ENROLLED_FILE: str(folder / "enrolled"),
                serving.MIN_BATCH: 2,
            }
        return {
            NodeKey.MAX_LOCAL_EPSILON: math.inf if shared else 1.0,
            NodeKey.MAX_ROUNDS: 1000,
            NodeKey.LEDGER_FILE: str(folder / f"client-{position}.db"),
            pinned: ",".join(public),
            NodeKey.SIGNING_KEY_FILE: str(folder / f"client-{position}.key"),
        }

    app = ClientApp(mods=[ShuffleMod()])
    register_mix_node(app)
    register_aggregator(app)
    app.train()(lambda message, context: Training.train(message, context))
    notes = Notes(folder)
    grid = NotingGrid(app, num_nodes=CLIENTS + nodes, node_config=node_config)
    inner = NotingFedAvg(fraction_evaluate=0.0)
    grid.notes = inner.notes = notes
    strategy = ShuffleStrategy(
        inner,
        randomizer=SUM if shared else SPEC,
        sampling=FixedSize(CLIENTS) if shared else SelfSampling(1.0),
        population=CLIENTS,
        shuffler=SharedSumStage(aggregator_public_keys=public, discovery_timeout=1.0)
        if shared
        else MixNodeStage(mixer_public_key=public[0], discovery_timeout=1.0),
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
    send: Callable[[str], object] = sys.stdout.write
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if request["kill"]:
                    arm(*request["kill"], SHARED_POINTS if request["shared"] else POINTS)
                train(Path(request["folder"]), shared=request["shared"])
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        send(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
