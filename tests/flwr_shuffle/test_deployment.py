"""A deployment of real processes: a round is trained, and the server's whole view of it tells nothing."""

from __future__ import annotations

import base64
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from deployed_parties import Killer, Parties, spent_in, states
from flwr.app import ConfigRecord
from flwr_shuffle.messages import Instruction, Role, context_of
from processes import Deployment, Program, free_port, marked_pids, wait_for
from scipy.stats import mannwhitneyu

from shuffle_plugins.accounting import Adversary
from shuffle_plugins.ledger import RoundState
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, Opened, envelope_size, open_reports
from shuffle_plugins.shuffler.keys import SealingKey, read_enrolled, read_service_key

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

DIM = 40
CLIENTS = 4
ROUNDS = 10
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flower-mnist"


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    notes = tmp_path_factory.mktemp("notes")
    folder = tmp_path_factory.mktemp("deployment")
    with Deployment(folder, variables={"TESTED_APP_FOLDER": str(notes)}) as deployment:
        yield Parties.start(deployment, notes=notes, clients=CLIENTS)


@dataclass
class Reply:
    """A client's reply: what the server saw of it, and what nobody but the test knows."""

    server_round: int
    arrival: int
    told: dict
    payload: bytes
    opened: Opened
    report: bytes


@dataclass
class View:
    """Everything that the server has or had of a run, and the truth beside it."""

    told: list[dict]
    replies: list[Reply]
    stored: set[bytes]
    files: dict[str, bytes]
    released: list[dict]
    mixed: dict[int, list[bytes]]


@pytest.fixture(scope="module")
def view(parties: Parties) -> View:
    run = parties.start_run(
        "observed", num_server_rounds=ROUNDS, participation=0.6, population=CLIENTS, minimum_reports=2
    )
    stored = parties.watched(run)
    assert (parties.notes / "finished").exists(), run.text()
    files = {
        str(path): path.read_bytes()
        for folder in (parties.superlink.folder, run.folder)
        for path in folder.rglob("*")
        if path.is_file()
    }
    for path in parties.deployment.folder.glob("superlink.db*"):
        files[str(path)] = path.read_bytes()
    told = parties.noted("seen")
    return View(
        told=told,
        replies=_replies(told, parties),
        stored=stored,
        files=files,
        released=parties.noted("released"),
        mixed=_mixed(told),
    )


def _bytes(value: dict) -> bytes:
    return base64.b64decode(value["bytes"])


def _instruction(record: dict) -> Instruction:
    plain = {key: _bytes(value) if isinstance(value, dict) else value for key, value in record.items()}
    return Instruction.from_record(ConfigRecord(plain))


def _replies(told: list[dict], parties: Parties) -> list[Reply]:
    mixer_key = read_service_key(parties.secrets / "mixer.key").sealing
    enrolled = read_enrolled(parties.secrets / "enrolled")
    analyzer = SealingKey.from_private_bytes(
        bytes.fromhex((parties.notes / "analyzer-keys").read_text().split()[-1])
    )
    replies: list[Reply] = []
    arrival = 0
    for message in told:
        if message["type"] != "train":
            continue
        if message["direction"] == "sent":
            instruction = _instruction(message["records"]["shuffle"])
            arrival = 0
            continue
        payload = _bytes(message["records"]["shuffle"]["payload"])
        context = context_of(instruction, dim=DIM)
        opener = EnvelopeOpener(
            context=context,
            analyzer_key=instruction.analyzer_key,
            private_key=mixer_key,
            enrolled=enrolled,
        )
        opened = opener.open(payload)
        (report,) = open_reports([opened.inner], context=context, analyzer_private_key=analyzer)
        replies.append(Reply(instruction.server_round, arrival, message, payload, opened, report))
        arrival += 1
    return replies


def _mixed(told: list[dict]) -> dict[int, list[bytes]]:
    """By round, the ciphertexts that the mixer gave back, in its order; rounds it refused are left out."""
    mixed: dict[int, list[bytes]] = {}
    for message in told:
        if message["type"] == "train" and message["direction"] == "sent":
            server_round = _instruction(message["records"]["shuffle"]).server_round
        if message["type"] == Role.MIXER.work and message["direction"] == "received":
            reports = message["records"]["shuffle-mix"].get("items")
            if reports is not None:
                mixed[server_round] = [_bytes(report) for report in reports]
    return mixed


def test_rounds_are_trained_and_each_is_paid_for(view: View) -> None:
    assert len(view.replies) == ROUNDS * CLIENTS
    assert {one["round"] for one in view.released} == set(range(ROUNDS + 1))
    for before, after in zip(view.released, view.released[1:], strict=False):
        trained = after["round"] in view.mixed
        assert (before["weight"] != after["weight"]) == trained
        assert (before["spent"] != after["spent"]) == trained
    assert view.mixed, "no round in which two of four coins fell"
    for server_round, reports in view.mixed.items():
        there = [reply.opened.inner for reply in view.replies if reply.server_round == server_round]
        assert set(reports) <= set(there)


def test_a_reply_is_one_payload_of_one_size_and_nothing_else(view: View) -> None:
    (size,) = {len(reply.report) for reply in view.replies}
    for reply in view.replies:
        assert reply.told["error"] is None
        assert reply.told["keys"] == ["shuffle"]
        assert list(reply.told["records"]["shuffle"]) == ["payload"]
        assert len(reply.payload) == envelope_size(size)


def test_nothing_the_server_holds_links_a_report_to_a_node(view: View, parties: Parties) -> None:
    """Reports and signers are nowhere; inner ciphertexts are where all of a round's are together."""
    everything = [*view.stored, *view.files.values(), json.dumps(view.told).encode()]
    assert sum(map(len, everything)) > 100_000
    secret = {reply.report for reply in view.replies if reply.opened.real}
    secret |= {reply.opened.signer for reply in view.replies}
    secret |= {bytes.fromhex(key) for key in parties.client_keys}
    for needle in secret:
        for spelling in (needle, needle.hex().encode(), base64.b64encode(needle)):
            assert not any(spelling in hay for hay in everything)
    for metric in (f"told{partition}by{1000 + partition}".encode() for partition in range(CLIENTS)):
        assert not any(metric in hay for hay in everything), "a metric left a client"
    payloads = {reply.payload for reply in view.replies}
    assert any(payload in hay for payload in payloads for hay in view.stored), "the view misses the envelopes"
    for server_round, inners in view.mixed.items():
        for hay in view.stored:
            if any(inner in hay for inner in inners):
                assert all(inner in hay for inner in inners), f"round {server_round}: a report on its own"
                assert not any(payload in hay for payload in payloads)


def test_dummies_leave_no_ciphertext_behind(view: View) -> None:
    dummies = [reply.opened.inner for reply in view.replies if not reply.opened.real]
    assert dummies
    seen = {report for reports in view.mixed.values() for report in reports}
    assert not seen & set(dummies)
    assert not any(inner in hay for inner in dummies for hay in [*view.stored, *view.files.values()])


def test_participation_cannot_be_told_from_what_the_server_holds(view: View) -> None:
    """Every number that the server has of a reply is as large for dummies as for reports."""
    real = np.array([reply.opened.real for reply in view.replies])
    sent = {
        (message["to"], _instruction(message["records"]["shuffle"]).server_round): message["created"]
        for message in view.told
        if message["type"] == "train" and message["direction"] == "sent"
    }
    held = {
        "arrival": [reply.arrival for reply in view.replies],
        "seconds": [
            reply.told["created"] - sent[reply.told["from"], reply.server_round] for reply in view.replies
        ],
        "bytes": [float(np.frombuffer(reply.payload, np.uint8).mean()) for reply in view.replies],
        "first byte": [reply.payload[0] for reply in view.replies],
        "ones": [int(np.unpackbits(np.frombuffer(reply.payload, np.uint8)).sum()) for reply in view.replies],
    }
    generator = np.random.default_rng(0)
    for name, values in held.items():
        by_round = np.array(values, dtype=float).reshape(ROUNDS, CLIENTS)
        above = (by_round - by_round.mean(axis=1, keepdims=True)).ravel()  # a slow round is slow for all
        ranks = np.lexsort((generator.random(len(above)), above)).argsort()
        found = mannwhitneyu(ranks[real], ranks[~real], method="exact")
        assert found.pvalue > 1e-7, name  # five of them: false alarms are less than one run in 1,000,000


def test_nodes_that_nobody_enrolled_stop_no_round(parties: Parties) -> None:
    """One says that it is the mixer, with the mixer's public key; one sends random bytes as its envelope.

    A third joins in the middle of the run, and denies that its app has any service node's role.
    """
    killer = Killer(parties)
    killer.stop_at("train-1-2")
    before = len(parties.noted("released"))
    hostile = [parties.start_hostile("impostor"), parties.start_hostile("garbage")]
    run = parties.start_run(
        "hostile", num_server_rounds=3, participation=1.0, population=4, minimum_reports=4
    )
    killer.reached("train-1-2")
    hostile.append(parties.start_hostile("stranger"))
    killer.release("train-1-2")
    wait_for(lambda: run.exit_code is not None, seconds=600, what="rounds with hostile nodes")
    for program in hostile:
        program.kill()
    released = parties.noted("released")[before:]
    weights = [one["weight"] for one in released]
    assert [one["round"] for one in released] == list(range(4)), run.text()
    assert all(one != another for one, another in itertools.pairwise(weights)), run.text()
    assert not (parties.notes / "impostor-was-asked").exists()
    text = run.text()
    assert text.count("says that it is a mix node and has not proven") == 1, text
    assert text.count("envelopes dropped (unreadable), of node") == 2, text
    assert "sent no good envelope in 2 rounds" in text


def test_real_processes_are_killed_in_mid_round(parties: Parties, tmp_path: Path) -> None:
    """Mixer, SuperNode, server, and the SuperLink with everything that hangs on it."""
    ledger = tmp_path / "budget.db"
    killer = Killer(parties)
    before, owed = len(parties.noted("released")), np.zeros(len(Adversary))

    def no_less_is_owed(*, server_lives: bool = False) -> None:
        nonlocal owed
        rounds, now = spent_in(ledger)
        assert (now >= owed).all(), "ε is smaller than it was"
        # A round under way is charged at its worst until a living server knows what became of it.
        if not (server_lives and rounds[-1].state is RoundState.OPEN):
            owed = now

    def start(name: str) -> Program:
        return parties.start_run(
            name, ledger_file=str(ledger), num_server_rounds=4, minimum_reports=3, population=4
        )

    # The mixer dies with a mixed batch in its hands: the round is lost and paid for, the next one is not.
    for place in ("replied-2", "train-2-3", "aggregating-4"):
        killer.stop_at(place)
    run = start("first")
    killer.reached("replied-2")
    killer.stop_at("mixed")
    killer.release("replied-2")
    killer.kill_at("mixed")
    wait_for(lambda: (2, "refused") in states(ledger), seconds=600, what="end of the round without a batch")
    lost = next(one for one in spent_in(ledger)[0] if one.state is RoundState.REFUSED)
    assert lost.charged is not None, "the batch was mixed, and may be somewhere"
    no_less_is_owed(server_lives=True)

    # A whole SuperNode dies: the SuperLink says so in its place, and three reports are enough.
    killer.reached("train-2-3")
    parties.clients[2].kill()
    killer.kill_at("train-2-3")
    wait_for(lambda: (3, "complete") in states(ledger), seconds=600, what="round 3 without one SuperNode")
    no_less_is_owed(server_lives=True)
    parties.clients[2] = parties.start_client(2)

    # The server dies with a round in the books that the strategy has not aggregated.
    killer.kill_at("aggregating-4")
    assert run.wait(seconds=600) is not None
    assert states(ledger) == [(1, "complete"), (2, "refused"), (3, "complete"), (4, "received")]
    no_less_is_owed()

    # The SuperLink dies while clients train, and takes the run along; all is started anew on the same files.
    killer.stop_at("train-0-4")
    start("second")
    killer.reached("train-0-4")
    parties.superlink.kill()
    killer.release("train-0-4")
    assert states(ledger)[-1] == (4, "open")
    assert parties.mixer is not None
    for program in (*parties.clients, parties.mixer):
        program.kill()
    parties.superlink = parties.deployment.start_superlink()
    parties.mixer = parties.start_mixer()
    parties.clients = [parties.start_client(i) for i in range(4)]
    no_less_is_owed()

    run = start("third")
    run.wait(seconds=600)
    no_less_is_owed()
    assert states(ledger)[-1] == (4, "complete"), run.text()
    released = parties.noted("released")[before:]
    spent = np.array([[one["spent"][str(adversary)] for adversary in Adversary] for one in released])
    assert (np.diff(spent, axis=0) >= 0).all()
    recorded = {server_round for server_round, state in states(ledger) if state in ("received", "complete")}
    assert {one["round"] for one in released if any(one["weight"])} - {0} <= recorded | {2}


def test_the_commands_of_the_examples_readme_deploy_it_and_nothing_is_left(tmp_path: Path) -> None:
    """With a mix node, and then, once all that is stopped, with two aggregators."""
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("keys", "*.db*", "__pycache__"))
    readme = (EXAMPLE / "README.md").read_text()
    ports = {"8000": str(free_port()), "910": str(free_port())[:4]}  # a node's port is 910 and a digit
    for written, free in ports.items():
        readme = readme.replace(written, free)
    mixed = readme[readme.index("## Deployment") : readme.index("## Stop")]
    summed = readme[readme.index("## The same with a sum") :]
    keys, start, run = re.findall(r"```sh\n(.*?)```", mixed, re.DOTALL)
    more_keys, start_again, run_again = re.findall(r"```sh\n(.*?)```", summed, re.DOTALL)
    (connection,) = re.findall(r"```toml\n(.*?)```", mixed, re.DOTALL)
    with Deployment(tmp_path / "deployment") as deployment:
        environment = deployment.environment("readme")
        log = deployment.folder / "readme" / "log"
        log.touch()
        (deployment.folder / "readme" / "config.toml").write_text(connection)

        def shell(commands: str) -> None:
            command = 'shuffle-plugins() { python -m shuffle_plugins "$@"; }\n' + commands
            subprocess.run(["bash", "-ec", command], cwd=app, env=environment, check=True, timeout=600)

        def lines() -> list[str]:
            return re.findall(r"^round \d: .*", log.read_text(), re.MULTILINE)

        shell(keys + start)
        wait_for(lambda: log.read_text().count("SuperNode ID:") == 5, seconds=600, what="five SuperNodes")
        shell(run)
        wait_for(lambda: len(lines()) == 4, seconds=600, what="three rounds")
        assert len(deployment.processes()) >= 13  # SuperLink, five SuperNodes, what each starts, their parent
        deployment.stop()
        shell(more_keys + start_again)
        wait_for(lambda: log.read_text().count("SuperNode ID:") == 5 + 6, seconds=600, what="six SuperNodes")
        shell(more_keys.splitlines()[-1] + "\n" + run_again)
        wait_for(lambda: len(lines()) == 4 + 4, seconds=600, what="three rounds with aggregators")
    assert marked_pids(deployment.mark) == []
    for words in ("accuracy", "an observer of the model", "against the server", "nobody is trusted"):
        assert all(words in line for line in lines())
    assert "inf if nobody is trusted" in lines()[-1]
    assert log.read_text().count("shuffle: aggregator") >= 2, log.read_text()
