"""Any party is killed in the middle of a round: training goes on, and nothing is free of charge."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

import killed_rounds
from killed_rounds import AGGREGATORS, CLIENTS, DELTA, KINDS, POINTS, ROUNDS
from processes import start_script

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import BudgetLedger, ClientLedger, RoundState
from shuffle_plugins.shuffler import BatchRefused, Refusal, SpentTokens, state_beside
from shuffle_plugins.shuffler.keys import read_service_key

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and processes in /proc"),
]


# -- every point of a round, in one process ------------------------------------------------------------------


class Trainer:
    """Starts training in forks of one warm process."""

    def __init__(self, folder: Path) -> None:
        self._folder, pipes = folder, [folder / "requests", folder / "answers"]
        for pipe in pipes:
            os.mkfifo(pipe)
        # Neither waits for the other end, which may never come.
        self._requests = os.fdopen(os.open(pipes[0], os.O_RDWR), "w")
        self._answers = os.open(pipes[1], os.O_RDONLY | os.O_NONBLOCK)
        self._pid = start_script(Path(killed_rounds.__file__), *map(str, pipes), folder=folder)

    def train(self, folder: Path, *, kill: tuple[str, str] | None = None, kind: str = "mixed") -> int:
        """Train until killed, or done. Returns the exit status."""
        self._requests.write(json.dumps({"folder": str(folder), "kill": kill, "kind": kind}) + "\n")
        self._requests.flush()
        while not select.select([self._answers], [], [], 1.0)[0]:
            assert Path(f"/proc/{self._pid}").exists(), (self._folder / "log").read_text()
        return int(os.read(self._answers, 100))

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._requests.close()
        os.close(self._answers)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    process = Trainer(tmp_path_factory.mktemp("trainer"))
    yield process
    process.close()


def lines(path: Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Books:
    """All that is on disk."""

    def __init__(self, folder: Path) -> None:
        with BudgetLedger(folder / "budget.db", model="model") as ledger:
            self.rounds = ledger.rounds()
            accountant = ledger.accountant()
            self.saved = ledger.last_checkpoint()
        self.spent = np.array(
            [accountant.epsilon(DELTA, adversary=adversary, lower=False).upper for adversary in Adversary]
        )
        self.client_reports = []
        for i in range(CLIENTS):
            with ClientLedger(folder / f"client-{i}.db") as client:
                self.client_reports.append(client.spent().reports)
        self.released = lines(folder / "released")
        self.noted_spending = np.array([noted[1:] for noted in lines(folder / "spent")])
        self.left = [(node - 2, bytes.fromhex(token)) for node, token in lines(folder / "left")]
        self.opened = [tuple(noted) for noted in lines(folder / "opened")]  # node, series, index, process
        self.served = [(node - 2 - CLIENTS, token) for node, token in lines(folder / "mixed")]


def check(books: Books, folder: Path) -> None:
    """Whatever went out is written down with whoever answers for it."""
    on_record = [one for one in books.rounds if one.state in (RoundState.RECEIVED, RoundState.COMPLETE)]
    released = Counter(books.released)
    recorded = Counter(one.server_round for one in on_record)
    assert released <= recorded, "a round was released that is not in the ledger"
    assert all(one.charged is not None for one in books.rounds), "a round that was begun is free"
    begun = {one.token for one in books.rounds}
    assert {token for _, token in books.left} <= begun, "reports of a round that the server never began"
    for client, reports in Counter(client for client, _ in books.left).items():
        assert books.client_reports[client] >= reports, "a report left that its client did not charge"
    assert len(set(books.served)) == len(books.served), "a batch or a sum of one round was given out twice"
    opened = defaultdict(list)
    for node, series, index, process in books.opened:
        opened[node, series].append((index, process))
    for windows in opened.values():  # one after the other, each once, and in one process of the server
        assert [index for index, _ in windows] == list(range(len(windows))), "a window was opened twice"
        assert len({process for _, process in windows}) == 1, "a series went on after a restart"
    for service, token in books.served:
        [key_file] = folder.glob(f"keys/*r-[12]/{service}.key")
        spent_rounds = SpentTokens(
            state_beside(key_file), public_key=read_service_key(key_file).public.sealing
        )
        with pytest.raises(BatchRefused) as refused:
            spent_rounds.spend(bytes.fromhex(token))
        assert refused.value.code is Refusal.REPLAYED
    assert (books.spent >= books.noted_spending.max(axis=0)).all(), "ε is smaller than it was"
    assert (books.noted_spending[1:] >= books.noted_spending[:-1]).all()  # may be infinite


AFTER = {"a service node spends the round", "an aggregator answers"}  # of sums, too
WRITES = AFTER | {
    "the ledger begins a round",
    "a client charges its ledger",
    "the mixer answers",
    "the ledger receives",
    "the strategy aggregates",
    "the checkpoint is written",
    "the ledger completes the round",
}
"""What leaves something behind; after anything else all is as before the next point."""
ALWAYS = AFTER | {"a client charges its ledger"}
KILLED = [
    (name, when, kind)
    for letter, kind in KINDS.items()
    for name, point in POINTS.items()
    for when in ("before", "after")
    if letter in point.kinds
    and (when == "before" or kind == "windowed" or name in (WRITES if kind == "mixed" else AFTER))
    # What sums share with other kinds of rounds is killed there.
    if kind != "summed" or point.kinds.strip("w") == "s" or name in ALWAYS
]


@pytest.mark.parametrize(("point", "when", "kind"), KILLED)
def test_a_killed_run_goes_on_and_owes_what_it_owed(
    point: str, when: str, kind: str, trainer: Trainer, tmp_path: Path
) -> None:
    assert trainer.train(tmp_path, kill=(point, when), kind=kind) == -signal.SIGKILL
    killed = Books(tmp_path)
    check(killed, tmp_path)
    second = [str(one.state) for one in killed.rounds if one.server_round == 2]
    state = getattr(POINTS[point], when)
    assert second == ([state] if state else [])
    assert killed.saved is not None
    assert killed.saved.server_round == (2 if state == "complete" else 1)
    assert trainer.train(tmp_path, kind=kind) == 0
    ended = Books(tmp_path)
    check(ended, tmp_path)
    assert ended.saved is not None
    assert ended.saved.server_round == ROUNDS
    assert (ended.spent >= killed.spent).all()
    assert (np.array(ended.client_reports) >= np.array(killed.client_reports)).all()
    if kind == "windowed":  # each process had a series of its own, at both aggregators
        assert len({(node, series) for node, series, *_ in ended.opened}) == 2 * AGGREGATORS
    again = [one for one in ended.rounds if one.state is RoundState.COMPLETE]
    assert len(again) == ROUNDS


def test_a_run_that_is_left_alone_owes_three_rounds(trainer: Trainer, tmp_path: Path) -> None:
    assert trainer.train(tmp_path) == 0
    books = Books(tmp_path)
    check(books, tmp_path)
    assert [one.state for one in books.rounds] == [RoundState.COMPLETE] * ROUNDS
    assert books.client_reports == [ROUNDS] * CLIENTS
    np.testing.assert_allclose(books.noted_spending[-1], books.spent)
