"""Sums added up by two aggregators, as real processes that are killed with what they know in their hands."""

from __future__ import annotations

import base64
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import torch
from deployed_parties import Killer, Parties, spent_in, states
from processes import Deployment, Program, wait_for

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import BudgetLedger, RoundState
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.secure_aggregation import ResidueLayout, Residues

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

CLIENTS, ROUNDS = 4, 3
SUM = VectorSum.with_noise(dim=40, cohort=3, noise_multiplier=2.0, overhead=0.3)


def cells(database: Path) -> set[bytes]:
    """Every text and blob in a SuperLink's database at this moment."""
    found: set[bytes] = set()
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
    try:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                found |= {cell.encode() if isinstance(cell, str) else cell for cell in row if _is_text(cell)}
    finally:
        connection.close()
    return found


def _is_text(cell: object) -> bool:
    return isinstance(cell, str | bytes)


def watched(run: Program, database: Path) -> set[bytes]:
    """All that was in the database while a run went on."""
    stored: set[bytes] = set()
    end = time.monotonic() + 600
    while run.exit_code is None:
        stored |= cells(database)
        assert time.monotonic() < end, run.text()
        time.sleep(0.2)
    return stored


@dataclass
class Deployed:
    """Parties with aggregators, and the aggregators' public keys."""

    parties: Parties
    public: str


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    notes, folder = tmp_path_factory.mktemp("notes"), tmp_path_factory.mktemp("deployment")
    with Deployment(folder, variables={"TESTED_APP_FOLDER": str(notes)}) as deployment:
        parties = Parties.start(deployment, notes=notes, clients=CLIENTS, mixers=0)
        yield Deployed(parties, parties.start_aggregators(2))


def expected_move(counts: list[list[int]]) -> np.ndarray:
    """The mean that these clients' counts stand for."""
    total = (torch.tensor(counts) + SUM.counts.lowest).sum(dim=0)
    return SUM.estimate(total, reports=len(counts)).numpy() / len(counts)


def test_two_aggregators_add_up_and_nobody_sees_a_clients_counts(deployed: Deployed, tmp_path: Path) -> None:
    parties, killer = deployed.parties, Killer(deployed.parties)
    notes, folder, deployment = parties.notes, parties.deployment.folder, parties.deployment
    ledger = tmp_path / "budget.db"
    killer.stop_at("summed")
    run = parties.start_run(
        "summed",
        aggregator_public_keys=deployed.public,
        population=CLIENTS,
        num_server_rounds=ROUNDS,
        ledger_file=str(ledger),
    )
    # One aggregator dies with its sum in its hands: the round is lost and charged, the next ones are not.
    killer.kill_at("summed")
    stored = watched(run, deployment.database)
    assert (notes / "finished").exists(), run.text()
    with BudgetLedger(ledger, model="model") as books:
        rounds, accountant = books.rounds(), books.accountant()
    assert [one.state for one in rounds] == [RoundState.REFUSED, *[RoundState.COMPLETE] * (ROUNDS - 1)]
    assert all(one.charged is not None for one in rounds)
    assert 0 < accountant.epsilon(1e-3, adversary=Adversary.SERVER, lower=False).upper < np.inf

    # What was released is the sum of what the clients drew, which nobody saw.
    drawn, released = parties.noted("drawn"), parties.noted("released")
    assert len(drawn) == ROUNDS * CLIENTS
    weights = [np.array(one["weight"]) for one in released]
    moves = [after - before for before, after in pairwise(weights)]
    for number, moved in enumerate(moves[-(ROUNDS - 1) :], start=1):
        expected = expected_move([one["counts"] for one in drawn[CLIENTS * number : CLIENTS * (number + 1)]])
        np.testing.assert_allclose(moved, expected, atol=1e-5)

    # The server's messages, its database, and everybody's files and logs.
    seen = [str(line).encode() for line in parties.noted("seen")]
    relayed = [
        base64.b64decode(text)
        for line in seen
        for text in line.replace(b"'", b'"').split(b'"')
        if len(text) % 4 == 0 and len(text) > 40 and b" " not in text
    ]
    files = [
        path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "secrets" not in path.parts and path.suffix != ".fab"
    ]
    everything = b"|".join([*seen, *relayed, *stored, *files])
    assert len(relayed) > ROUNDS * CLIENTS
    most = SUM.counts.highest - SUM.counts.lowest
    layout = ResidueLayout.of_sum(size=40, largest=most, clients=CLIENTS)
    for one in drawn:
        counts = np.array(one["counts"])
        plain = Residues(layout, counts.astype(layout.dtype), np.zeros(2, np.uint64)).to_bytes()[16:]
        report = SUM.layout.reports(torch.from_numpy(counts + SUM.counts.lowest).unsqueeze(0)).to_bytes()
        hidden = [plain, report, str(one["counts"]).encode(), counts.astype(layout.dtype).tobytes()]
        for secret in [*hidden, *(bytes.fromhex(seed) for seed in one["seeds"])]:
            assert secret not in everything
            assert secret.hex().encode() not in everything
    for key in parties.client_keys:
        assert bytes.fromhex(key) not in everything
        assert key.encode() not in everything


def test_verified_rounds_go_on_when_any_party_is_killed(deployed: Deployed, tmp_path: Path) -> None:
    """An aggregator twice, a client, and the server: nothing is released twice, and ε is never less."""
    parties, killer, ledger = deployed.parties, Killer(deployed.parties), tmp_path / "budget.db"
    before, owed = len(parties.noted("released")), np.zeros(len(Adversary))

    def ended(server_round: int, state: str) -> None:
        nonlocal owed
        wait_for(lambda: (server_round, state) in states(ledger), seconds=600, what=f"{server_round} {state}")
        rounds, now = spent_in(ledger)
        assert (now >= owed).all(), "ε is smaller than it was"
        if rounds[-1].state is not RoundState.OPEN:  # charged at its worst until its end is known
            owed = now

    def start(name: str) -> Program:
        return parties.start_run(
            name,
            aggregator_public_keys=deployed.public,
            verified=True,
            population=CLIENTS,
            num_server_rounds=4,
            ledger_file=str(ledger),
        )

    for place in ("verified", "train-1-2", "aggregating-2", "aggregating-4"):
        killer.stop_at(place)
    run = start("verified")
    killer.kill_at("verified")  # an aggregator that has answered about proofs; nobody was asked for a sum
    ended(1, "refused")
    assert not owed.any(), "a round is charged of which nobody had a sum"
    killer.kill_at("train-1-2")  # a client; three are enough
    killer.reached("aggregating-2")
    killer.stop_at("summed")
    killer.release("aggregating-2")
    ended(2, "complete")
    killer.kill_at("summed")  # an aggregator with its verified sum in its hands
    ended(3, "refused")
    killer.kill_at("aggregating-4")  # the server, with a round in the books that it has not aggregated
    assert run.wait(seconds=600) is not None
    ended(4, "received")
    start("verified again").wait(seconds=600)
    ended(4, "complete")

    found = [
        (1, "refused"),
        (2, "complete"),
        (3, "refused"),
        (4, "received"),
        (3, "complete"),
        (4, "complete"),
    ]
    assert states(ledger) == found, "it goes on after the last checkpoint, which is that of round 2"
    assert all(one.charged is not None for one in spent_in(ledger)[0][1:]), (
        "a round is free that may be known"
    )
    released = parties.noted("released")[before:]
    assert [one["round"] for one in released[:4]] == [0, 1, 2, 3]
    assert [one["round"] for one in released[-2:]] == [3, 4]
    weights = [np.array(one["weight"]) for one in released]
    moved = [not np.array_equal(one, another) for one, another in pairwise(weights)]
    assert moved[:3] == [False, True, False], "a round was released that was refused"
    assert not any(moved[3:-2]), "a round was released twice, or one that was lost"
    proven = parties.noted("proven")
    for last in (1, 2):
        counts = proven[-CLIENTS * last : len(proven) - CLIENTS * (last - 1)]
        np.testing.assert_allclose(weights[-last] - weights[-last - 1], expected_move(counts), atol=1e-5)
