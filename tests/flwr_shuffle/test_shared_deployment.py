"""Sums added up by two aggregators, as real processes that are killed with what they know in their hands."""

from __future__ import annotations

import base64
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import torch
from deployed_parties import Killer, Parties
from processes import Deployment

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


def test_two_aggregators_add_up_and_nobody_sees_a_clients_counts(tmp_path: Path) -> None:
    notes, folder, ledger = tmp_path / "notes", tmp_path / "deployment", tmp_path / "budget.db"
    notes.mkdir()
    with Deployment(folder, variables={"TESTED_APP_FOLDER": str(notes)}) as deployment:
        parties = Parties.start(deployment, notes=notes, clients=CLIENTS, with_mixer=False)
        public, killer = parties.start_aggregators(2), Killer(parties)
        killer.stop_at("summed")
        run = parties.start_run(
            "summed",
            aggregator_public_keys=public,
            population=CLIENTS,
            num_server_rounds=ROUNDS,
            ledger_file=str(ledger),
        )
        # One aggregator dies with its sum in its hands: the round is lost and charged, the next ones are not.
        killer.kill_at("summed")
        stored = parties.watched(run)
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
        counts = [one["counts"] for one in drawn[CLIENTS * number : CLIENTS * (number + 1)]]
        total = (torch.tensor(counts) + SUM.counts.lowest).sum(dim=0)
        expected = SUM.estimate(total, reports=CLIENTS).numpy() / CLIENTS
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
