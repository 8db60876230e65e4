"""Files that were written before, opened and continued now: ledgers, keys, a mixer's spent rounds.

The keys in ``data/files`` belong to nobody: they are there to be read by these tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr_shuffle.server.checkpoints import ModelState
from reports_answers import FILES, Questions

from shuffle_plugins.accounting import FederatedRound
from shuffle_plugins.ledger import (
    BudgetLedger,
    ClientLedger,
    ClientLimits,
    ReportRefused,
    read_budget,
    read_client_budget,
    written,
)
from shuffle_plugins.mechanisms import MechanismSpec, SumSpec
from shuffle_plugins.protocols import BallSum, VectorSum
from shuffle_plugins.shuffler import BatchRefused, SpentTokens, keys

DELTA = 1e-5
BUDGET, CLIENT, STATE = FILES / "budget.sqlite", FILES / "client.sqlite", FILES / "mixer.state"
PEOPLE = [f"node-{i}" for i in range(100)]
DIM = 5

MECHANISMS: dict[str, Any] = {
    "coordinate": MechanismSpec(name="linf-coordinate", local_epsilon=1.5),
    "privunit": MechanismSpec(name="privunit", local_epsilon=1.5),
    "gaussian": MechanismSpec(name="gaussian", local_epsilon=1.5, options=(("local_delta", 1e-9),)),
    "hadamard": MechanismSpec(name="l1-hadamard", local_epsilon=1.5),
    "vector-sum": SumSpec(protocol=VectorSum(dim=DIM, cohort=100, levels=6, coins=2000)),
    "ball-sum": SumSpec(protocol=BallSum(dim=DIM, cohort=100, budget=6.0, samples=5)),
}


def built(name: str) -> Any:
    return MECHANISMS[name].build(dim=DIM)


def drawn(name: str, reports: int) -> FederatedRound:
    return FederatedRound.drawn(built(name), candidates=1000, invited=100, reports=reports)


def secret(name: str, reports: int) -> FederatedRound:
    return FederatedRound.secret(built(name), answered=900, reports=reports, rate=0.1, honest_fraction=0.9)


def token(number: int) -> bytes:
    return bytes([number]) * 16


def checkpoint() -> bytes:
    arrays = ArrayRecord({"w": Array(np.arange(3, dtype=np.float32)), "n": Array(np.array(7))})
    return ModelState(arrays, {"momentum_vector": [np.ones(3), np.zeros(())]}).to_bytes()


def enter(
    ledger: BudgetLedger, number: int, worst: FederatedRound, actual: FederatedRound, *, people: int
) -> None:
    ledger.begin(token=token(number), run="run-1", server_round=number, worst=worst)
    ledger.receive(token(number), actual=actual, participants=PEOPLE[:people], era="a")


def write_budget() -> None:
    """Every way a round can end, of every kind of mechanism, in three models; the last round stays open."""
    BUDGET.unlink(missing_ok=True)
    with BudgetLedger(BUDGET, model="drawn") as ledger:
        ledger.claim(app="golden", layout="0" * 32)
        for number, name in enumerate(("coordinate", "privunit", "hadamard", "coordinate"), 1):
            enter(ledger, number, drawn(name, 50), drawn(name, 80 + number), people=90)
            ledger.complete(token(number), checkpoint=checkpoint())
        ledger.begin(token=token(5), run="run-2", server_round=1, worst=drawn("coordinate", 50))
        ledger.refuse(token(5), actual=None, participants=None)
        ledger.begin(token=token(6), run="run-2", server_round=2, worst=drawn("coordinate", 50))
        ledger.refuse(token(6), actual=drawn("coordinate", 60), participants=PEOPLE[:70])
        ledger.begin(token=token(7), run="run-2", server_round=3, worst=drawn("coordinate", 50))
    with BudgetLedger(BUDGET, model="secret") as ledger:
        for number in (11, 12):
            enter(ledger, number, secret("gaussian", 60), secret("gaussian", 75), people=100)
            ledger.complete(token(number), checkpoint=None)
    with BudgetLedger(BUDGET, model="sums") as ledger:
        for number, name in ((21, "vector-sum"), (22, "ball-sum"), (23, "vector-sum")):
            enter(ledger, number, drawn(name, 90), drawn(name, 100), people=100)
            ledger.complete(token(number), checkpoint=None)


def charge(
    ledger: ClientLedger, number: int, name: str, *, promised: int | None, limits: ClientLimits
) -> None:
    mechanism = built(name)
    shuffled = None if promised is None else written(mechanism.round(population=promised, cohort=promised))
    ledger.charge(
        run=f"run-{number // 4}",
        token=token(number),
        server_round=number,
        mechanism=mechanism.name,
        local_epsilon=mechanism.local_epsilon,
        local_delta=mechanism.local_delta,
        limits=limits,
        shuffled=shuffled,
    )


def write_client() -> None:
    CLIENT.unlink(missing_ok=True)
    with ClientLedger(CLIENT) as ledger:
        for number, (name, promised) in enumerate(
            (
                ("coordinate", None),
                ("coordinate", 50),
                ("privunit", 50),
                ("gaussian", 60),
                ("coordinate", 50),
                ("ball-sum", 100),
            )
        ):
            charge(ledger, number, name, promised=promised, limits=ClientLimits(max_rounds=10))


def write_keys() -> None:
    """As the command line writes them."""
    for path in (FILES / "mixer.key", FILES / "client.key", STATE, FILES / "enrolled.txt"):
        path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "shuffle_plugins", "keys"]
    subprocess.run([*command, "mixer", str(FILES / "mixer.key"), "--state", str(STATE)], check=True)
    subprocess.run([*command, "client", str(FILES / "client.key")], check=True)
    mixer, client = keys.read_service_key(FILES / "mixer.key"), keys.read_signing_key(FILES / "client.key")
    SpentTokens(STATE, public_key=mixer.public.sealing).spend(token(1))
    keys.enrol_client(FILES / "enrolled.txt", keys.public_key_bytes(client), note="the client")
    public = {"mixer": mixer.public.hex(), "client": keys.public_key_hex(client)}
    (FILES / "public.json").write_text(json.dumps(public) + "\n")


def write_files() -> None:
    write_budget()
    write_client()
    write_keys()


def of_spending(spending: Any) -> dict[str, Any]:
    return {
        "observer": {"lower": spending.observer.lower, "upper": spending.observer.upper},
        "server": {"lower": spending.server.lower, "upper": spending.server.upper},
        "local_epsilon": spending.local_epsilon,
        "num_rounds": spending.num_rounds,
        "worst_client_rounds": spending.worst_client_rounds,
    }


def of_rounds(rounds: Any) -> list[Any]:
    return [
        [
            entry.token.hex(),
            entry.run,
            entry.server_round,
            str(entry.state),
            entry.participants,
            entry.released,
        ]
        for entry in rounds
    ]


def copied(path: Path, folder: str) -> Path:
    """A copy to open: opening may change a file. Keys must be closed to others, which git does not keep."""
    found = Path(shutil.copy(path, folder))
    found.chmod(0o600)
    return found


def budget(model: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = copied(BUDGET, folder)
        [summary] = read_budget(path, delta=DELTA, model=model)
        found = {
            "runs": {name: of_spending(run.spending) for name, run in summary.runs.items()},
            "states": {str(state): count for state, count in summary.total.rounds.items()},
            "reports": summary.total.reports,
        }
        with BudgetLedger(path, model=model) as ledger:
            ledger.claim(app="golden", layout="0" * 32)
            rounds = ledger.rounds()
            found |= {"rounds": of_rounds(rounds), "spent": of_spending(ledger.accountant().spending(DELTA))}
            last = ledger.last_checkpoint()
            if last is not None:
                state = ModelState.from_bytes(last.data)
                found["checkpoint"] = {
                    "server_round": last.server_round,
                    "token": last.token.hex(),
                    "arrays": {name: array.numpy().tolist() for name, array in state.arrays.items()},
                    "momentum": [part.tolist() for part in state.strategy["momentum_vector"]],
                }
            name = {"drawn": "coordinate", "secret": "gaussian", "sums": "vector-sum"}[model]
            again = secret(name, 75) if model == "secret" else drawn(name, 100 if model == "sums" else 81)
            enter(ledger, 99, again, again, people=100)
            ledger.complete(token(99), checkpoint=None)
            found["continued"] = of_spending(ledger.accountant().spending(DELTA))
    return found


def client() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = copied(CLIENT, folder)

        def read() -> dict[str, Any]:
            summary = read_client_budget(path, delta=DELTA)
            return {
                name: [
                    part.spending.reports,
                    part.spending.local_epsilon,
                    part.spending.local_delta,
                    part.epsilon,
                ]
                for name, part in {"": summary.total, **summary.runs}.items()
            }

        found: dict[str, Any] = {"before": read()}
        with ClientLedger(path) as ledger:
            refused = []
            for number, limits in ((0, ClientLimits(max_rounds=10)), (9, ClientLimits(max_rounds=6))):
                try:
                    charge(ledger, number, "coordinate", promised=50, limits=limits)
                except ReportRefused as error:
                    refused.append(str(error.code))
            charge(ledger, 10, "coordinate", promised=50, limits=ClientLimits(max_rounds=7))
            found |= {"refused": refused, "reports": ledger.spent().reports}
        return found | {"after": read()}


def key_files() -> dict[str, Any]:
    """Today's files of keys say the public keys that were printed when they were made."""
    with tempfile.TemporaryDirectory() as folder:
        mixer = keys.read_service_key(copied(FILES / "mixer.key", folder))
        client_key = keys.read_signing_key(copied(FILES / "client.key", folder))
        enrolled = keys.read_enrolled(copied(FILES / "enrolled.txt", folder))
        state = SpentTokens(copied(STATE, folder), public_key=mixer.public.sealing)
        replayed = False
        try:
            state.spend(token(1))
        except BatchRefused:
            replayed = True
        state.spend(token(2))
        parsed = keys.parse_mixer_public_key(mixer.public.hex())
        public = json.loads((FILES / "public.json").read_text())
        assert public == {"mixer": mixer.public.hex(), "client": keys.public_key_hex(client_key)}
        assert parsed == mixer.public
        assert enrolled == {keys.public_key_bytes(client_key)}
    return {"public": public, "replayed": replayed}


def questions() -> Questions:
    asked: dict[str, Callable[[], Any]] = {
        f"budget[{model}]": partial(budget, model) for model in ("drawn", "secret", "sums")
    }
    return asked | {"client": client, "keys": key_files}
