"""The parties of a shuffled deployment: a server, clients, and a mix node, each with files of its own."""

from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from flwr_shuffle.messages import ROLE, Role
from processes import Deployment, Program, wait_for
from typer.testing import CliRunner

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.cli.keys import keys_command as keys
from shuffle_plugins.ledger import BudgetLedger

TESTED_APP = Path(__file__).parent / "deployment_app"


def _printed(*arguments: str) -> str:
    result = CliRunner().invoke(keys, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


@dataclass
class Parties:
    """A running deployment.

    Attributes:
        notes: where the tested app's processes leave files.
        mixer_key_file: the mixer's private key.
        client_keys: the clients' public signing keys, hexadecimal.
    """

    deployment: Deployment
    notes: Path
    secrets: Path
    client_keys: list[str]
    mixer_public_key: str
    superlink: Program
    clients: list[Program] = field(default_factory=list)
    mixer: Program | None = None

    @classmethod
    def start(
        cls, deployment: Deployment, *, notes: Path, clients: int = 4, with_mixer: bool = True
    ) -> Parties:
        """Make keys, start a SuperLink, a mix node and clients; without the mix node, the SuperLink alone."""
        secrets = deployment.folder / "secrets"
        secrets.mkdir()
        mixer_public_key = _printed("mixer", str(secrets / "mixer.key"))
        client_keys = []
        for i in range(clients):
            client_keys.append(_printed("client", str(secrets / f"client-{i}.key")))
            _printed("enrol", str(secrets / "enrolled"), client_keys[-1], "--note", f"client {i}")
        superlink = deployment.start_superlink()
        parties = cls(deployment, notes, secrets, client_keys, mixer_public_key, superlink)
        if with_mixer:
            parties.mixer = parties.start_mixer()
            parties.clients = [parties.start_client(i) for i in range(clients)]
        return parties

    def start_aggregators(self, count: int) -> str:
        """Start aggregators, and the clients anew with their keys pinned; the keys, by commas."""
        names = [f"aggregator-{i}" for i in range(count)]
        public = ",".join(_printed("aggregator", str(self.secrets / f"{name}.key")) for name in names)
        for name in names:
            config = {
                ROLE: Role.AGGREGATOR,
                "shuffle-aggregator-key-file": str(self.secrets / f"{name}.key"),
                "shuffle-enrolled-file": str(self.secrets / "enrolled"),
                "shuffle-min-batch": 3,
            }
            self.deployment.start_supernode(name, node_config=config)
        limits = {
            "shuffle-max-local-epsilon": math.inf,
            "shuffle-max-epsilon": 1000.0,
            "shuffle-delta": 1e-3,
            "shuffle-aggregator-public-keys": public,
        }
        self.clients = [self.start_client(i, limits=limits) for i in range(len(self.client_keys))]
        return public

    def start_mixer(self) -> Program:
        """Start, or start anew, the mix node."""
        config = {
            ROLE: Role.MIXER,
            "shuffle-mixer-key-file": str(self.secrets / "mixer.key"),
            "shuffle-enrolled-file": str(self.secrets / "enrolled"),
            "shuffle-min-batch": 2,
        }
        return self.deployment.start_supernode("mixer", node_config=config)

    def start_client(self, partition: int, *, limits: Mapping[str, str | float] | None = None) -> Program:
        """Start a client that agrees to these limits, or to reports by the mix node."""
        mixed = {
            "shuffle-max-local-epsilon": 8.0,
            "shuffle-max-rounds": 1000,
            "shuffle-mixer-public-key": self.mixer_public_key,
        }
        config = {
            "partition-id": partition,
            "num-partitions": len(self.client_keys),
            "shuffle-ledger-file": str(self.secrets / f"client-{partition}.db"),
            "shuffle-signing-key-file": str(self.secrets / f"client-{partition}.key"),
            **(limits or mixed),
        }
        return self.deployment.start_supernode(f"client-{partition}", node_config=config)

    def start_hostile(self, how: str) -> Program:
        """Start a node that nobody enrolled; ``how`` is what it does, by its name in the tested app."""
        config = {"hostile": how, "public-key": self.mixer_public_key}
        return self.deployment.start_supernode(how, node_config=config)

    def start_run(
        self, name: str, *, app: Path = TESTED_APP, **run_config: str | int | float | bool
    ) -> Program:
        run_config = {"mixer_public_key": self.mixer_public_key, **run_config}
        config: Mapping[str, str | int | float | bool] = {
            key.replace("_", "-"): value for key, value in run_config.items()
        }
        return self.deployment.start_run(app, name=name, run_config=config)

    def watched(self, run: Program) -> set[bytes]:
        """Every text and blob that was in the SuperLink's database while a run went on."""
        stored: set[bytes] = set()
        end = time.monotonic() + 600
        while run.exit_code is None:
            connection = sqlite3.connect(f"file:{self.deployment.database}?mode=ro", uri=True, timeout=10)
            with closing(connection):
                tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                for (table,) in tables:
                    for row in connection.execute(f'SELECT * FROM "{table}"'):
                        stored |= {str(cell).encode() if isinstance(cell, str) else cell for cell in row}
            assert time.monotonic() < end, run.text()
            time.sleep(0.2)
        return {cell for cell in stored if isinstance(cell, bytes)}

    def noted(self, name: str) -> list:
        path = self.notes / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Killer:
    """Stops processes at places that the tested app knows, and kills them there."""

    def __init__(self, parties: Parties) -> None:
        self._notes = parties.notes

    def stop_at(self, place: str) -> None:
        (self._notes / f"stop-{place}").touch()

    def reached(self, place: str) -> int:
        at = self._notes / f"at-{place}"
        wait_for(at.exists, seconds=600, what=place)
        return int(at.read_text())

    def release(self, place: str) -> None:
        (self._notes / f"stop-{place}").unlink()
        (self._notes / f"at-{place}").unlink(missing_ok=True)

    def kill_at(self, place: str) -> None:
        os.kill(self.reached(place), signal.SIGKILL)
        self.release(place)


def spent_in(path: Path) -> tuple[list, np.ndarray]:
    """The rounds in a ledger, and the ε that they have cost, by adversary."""
    with BudgetLedger(path, model="model") as ledger:
        accountant = ledger.accountant()
        return ledger.rounds(), np.array(
            [accountant.epsilon(1e-3, adversary=adversary, lower=False).upper for adversary in Adversary]
        )


def states(path: Path) -> list[tuple[int, str]]:
    with BudgetLedger(path, model="model") as ledger:
        return [(one.server_round, str(one.state)) for one in ledger.rounds()]
