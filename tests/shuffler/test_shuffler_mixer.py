import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sealing import SIZE, Parties, round_context

from shuffle_plugins.shuffler import (
    BatchRefused,
    MixedBatch,
    Mixer,
    Refusal,
    ShuffleError,
    SpentTokens,
    envelope_size,
    open_reports,
)
from shuffle_plugins.shuffler import envelopes as envelopes_module
from shuffle_plugins.shuffler.keys import (
    generate_sealing_key,
    generate_service_key,
    generate_signing_key,
    public_key_bytes,
    write_private_key,
)

REPORTS = [bytes([i]) * SIZE for i in range(6)]


@pytest.fixture
def parties() -> Parties:
    return Parties()


@pytest.fixture
def mixer(parties: Parties, tmp_path: Path) -> Mixer:
    return parties.mixer(tmp_path / "state", minimum=3)


def envelopes_of(parties: Parties, *reports: bytes | None) -> list[bytes]:
    return [parties.envelope(report, client=i) for i, report in enumerate(reports)]


def mixed(mixer: Mixer, parties: Parties, envelopes: list[bytes], **more: int) -> MixedBatch:
    values: dict[str, int] = {"size": envelope_size(SIZE), **more}
    return mixer.mix(envelopes, context=parties.context, analyzer_key=parties.analyzer_key, **values)


def refusal(mixer: Mixer, parties: Parties, envelopes: list[bytes], **more: int) -> Refusal:
    with pytest.raises(BatchRefused) as refused:
        mixed(mixer, parties, envelopes, **more)
    return refused.value.code


def dropped(
    mixer: Mixer, parties: Parties, envelopes: list[bytes], *, bad: dict[int, Refusal], reports: list[bytes]
) -> None:
    """These envelopes are dropped, and nothing else is."""
    batch = mixed(mixer, parties, envelopes)
    found = open_reports(batch.reports, context=parties.context, analyzer_private_key=parties.analyzer)
    assert sorted(found) == sorted(reports)
    assert (batch.answered, batch.rejected) == (len(envelopes) - len(bad), bad)


def test_reports_come_out_and_dummies_do_not(parties: Parties, mixer: Mixer) -> None:
    batch = mixed(mixer, parties, envelopes_of(parties, *REPORTS[:4], None, None))
    reports = open_reports(batch.reports, context=parties.context, analyzer_private_key=parties.analyzer)
    assert (sorted(reports), batch.answered) == (REPORTS[:4], 6)


def test_order_of_arrival_is_forgotten(parties: Parties, tmp_path: Path) -> None:
    """Where each of three reports lands, over many rounds: each place equally often, whichever came first."""
    mixer = parties.mixer(tmp_path / "state")
    landed = [[0, 0, 0] for _ in range(3)]
    rounds = 200
    for _ in range(rounds):
        parties.context = round_context()
        batch = mixed(mixer, parties, envelopes_of(parties, *REPORTS[:3]))
        reports = open_reports(batch.reports, context=parties.context, analyzer_private_key=parties.analyzer)
        for place, report in enumerate(reports):
            landed[report[0]][place] += 1
    for places in landed:
        assert sum(places) == rounds
        assert all(abs(count - rounds / 3) < 6 * (rounds * 2 / 9) ** 0.5 for count in places)


def test_only_reports_count_for_the_minimum(parties: Parties, mixer: Mixer) -> None:
    assert refusal(mixer, parties, envelopes_of(parties, *REPORTS[:2], *[None] * 4)) is Refusal.UNDER_MINIMUM
    parties.context = round_context()
    assert len(mixed(mixer, parties, envelopes_of(parties, *REPORTS[:3])).reports) == 3
    parties.context = round_context()
    assert refusal(mixer, parties, []) is Refusal.UNDER_MINIMUM


def test_the_asker_may_want_more_but_not_less(parties: Parties, mixer: Mixer) -> None:
    assert refusal(mixer, parties, envelopes_of(parties, *REPORTS[:4]), minimum=5) is Refusal.UNDER_MINIMUM
    parties.context = round_context()
    assert refusal(mixer, parties, envelopes_of(parties, *REPORTS[:2]), minimum=2) is Refusal.UNDER_MINIMUM
    with pytest.raises(ValueError, match="at least 2"):
        mixed(mixer, parties, [], minimum=1)


def test_of_one_signers_envelopes_the_first_counts(parties: Parties, mixer: Mixer) -> None:
    envelopes = envelopes_of(parties, *REPORTS)
    again = parties.envelope(REPORTS[0], client=1)
    dummy_too = parties.envelope(None, client=0)
    bad = dict.fromkeys((6, 7, 8), Refusal.DUPLICATE)
    dropped(mixer, parties, [*envelopes, envelopes[0], again, dummy_too], bad=bad, reports=REPORTS)


def test_an_envelope_of_another_size_is_dropped(parties: Parties, mixer: Mixer) -> None:
    """Or the length of what is inside would say whose it is."""
    envelopes = envelopes_of(parties, *REPORTS)
    envelopes[5] = parties.envelope(REPORTS[0] + b"x", client=5, size=SIZE + 1)
    dropped(mixer, parties, envelopes, bad={5: Refusal.WRONG_SIZE}, reports=REPORTS[:5])


@pytest.mark.parametrize("place", [0, 3, 5])
@pytest.mark.parametrize("byte", [0, 40, 120, -1])
def test_one_altered_envelope_is_dropped(parties: Parties, mixer: Mixer, place: int, byte: int) -> None:
    envelopes = envelopes_of(parties, *REPORTS)
    altered = bytearray(envelopes[place])
    altered[byte] ^= 1
    envelopes[place] = bytes(altered)
    left = REPORTS[:place] + REPORTS[place + 1 :]
    dropped(mixer, parties, envelopes, bad={place: Refusal.UNREADABLE}, reports=left)


def test_garbage_strangers_and_other_rounds_are_dropped_one_by_one(parties: Parties, mixer: Mixer) -> None:
    other_round = Parties(clients=parties.clients, mixer_key=parties.mixer_key, analyzer=parties.analyzer)
    envelopes = [
        os.urandom(envelope_size(SIZE)),
        parties.envelope(REPORTS[0], client=0),
        parties.envelope(REPORTS[5], signing_key=generate_signing_key()),
        parties.envelope(REPORTS[1], client=1),
        other_round.envelope(REPORTS[5], client=5),
        parties.envelope(REPORTS[2], client=2),
        bytes(envelope_size(SIZE)),
    ]
    bad = {0: Refusal.UNREADABLE, 2: Refusal.UNKNOWN_SIGNER, 4: Refusal.UNREADABLE, 6: Refusal.UNREADABLE}
    dropped(mixer, parties, envelopes, bad=bad, reports=REPORTS[:3])


def test_good_envelopes_alone_count_for_the_minimum(parties: Parties, mixer: Mixer) -> None:
    """So nobody can fill a batch up with garbage, nor thin it out by altering envelopes."""
    envelopes = [*envelopes_of(parties, *REPORTS[:2]), *[os.urandom(envelope_size(SIZE)) for _ in range(9)]]
    with pytest.raises(BatchRefused) as refused:
        mixed(mixer, parties, envelopes)
    assert refused.value.code is Refusal.UNDER_MINIMUM
    assert refused.value.rejected == dict.fromkeys(range(2, 11), Refusal.UNREADABLE)


def test_who_is_not_enrolled_costs_no_signature_check(
    parties: Parties, mixer: Mixer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    original = envelopes_module.Ed25519PublicKey

    class Counting:
        @staticmethod
        def from_public_bytes(key: bytes) -> object:
            checked.append(key)
            return original.from_public_bytes(key)

    monkeypatch.setattr(envelopes_module, "Ed25519PublicKey", Counting)
    strangers = [parties.envelope(REPORTS[0], signing_key=generate_signing_key()) for _ in range(5)]
    garbage = [os.urandom(envelope_size(SIZE)) for _ in range(5)]
    assert mixed(mixer, parties, [*strangers, *envelopes_of(parties, *REPORTS[:3]), *garbage]).answered == 3
    assert set(checked) <= parties.enrolled
    assert len(checked) == 3


def test_envelopes_for_another_mixer_are_unreadable(parties: Parties, mixer: Mixer) -> None:
    other = Parties(clients=parties.clients, context=parties.context, analyzer=parties.analyzer)
    with pytest.raises(BatchRefused) as refused:
        mixed(mixer, parties, envelopes_of(other, *REPORTS))
    assert refused.value.rejected == dict.fromkeys(range(6), Refusal.UNREADABLE)


def test_a_round_is_mixed_once(parties: Parties, mixer: Mixer, tmp_path: Path) -> None:
    envelopes = envelopes_of(parties, *REPORTS)
    mixed(mixer, parties, envelopes)
    assert refusal(mixer, parties, envelopes) is Refusal.REPLAYED
    assert refusal(mixer, parties, envelopes[1:]) is Refusal.REPLAYED
    assert refusal(parties.mixer(tmp_path / "state"), parties, envelopes) is Refusal.REPLAYED


def test_old_envelopes_are_of_no_use_in_a_new_round(parties: Parties, mixer: Mixer) -> None:
    envelopes = envelopes_of(parties, *REPORTS)
    mixed(mixer, parties, envelopes)
    parties.context = round_context()
    with pytest.raises(BatchRefused) as refused:
        mixed(mixer, parties, envelopes)
    assert refused.value.code is Refusal.UNDER_MINIMUM
    assert set(refused.value.rejected.values()) == {Refusal.UNREADABLE}


def test_a_refused_round_is_spent(parties: Parties, mixer: Mixer) -> None:
    """Or a server could drop envelopes one by one, and see by the minimum who sent a dummy."""
    envelopes = envelopes_of(parties, *REPORTS[:3], None)
    assert refusal(mixer, parties, envelopes[1:]) is Refusal.UNDER_MINIMUM
    assert refusal(mixer, parties, envelopes) is Refusal.REPLAYED


def test_what_is_said_of_a_refusal_does_not_depend_on_who_is_at_fault(parties: Parties, mixer: Mixer) -> None:
    said = set()
    for place in range(6):
        parties.context = round_context()
        envelopes = envelopes_of(parties, *REPORTS[:2], *[None] * 4)
        envelopes[place] = parties.envelope(None, signing_key=generate_signing_key())
        with pytest.raises(BatchRefused) as refused:
            mixed(mixer, parties, envelopes)
        assert refused.value.__cause__ is None
        assert refused.value.args == (str(refused.value),)
        said.add(str(refused.value))
    assert len(said) == 1


@pytest.mark.parametrize("code", Refusal)
def test_refusals_travel(code: Refusal) -> None:
    rejected = {3: Refusal.UNREADABLE}
    error = pickle.loads(pickle.dumps(BatchRefused(code, rejected)))
    assert (error.code, error.rejected, str(error)) == (code, rejected, str(BatchRefused(code)))
    assert str(code) in str(error)


def test_a_mixer_without_its_state_does_not_start(parties: Parties, tmp_path: Path) -> None:
    def start(state: Path) -> None:
        Mixer(key=parties.mixer_key, enrolled=parties.enrolled, minimum=2, state=state)

    with pytest.raises(ShuffleError, match="no state file"):
        start(tmp_path / "state")
    assert not (tmp_path / "state").exists()
    SpentTokens.create(tmp_path / "other", public_key=public_key_bytes(generate_sealing_key()))
    with pytest.raises(ShuffleError, match="another mixer's key"):
        start(tmp_path / "other")
    (tmp_path / "text").write_text("not a database, but long enough to be taken for one" * 50)
    with pytest.raises(ShuffleError, match="cannot be used"):
        start(tmp_path / "text")
    (tmp_path / "empty").touch()
    with pytest.raises(ShuffleError, match="not the state file"):
        start(tmp_path / "empty")
    sqlite3.connect(tmp_path / "foreign").executescript("CREATE TABLE spent (token BLOB)")
    with pytest.raises(ShuffleError, match="not the state file"):
        start(tmp_path / "foreign")
    SpentTokens.create(tmp_path / "newer", public_key=parties.mixer_key.public.sealing)
    sqlite3.connect(tmp_path / "newer").execute("PRAGMA user_version=2")
    with pytest.raises(ShuffleError, match="version 2"):
        start(tmp_path / "newer")


def test_state_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    SpentTokens.create(tmp_path / "state", public_key=bytes(32))
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        SpentTokens.create(tmp_path / "state", public_key=bytes(32))
    with pytest.raises(ShuffleError):
        SpentTokens.create(tmp_path / "new", public_key=bytes(31))
    assert not (tmp_path / "new").exists()


def test_a_state_that_cannot_be_written_stops_the_mixer(
    parties: Parties, mixer: Mixer, tmp_path: Path
) -> None:
    sqlite3.connect(tmp_path / "state").executescript("DROP TABLE spent")
    with pytest.raises(ShuffleError, match="cannot be used"):
        mixed(mixer, parties, envelopes_of(parties, *REPORTS))


@pytest.mark.parametrize("enrolled", [frozenset(), frozenset({b"short"}), frozenset({bytes(32), bytes(33)})])
def test_a_mixer_knows_its_clients(
    parties: Parties, mixer: Mixer, tmp_path: Path, enrolled: frozenset[bytes]
) -> None:
    with pytest.raises(ShuffleError, match="enrolled"):
        Mixer(key=parties.mixer_key, enrolled=enrolled, minimum=2, state=tmp_path / "state")
    for minimum in (1, True, 2.5):
        with pytest.raises(ValueError, match="at least 2"):
            Mixer(
                key=parties.mixer_key,
                enrolled=parties.enrolled,
                minimum=minimum,  # type: ignore[arg-type]
                state=tmp_path / "state",
            )


# Mixes a batch that lies in a folder, and says how it went; or is killed at a point that its arguments name.
MIXING_PROCESS = """
import os, signal, sys
from pathlib import Path
from shuffle_plugins.shuffler import BatchRefused, Mixer, RoundContext, SpentTokens, mixer as module
from shuffle_plugins.shuffler.keys import read_service_key

folder, token, analyzer, point = Path(sys.argv[1]), *map(bytes.fromhex, sys.argv[2:4]), sys.argv[4]

def killed(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

if point == "opening":
    module.EnvelopeOpener.open = killed
elif point == "permuting":
    module.ExternalPermutation.drain = killed
elif point == "answering":
    module.MixedBatch = killed
elif point == "recording":
    SpentTokens.spend = killed
enrolled = frozenset((folder / "enrolled").read_bytes()[i : i + 32] for i in range(0, 6 * 32, 32))
mixer = Mixer(
    key=read_service_key(folder / "key"), enrolled=enrolled, minimum=2, state=folder / "state"
)
envelopes = [path.read_bytes() for path in sorted(folder.glob("envelope*"))]
context = RoundContext(run="test", token=token, fingerprint=bytes(range(32)))
try:
    size = len(envelopes[0])
    print(len(mixer.mix(envelopes, context=context, analyzer_key=analyzer, size=size).reports))
except BatchRefused as refused:
    print(refused.code)
"""


def start(parties: Parties, folder: Path, *, point: str = "none") -> "subprocess.Popen[str]":
    arguments = [str(folder), parties.context.token.hex(), parties.analyzer_key.hex(), point]
    return subprocess.Popen(
        [sys.executable, "-c", MIXING_PROCESS, *arguments], stdout=subprocess.PIPE, text=True, env=os.environ
    )


@pytest.fixture
def folder(parties: Parties, tmp_path: Path) -> Path:
    parties.mixer(tmp_path / "state")
    write_private_key(tmp_path / "key", parties.mixer_key)
    (tmp_path / "enrolled").write_bytes(b"".join(parties.enrolled))
    for i, envelope in enumerate(envelopes_of(parties, *REPORTS)):
        (tmp_path / f"envelope{i}").write_bytes(envelope)
    return tmp_path


def test_of_processes_that_mix_one_round_one_succeeds(parties: Parties, folder: Path) -> None:
    started = [start(parties, folder) for _ in range(4)]
    said = [process.communicate(timeout=600)[0].strip() for process in started]
    assert sorted(said) == ["6", "replayed", "replayed", "replayed"]


@pytest.mark.parametrize("point", ["recording", "opening", "permuting", "answering"])
def test_a_killed_mixer_never_mixes_the_round_again(parties: Parties, folder: Path, point: str) -> None:
    process = start(parties, folder, point=point)
    assert process.communicate(timeout=600)[0] == ""
    assert process.returncode == -signal.SIGKILL
    then = start(parties, folder).communicate(timeout=600)[0].strip()
    assert then == ("6" if point == "recording" else "replayed")
    parties.context = round_context()
    assert len(mixed(parties.mixer(folder / "state"), parties, envelopes_of(parties, *REPORTS)).reports) == 6


def test_several_reports_of_a_client_come_together_and_leave_apart(tmp_path: Path) -> None:
    parties = Parties(context=round_context(reports=3))
    mixer, size = parties.mixer(tmp_path / "state"), envelope_size(SIZE, reports=3)
    texts = [bytes([i]) * SIZE for i in range(12)]
    envelopes = [parties.envelope(b"".join(texts[3 * i : 3 * i + 3]), client=i, size=SIZE) for i in range(4)]
    dummy = parties.envelope(None, client=4)
    assert {len(envelope) for envelope in [*envelopes, dummy]} == {size}
    # A server that sends an envelope twice, or another client's beside it, gets it once.
    batch = mixed(mixer, parties, [*envelopes, dummy, envelopes[2]], size=size)
    found = open_reports(batch.reports, context=parties.context, analyzer_private_key=parties.analyzer)
    assert sorted(found) == texts
    assert found != texts
    assert (batch.answered, batch.rejected) == (5, {5: Refusal.DUPLICATE})


@pytest.mark.parametrize("told", [1, 2, 4])
def test_no_envelope_opens_in_a_round_of_another_number_of_reports(tmp_path: Path, told: int) -> None:
    """Or a server could have the mixer cut a client's reports in pieces that it recognises."""
    parties = Parties(context=round_context(reports=3))
    envelopes = [parties.envelope(bytes(3 * SIZE), client=i) for i in range(4)]
    parties.context = round_context(reports=told, token=parties.context.token)
    mixer, size = parties.mixer(tmp_path / "state"), len(envelopes[0])
    with pytest.raises(ShuffleError, match=r"under-minimum|do not hold"):
        mixed(mixer, parties, envelopes, size=size)


@pytest.mark.parametrize("size", [envelope_size(SIZE, reports=3) + 1, 300])
def test_envelopes_hold_reports_of_one_size(tmp_path: Path, size: int) -> None:
    """A remainder would be a report of another length, which tells whose it is."""
    parties = Parties(context=round_context(reports=3))
    mixer = parties.mixer(tmp_path / "state")
    with pytest.raises(ShuffleError, match="do not hold 3 reports"):
        mixer.mix([], context=parties.context, analyzer_key=parties.analyzer_key, size=size)


def test_a_malformed_key_spends_no_round(parties: Parties, mixer: Mixer) -> None:
    context = round_context()
    with pytest.raises(ShuffleError, match="32 bytes"):
        mixer.mix([], context=context, analyzer_key=bytes(31), size=envelope_size(SIZE))
    mixer.check_unspent(context)


def test_several_reports_need_a_single_mixer() -> None:
    parties = Parties(context=round_context(reports=2))
    two = [generate_service_key().public.sealing for _ in range(2)]
    with pytest.raises(ShuffleError, match="not a mix cascade"):
        parties.envelope(bytes(2 * SIZE), mixer_key=two)
    with pytest.raises(ShuffleError, match="have 48 bytes, got 24"):
        parties.envelope(bytes(SIZE))
    with pytest.raises(ShuffleError, match="whole number of reports"):
        round_context(reports=0)
