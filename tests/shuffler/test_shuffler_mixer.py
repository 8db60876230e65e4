from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from sealing import SIZE, Parties, Row, round_context

from shuffle_plugins.protocols import DecoyHistogram
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.shuffler import BatchRefused, BatchRequest, Mixer, Refusal, ShuffleError, SpentTokens
from shuffle_plugins.shuffler.envelopes import envelope_size
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    ServiceKey,
    SigningKey,
    has_signed,
    public_key_bytes,
    write_private_key,
)
from shuffle_plugins.shuffler.service import refusal_statement, role_statement

REPORTS = [bytes([i]) * SIZE for i in range(6)]


@pytest.fixture
def row(tmp_path: Path) -> Row:
    return Row(folder=tmp_path, minimum=3)


def dropped(row: Row, envelopes: list[bytes], *, bad: dict[int, Refusal], reports: list[bytes]) -> None:
    """These envelopes are dropped, and nothing else is."""
    said, found = row.mixed(envelopes)
    assert sorted(found) == sorted(reports)
    assert (said.answered, said.rejected) == (len(envelopes) - len(bad), bad)


def test_only_reports_count_for_the_minimum_and_the_asker_may_want_more_but_not_less(row: Row) -> None:
    for reports, minimum in ((4, 5), (2, 2)):
        row.context = round_context()
        envelopes = row.envelopes(*REPORTS[:reports], *[None] * (6 - reports))
        assert refused(row.mixed, envelopes, minimum=minimum) is Refusal.UNDER_MINIMUM
    row.context = round_context()
    assert len(row.mixed(row.envelopes(*REPORTS[:3]))[1]) == 3
    with pytest.raises(ValueError, match="at least 2"):
        row.request(row.envelopes(*REPORTS), minimum=1)


def test_of_one_signers_envelopes_the_first_counts(row: Row) -> None:
    envelopes = row.envelopes(*REPORTS)
    again = row.envelope(REPORTS[0], client=1)
    dummy_too = row.envelope(None, client=0)
    bad = dict.fromkeys((6, 7, 8), Refusal.DUPLICATE)
    dropped(row, [*envelopes, envelopes[0], again, dummy_too], bad=bad, reports=REPORTS)


def test_a_batch_with_an_envelope_of_another_size_is_refused(row: Row) -> None:
    """Or the length of what is inside would say whose it is."""
    envelopes = row.envelopes(*REPORTS)
    request = row.request(envelopes)
    envelopes[5] = row.envelope(REPORTS[0] + b"x", client=5, size=SIZE + 1)
    assert refused(row.spool().put, request, envelopes, first=0) is Refusal.UNREADABLE
    with pytest.raises(ShuffleError, match="every item"):
        row.request(envelopes)


def test_garbage_strangers_and_other_rounds_are_dropped_one_by_one(row: Row) -> None:
    other_round = Parties(clients=row.clients, mixer_key=row.mixer_key, analyzer=row.analyzer)
    envelopes = [
        os.urandom(envelope_size(SIZE)),
        row.envelope(REPORTS[0], client=0),
        row.envelope(REPORTS[5], signing_key=SigningKey.generate()),
        row.envelope(REPORTS[1], client=1),
        other_round.envelope(REPORTS[5], client=5),
        row.envelope(REPORTS[2], client=2),
        bytes(envelope_size(SIZE)),
    ]
    bad = {0: Refusal.UNREADABLE, 2: Refusal.UNKNOWN_SIGNER, 4: Refusal.UNREADABLE, 6: Refusal.UNREADABLE}
    dropped(row, envelopes, bad=bad, reports=REPORTS[:3])


def test_good_envelopes_alone_count_for_the_minimum(row: Row) -> None:
    """So nobody can fill a batch up with garbage, nor thin it out by altering envelopes."""
    envelopes = [*row.envelopes(*REPORTS[:2]), *[os.urandom(envelope_size(SIZE)) for _ in range(9)]]
    with pytest.raises(BatchRefused) as error:
        row.mixed(envelopes)
    assert error.value.code is Refusal.UNDER_MINIMUM
    assert error.value.rejected == dict.fromkeys(range(2, 11), Refusal.UNREADABLE)


def test_a_round_is_mixed_once_also_if_it_was_refused(row: Row) -> None:
    """Or a server could drop envelopes one by one, and see by the minimum who sent a dummy."""
    envelopes = row.envelopes(*REPORTS)
    row.mixed(envelopes)
    assert refused(row.mixed, envelopes) is Refusal.REPLAYED
    assert refused(row.mixed, envelopes[1:]) is Refusal.REPLAYED
    row.context = round_context()
    envelopes = row.envelopes(*REPORTS[:3], None)
    assert refused(row.mixed, envelopes[1:]) is Refusal.UNDER_MINIMUM
    assert refused(row.mixed, envelopes) is Refusal.REPLAYED


def test_what_is_said_of_a_refusal_does_not_depend_on_who_is_at_fault(row: Row) -> None:
    said = set()
    for place in range(6):
        row.context = round_context()
        envelopes = row.envelopes(*REPORTS[:2], *[None] * 4)
        envelopes[place] = row.envelope(None, signing_key=SigningKey.generate())
        with pytest.raises(BatchRefused) as error:
            row.mixed(envelopes)
        assert error.value.__cause__ is None
        assert error.value.args == (str(error.value),)
        said.add(str(error.value))
    assert len(said) == 1


@pytest.mark.parametrize("code", Refusal)
def test_refusals_travel(code: Refusal) -> None:
    rejected = {3: Refusal.UNREADABLE}
    error = pickle.loads(pickle.dumps(BatchRefused(code, rejected)))
    assert (error.code, error.rejected, str(error)) == (code, rejected, str(BatchRefused(code)))
    assert str(code) in str(error)


def test_a_mixer_without_its_state_does_not_start(row: Row, tmp_path: Path) -> None:
    def start(state: Path) -> None:
        Mixer(key=row.mixer_key, enrolled=row.enrolled, minimum=2, state=state)

    with pytest.raises(ShuffleError, match="no state file"):
        start(tmp_path / "state")
    assert not (tmp_path / "state").exists()
    SpentTokens.create(tmp_path / "other", public_key=public_key_bytes(SealingKey.generate()))
    with pytest.raises(ShuffleError, match="another mixer's key"):
        start(tmp_path / "other")
    sqlite3.connect(tmp_path / "foreign").executescript("CREATE TABLE spent (token BLOB)")
    with pytest.raises(ShuffleError, match="not a mixer's state file"):
        start(tmp_path / "foreign")
    with pytest.raises(ShuffleError, match="enrolled"):
        Mixer(key=row.mixer_key, enrolled=frozenset({b"short"}), minimum=2, state=tmp_path / "state0")


def test_state_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    SpentTokens.create(tmp_path / "state", public_key=bytes(32))
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        SpentTokens.create(tmp_path / "state", public_key=bytes(32))
    with pytest.raises(ShuffleError):
        SpentTokens.create(tmp_path / "new", public_key=bytes(31))
    assert not (tmp_path / "new").exists()


def test_a_state_that_cannot_be_written_stops_the_mixer(row: Row, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "state0").executescript("DROP TABLE spent")
    with pytest.raises(ShuffleError, match="cannot be used"):
        row.mixed(row.envelopes(*REPORTS))


# A mixer's process that takes a batch in two pieces, and is killed at a point that its arguments name.
MIXING_PROCESS = """
import os, pickle, signal, sys
from pathlib import Path
from shuffle_plugins.shuffler import BatchRefused, Mixer, SpentTokens, mixer as module
from shuffle_plugins.shuffler.mixer import BatchSpool
from shuffle_plugins.shuffler.keys import read_service_key

folder, point = Path(sys.argv[1]), sys.argv[2]
request, items, enrolled = pickle.loads((folder / "batch").read_bytes())

def killed(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

if point == "recording":
    SpentTokens.spend = killed
elif point == "opening":
    module.EnvelopeOpener.open = killed
elif point == "shuffling":
    module.ShuffledFile.drain = killed
elif point == "signing":
    Mixer.sign = killed
mixer = Mixer(key=read_service_key(folder / "key"), enrolled=enrolled, minimum=2, state=folder / "state0")
spool = BatchSpool(folder / "spool0", mixer=mixer)
try:
    spool.put(request, items[:3], first=0)
    if point == "pieces":
        killed()
    said = spool.put(request, items[3:], first=3)
    if point == "answers":
        killed()
    print(len(spool.take(request, first=0, most=said.count)))
except BatchRefused as refused:
    print(refused.code)
"""


def start(row: Row, *, point: str = "none") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MIXING_PROCESS, str(row.folder), point],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


@pytest.fixture
def batch(row: Row) -> BatchRequest:
    items = row.envelopes(*REPORTS)
    request = row.request(items)
    write_private_key(row.folder / "key", row.mixer_key)
    (row.folder / "batch").write_bytes(pickle.dumps((request, items, row.enrolled)))
    return request


@pytest.mark.process
def test_of_processes_that_mix_one_round_at_most_one_succeeds(row: Row, batch: BatchRequest) -> None:
    started = [start(row) for _ in range(4)]
    said = [process.communicate(timeout=600)[0].strip() for process in started]
    assert sorted(said) == ["6", "replayed", "replayed", "replayed"]


@pytest.mark.process
@pytest.mark.parametrize("point", ["recording", "pieces", "opening", "shuffling", "signing", "answers"])
def test_a_killed_mixer_never_mixes_the_round_again(row: Row, batch: BatchRequest, point: str) -> None:
    """And what it leaves, whose links between envelopes and reports nobody can read, is removed."""
    process = start(row, point=point)
    assert process.communicate(timeout=600)[0] == ""
    assert process.returncode == -signal.SIGKILL
    (left,) = (row.folder / "spool0").iterdir()
    assert {path.name for path in left.iterdir()} <= {"request", "inputs", "mixing", "outputs"}
    if point != "answers":
        assert refused(row.spool().take, batch, first=0, most=1) is Refusal.WRONG_ROUND
    assert start(row).communicate(timeout=600)[0].strip() == "replayed"
    row.context = round_context()
    assert len(row.mixed(row.envelopes(*REPORTS))[1]) == 6
    assert list((row.folder / "spool0").iterdir()) == []


def test_several_reports_of_a_client_come_together_and_leave_apart(tmp_path: Path) -> None:
    row = Row(folder=tmp_path, context=round_context(reports=3))
    texts = [bytes([i]) * SIZE for i in range(12)]
    envelopes = row.envelopes(*(b"".join(texts[3 * i : 3 * i + 3]) for i in range(4)), None)
    assert {len(envelope) for envelope in envelopes} == {envelope_size(SIZE, reports=3)}
    # A server that sends an envelope twice, or another client's beside it, gets it once.
    said, found = row.mixed([*envelopes, envelopes[2]])
    assert sorted(found) == texts
    assert found != texts
    assert (said.answered, said.rejected) == (5, {5: Refusal.DUPLICATE})


def test_categories_and_decoys_of_a_client_leave_one_by_one(tmp_path: Path) -> None:
    """Envelopes of one length, each with a client's messages and blanks; out come single messages."""
    protocol = DecoyHistogram(categories=3, cohort=4, decoys=2.0)
    reports = protocol.randomize(torch.tensor([0, 0, 1, 2]), randomness=SeededRandomness(3))
    each = protocol.messages(reports, blanks=True)
    assert {len(sent) for sent in each} == {1 + protocol.most_decoys}
    row = Row(folder=tmp_path, context=round_context(reports=1 + protocol.most_decoys))
    padding = bytes(SIZE - 1)
    texts = [b"".join(bytes([label]) + padding for label in sent.fields[0].values.tolist()) for sent in each]
    envelopes = row.envelopes(*texts)
    assert len({len(envelope) for envelope in envelopes}) == 1
    _, mixed = row.mixed(envelopes)
    labels = torch.tensor([text[0] for text in mixed])
    assert labels.tolist() != torch.cat([sent.fields[0].values for sent in each]).tolist()
    found = protocol.total(protocol.message_layout.reports(labels))
    assert torch.equal(found, protocol.total(reports))


@pytest.mark.parametrize("told", [1, 2, 4])
def test_no_envelope_opens_in_a_round_of_another_number_of_reports(tmp_path: Path, told: int) -> None:
    """Or a server could have the mixer cut a client's reports in pieces that it recognises."""
    row = Row(folder=tmp_path, context=round_context(reports=3))
    envelopes = row.envelopes(*[bytes(3 * SIZE)] * 4)
    row.context = round_context(reports=told, token=row.context.token)
    with pytest.raises(ShuffleError, match=r"under-minimum|do not hold"):
        row.mixed(envelopes)


@pytest.mark.parametrize("size", [envelope_size(SIZE, reports=3) + 1, 300])
def test_envelopes_hold_reports_of_one_size(tmp_path: Path, size: int) -> None:
    """A remainder would be a report of another length, which tells whose it is."""
    row = Row(folder=tmp_path, context=round_context(reports=3))
    with pytest.raises(ShuffleError, match="do not hold 3 reports"):
        row.request([bytes(size)])


def test_several_reports_need_a_single_mixer(tmp_path: Path) -> None:
    row = Row(folder=tmp_path, context=round_context(reports=2))
    two = [ServiceKey.generate().public for _ in range(2)]
    with pytest.raises(ShuffleError, match="not a mix cascade"):
        row.envelope(bytes(2 * SIZE), mixer_key=[key.sealing for key in two])
    with pytest.raises(ShuffleError, match="not a mix cascade"):
        row.request(row.envelopes(None), mixers=two)
    with pytest.raises(ShuffleError, match="have 48 bytes, got 24"):
        row.envelope(bytes(SIZE))


def test_a_signature_holds_for_one_statement_and_one_key() -> None:
    role: dict[str, Any] = {"role": "mixer", "challenge": bytes(32), "run": "7", "node": 5}
    role |= {"sealing_key": bytes(32), "minimum": 3}
    changed: list[dict[str, Any]] = [{}, {"role": "aggregator"}, {"challenge": bytes(31) + b"x"}]
    changed += [{"run": "8"}, {"node": 6}, {"node": -5}, {"sealing_key": bytes(31) + b"x"}, {"minimum": 2}]
    refusal: dict[str, Any] = {"request": bytes(32), "code": Refusal.UNDER_MINIMUM, "rejected": {}}
    others: list[dict[str, Any]] = [{}, {"request": bytes(31) + b"x"}, {"code": Refusal.REPLAYED}]
    others += [{"rejected": {0: Refusal.UNREADABLE}}]
    said = [role_statement(**{**role, **change}) for change in changed]
    said += [refusal_statement(**{**refusal, **change}) for change in others]
    assert len(set(said)) == 12
    key = SigningKey.generate()
    signature = key.sign(said[0])
    assert [has_signed(public_key_bytes(key), signature, other) for other in said] == [True] + 11 * [False]
    assert not has_signed(public_key_bytes(SigningKey.generate()), signature, said[0])
    for bad in (b"", bytes(64), bytes(63), b"x" * 200):
        assert not has_signed(public_key_bytes(key), bad, said[0])
        assert not has_signed(b"no key", bad, said[0])
