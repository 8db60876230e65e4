"""Mixers in a row, and batches in pieces: what each mixer takes, what it refuses, and what it can tell."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sealing import SIZE, Parties, round_context

from shuffle_plugins.shuffler import (
    BatchRefused,
    BatchRequest,
    BatchSpool,
    EnvelopeOpener,
    ItemsDigest,
    MixedStatement,
    Mixer,
    MixerPublicKey,
    Refusal,
    ShuffleError,
    SpentTokens,
    envelope_size,
    open_reports,
)
from shuffle_plugins.shuffler.keys import (
    MixerKey,
    generate_mixer_key,
    public_key_bytes,
    write_private_key,
)

REPORTS = [bytes([i]) * SIZE for i in range(6)]


@dataclass(kw_only=True)
class Row(Parties):
    """As many mixers as there are keys, each with its own folder, and a server that does as it is told."""

    folder: Path
    keys: list[MixerKey]
    minimum: int = 2

    def __post_init__(self) -> None:
        for position, key in enumerate(self.keys):
            SpentTokens.create(self.folder / f"state{position}", public_key=key.public.sealing)

    @property
    def mixers(self) -> tuple[MixerPublicKey, ...]:
        return tuple(key.public for key in self.keys)

    @property
    def sealing_keys(self) -> list[bytes]:
        return [key.public.sealing for key in self.keys]

    def at(self, position: int) -> Mixer:
        return Mixer(
            key=self.keys[position],
            enrolled=self.enrolled,
            minimum=self.minimum,
            state=self.folder / f"state{position}",
        )

    def spool(self, position: int, **options: Any) -> BatchSpool:
        return BatchSpool(self.folder / f"spool{position}", **options)

    def envelopes(self, *reports: bytes | None) -> list[bytes]:
        return [
            self.envelope(report, client=i, mixer_key=self.sealing_keys) for i, report in enumerate(reports)
        ]

    def size(self, position: int) -> int:
        return envelope_size(SIZE, mixers=len(self.keys), position=position)

    def request(
        self,
        items: Sequence[bytes],
        *,
        position: int = 0,
        previous: MixedStatement | None = None,
        **changes: Any,
    ) -> BatchRequest:
        size = self.size(position)
        values = {
            "context": self.context,
            "analyzer_key": self.analyzer_key,
            "mixers": self.mixers,
            "position": position,
            "minimum": 2,
            "size": size,
            "count": len(items),
            "inputs": ItemsDigest.of(items, size=size).value(),
            "previous": previous,
        }
        return BatchRequest(**{**values, **changes})

    def step(
        self,
        items: Sequence[bytes],
        *,
        position: int = 0,
        previous: MixedStatement | None = None,
        piece: int = 2,
    ) -> tuple[list[bytes], MixedStatement]:
        """One mixer's work, its items in pieces."""
        request = self.request(items, position=position, previous=previous)
        spool, mixer = self.spool(position), self.at(position)
        spool.begin(request, mixer=mixer, row=self.mixers)
        for first in range(0, len(items), piece):
            spool.put(request, items[first : first + piece], first=first)
        said = spool.mix(request, mixer=mixer)
        taken: list[bytes] = []
        while len(taken) < said.count:
            count = min(piece, said.count - len(taken))
            taken += spool.take(request, first=len(taken), count=count, size=self.size(position + 1))
        assert said.outputs == ItemsDigest.of(taken, size=self.size(position + 1)).value()
        key = self.mixers[position].verifying
        assert request.statement(said).holds(said.signature, verifying_key=key)
        return taken, said

    def opened(self, items: Sequence[bytes]) -> list[bytes]:
        return open_reports(items, context=self.context, analyzer_private_key=self.analyzer)


@pytest.fixture(params=[1, 2, 3])
def row(request: pytest.FixtureRequest, tmp_path: Path) -> Row:
    return Row(folder=tmp_path, keys=[generate_mixer_key() for _ in range(request.param)])


@pytest.fixture
def two(tmp_path: Path) -> Row:
    return Row(folder=tmp_path, keys=[generate_mixer_key() for _ in range(2)])


def refused(call: Any, *args: Any, **kwargs: Any) -> Refusal:
    with pytest.raises(BatchRefused) as error:
        call(*args, **kwargs)
    return error.value.code


def test_reports_come_through_all_mixers_in_pieces(row: Row) -> None:
    """Everything but dummies; lengths are equal at every layer; nothing is left on any disk."""
    items, said = row.envelopes(*REPORTS[:4], None, REPORTS[5]), None
    for position in range(len(row.keys)):
        assert {len(item) for item in items} == {row.size(position)}
        items, said = row.step(items, position=position, previous=said)
        assert said.rejected == {}
        assert (said.answered, said.count) == ((6, 5) if position == 0 else (5, 5))
        assert not set(items) & set(row.envelopes(*REPORTS))
    assert {len(item) for item in items} == {row.size(len(row.keys))}
    assert sorted(row.opened(items)) == [*REPORTS[:4], REPORTS[5]]
    for position in range(len(row.keys)):
        assert list((row.folder / f"spool{position}").iterdir()) == []


def test_each_mixer_permutes(two: Row) -> None:
    """With the other mixer's order known, both orders of two reports come out, of each mixer alone."""
    seen: list[set[tuple[int, ...]]] = [set(), set()]
    for _ in range(30):
        two.context = round_context()
        items, said = two.envelopes(*REPORTS[:2]), None
        for position in range(2):
            opener = EnvelopeOpener(
                context=two.context,
                analyzer_key=two.analyzer_key,
                private_key=two.keys[position].sealing,
                enrolled=two.enrolled,
                mixer_keys=two.sealing_keys,
            )
            inside = [opener.open(item).inner for item in items]
            items, said = two.step(items, position=position, previous=said)
            seen[position].add(tuple(inside.index(item) for item in items))
    assert [len(orders) for orders in seen] == [2, 2]  # a mixer that permutes fails with probability 2**-29


def test_a_later_mixer_sees_no_signer_and_nobody_sees_the_report(two: Row) -> None:
    items, _ = two.step(two.envelopes(*REPORTS))
    opener = EnvelopeOpener(
        context=two.context,
        analyzer_key=two.analyzer_key,
        private_key=two.keys[1].sealing,
        enrolled=two.enrolled,
        mixer_keys=two.sealing_keys,
    )
    for item in items:
        opened = opener.open(item)
        assert opened.signer == b""
        assert not any(public_key_bytes(client) in opened.inner for client in two.clients)
        assert not any(report in opened.inner for report in REPORTS)


def changed(items: list[bytes], change: str) -> list[bytes]:
    """What a relay makes of a batch."""
    return {
        "replace": [os.urandom(len(items[0])), *items[1:]],
        "drop": items[1:],
        "repeat": [*items[:-1], items[0]],
        "reorder": items[::-1],
        "tag": [bytes([items[0][0] ^ 1]) + items[0][1:], *items[1:]],
    }[change]


@pytest.mark.parametrize("change", ["replace", "drop", "repeat", "reorder", "tag"])
def test_between_mixers_nothing_can_be_changed(two: Row, change: str) -> None:
    """By who relays: a later mixer takes what the one before it has signed, item for item, in its order."""
    items, said = two.step(two.envelopes(*REPORTS))
    open_lie = two.request(changed(items, change), position=1, previous=said)
    assert refused(two.spool(1).begin, open_lie, mixer=two.at(1), row=two.mixers) is Refusal.NOT_PROVEN
    two.context = round_context()
    items, said = two.step(two.envelopes(*REPORTS))
    request, spool, mixer = two.request(items, position=1, previous=said), two.spool(1), two.at(1)
    spool.begin(request, mixer=mixer, row=two.mixers)
    spool.put(request, changed(items, change), first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNREADABLE
    assert refused(spool.mix, request, mixer=mixer) is Refusal.WRONG_ROUND


def test_what_a_first_mixer_tags_repeats_or_takes_from_elsewhere_is_dropped(two: Row) -> None:
    """It signs what it likes, but no ciphertext opens that a client has not made for this round and row."""
    honest, _ = two.step(two.envelopes(*REPORTS))
    old = honest[5]
    two.context = round_context()
    items, _ = two.step(two.envelopes(*REPORTS))
    cheated = [*items[:3], items[0], bytes([items[4][0] ^ 1]) + items[4][1:], old]
    said = MixedStatement(
        request=bytes(32),
        answered=6,
        count=6,
        outputs=ItemsDigest.of(cheated, size=two.size(1)).value(),
    )
    signature = two.at(0).sign(two.request(two.envelopes(*REPORTS)).statement(said))
    given, said = two.step(cheated, position=1, previous=replace(said, signature=signature))
    assert dict(said.rejected) == {3: Refusal.DUPLICATE, 4: Refusal.UNREADABLE, 5: Refusal.UNREADABLE}
    assert (said.answered, len(two.opened(given))) == (3, 3)


def test_a_later_mixer_counts_for_itself(two: Row) -> None:
    """Dummies that come through, and more items than clients, are found by a mixer that sees no signers."""
    two.minimum = 3
    items = two.envelopes(*REPORTS[:2], None, None)
    opener = EnvelopeOpener(
        context=two.context,
        analyzer_key=two.analyzer_key,
        private_key=two.keys[0].sealing,
        enrolled=two.enrolled,
        mixer_keys=two.sealing_keys,
    )
    let_through = [opener.open(item).inner for item in items]

    def signed(items: list[bytes]) -> MixedStatement:
        outputs = ItemsDigest.of(items, size=two.size(1)).value()
        said = MixedStatement(request=bytes(32), answered=4, count=len(items), outputs=outputs)
        return replace(said, signature=two.at(0).sign(two.request(two.envelopes(None)).statement(said)))

    with pytest.raises(BatchRefused) as under:
        two.step(let_through, position=1, previous=signed(let_through))
    assert under.value.code is Refusal.UNDER_MINIMUM
    two.context = round_context()
    many = [os.urandom(two.size(1)) for _ in range(7)]
    with pytest.raises(BatchRefused) as too_many:
        two.step(many, position=1, previous=signed(many))
    assert too_many.value.code is Refusal.UNKNOWN_SIGNER


def test_a_statement_holds_for_its_round_row_place_and_signer(two: Row) -> None:
    items, said = two.step(two.envelopes(*REPORTS))
    good = two.request(items, position=1, previous=said)
    good.check_previous()
    stranger = generate_mixer_key()
    wrong: list[dict[str, Any]] = [
        {"context": round_context()},
        {"analyzer_key": bytes(32)},
        {"mixers": (stranger.public, two.mixers[1])},
        {"mixers": (*two.mixers, stranger.public)},
        {"mixers": (two.mixers[1], two.mixers[0])},
        {"previous": replace(said, signature=stranger.signing.sign(bytes(32)))},
        {"previous": replace(said, answered=5)},
        {"previous": replace(said, rejected={0: Refusal.DUPLICATE})},
        {"previous": replace(said, request=bytes(32))},
        {"count": 5},
        {"inputs": bytes(32)},
    ]
    for change in wrong:
        with pytest.raises(BatchRefused) as error:
            replace(good, **change).check_previous()
        assert error.value.code is Refusal.NOT_PROVEN
    with pytest.raises(ShuffleError, match="before it"):
        replace(good, previous=None)
    with pytest.raises(ShuffleError, match="position"):
        replace(good, position=2)


def test_layers_open_in_their_own_order_and_place_alone(two: Row) -> None:
    items, _ = two.step(two.envelopes(*REPORTS))
    reversed_keys = two.sealing_keys[::-1]
    for keys in (reversed_keys, [], [*two.sealing_keys, public_key_bytes(two.analyzer)]):
        opener = EnvelopeOpener(
            context=two.context,
            analyzer_key=two.analyzer_key,
            private_key=two.keys[1].sealing,
            enrolled=two.enrolled,
            mixer_keys=keys,
        )
        assert refused(opener.open, items[0]) is Refusal.UNREADABLE
        assert refused(opener.open, two.envelopes(*REPORTS)[0]) is Refusal.UNREADABLE
    with pytest.raises(ShuffleError, match="not one of the mixers"):
        EnvelopeOpener(
            context=two.context,
            analyzer_key=two.analyzer_key,
            private_key=generate_mixer_key().sealing,
            enrolled=two.enrolled,
            mixer_keys=two.sealing_keys,
        )
    for keys in ([], [bytes(31)], [two.sealing_keys[0]] * 2):
        with pytest.raises(ShuffleError):
            two.envelope(REPORTS[0], mixer_key=keys)


def test_a_mixer_works_in_the_row_that_its_operator_pinned(two: Row) -> None:
    stranger = generate_mixer_key().public
    items = two.envelopes(*REPORTS)
    rows = ((), two.mixers[::-1], (*two.mixers, stranger), (stranger, two.mixers[1]))
    for row in rows:
        two.context = round_context()
        with pytest.raises(ShuffleError, match="shuffle-mixer-public-key"):
            two.spool(0).begin(two.request(items), mixer=two.at(0), row=row)
        # The round is spent all the same.
        assert (
            refused(two.spool(0).begin, two.request(items), mixer=two.at(0), row=two.mixers)
            is Refusal.REPLAYED
        )


def pieces_of(row: Row) -> tuple[BatchSpool, Mixer, BatchRequest, list[bytes]]:
    items = row.envelopes(*REPORTS)
    request = row.request(items)
    spool, mixer = row.spool(0), row.at(0)
    spool.begin(request, mixer=mixer, row=row.mixers)
    return spool, mixer, request, items


@pytest.mark.parametrize("place", ["missing", "repeated", "reordered", "longer", "too many", "empty"])
def test_a_piece_out_of_its_place_ends_the_batch(two: Row, place: str) -> None:
    spool, mixer, request, items = pieces_of(two)
    spool.put(request, items[:2], first=0)
    items_then, first = {
        "missing": (items[4:], 4),
        "repeated": (items[:2], 0),
        "reordered": (items[4:6], 4),
        "longer": ([items[2] + b"!", items[3]], 2),
        "too many": ([*items[2:], items[0]], 2),
        "empty": ([], 2),
    }[place]
    assert refused(spool.put, request, items_then, first=first) is Refusal.UNREADABLE
    assert refused(spool.put, request, items[2:4], first=2) is Refusal.WRONG_ROUND
    assert refused(spool.mix, request, mixer=mixer) is Refusal.WRONG_ROUND
    assert refused(spool.begin, request, mixer=mixer, row=two.mixers) is Refusal.REPLAYED


def test_pieces_that_are_not_the_batch_that_was_announced_are_not_mixed(two: Row) -> None:
    spool, mixer, request, items = pieces_of(two)
    spool.put(request, [items[1], items[0], *items[2:]], first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNREADABLE
    two.context = round_context()
    spool, mixer, request, items = pieces_of(two)
    spool.put(request, items[:5], first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNREADABLE
    assert list((two.folder / "spool0").iterdir()) == []


def test_a_batch_is_told_apart_from_others(two: Row) -> None:
    spool, mixer, request, items = pieces_of(two)
    other = replace(request, minimum=3)
    for call in (
        lambda: spool.put(other, items, first=0),
        lambda: spool.mix(other, mixer=mixer),
        lambda: spool.take(request, first=0, count=1, size=10),
        lambda: two.spool(1).put(request, items, first=0),
    ):
        assert refused(call) is Refusal.WRONG_ROUND
    spool.put(request, items, first=0)
    assert spool.mix(request, mixer=mixer).count == 6
    for bounds in ({"first": 0, "count": 7}, {"first": -1, "count": 1}, {"first": 6, "count": 1}):
        assert refused(spool.take, request, size=two.size(1), **bounds) is Refusal.WRONG_ROUND


def test_too_few_reports_are_not_given_out_and_the_round_is_spent(two: Row) -> None:
    items = two.envelopes(REPORTS[0], None, None)
    request = two.request(items)
    spool, mixer = two.spool(0), two.at(0)
    spool.begin(request, mixer=mixer, row=two.mixers)
    spool.put(request, items, first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNDER_MINIMUM
    assert refused(spool.begin, request, mixer=mixer, row=two.mixers) is Refusal.REPLAYED
    assert list((two.folder / "spool0").iterdir()) == []


# A mixer's process that is killed: between two pieces, while it mixes, or between two answers.
KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from shuffle_plugins.shuffler import BatchSpool, ExternalPermutation, Mixer
from shuffle_plugins.shuffler.keys import read_mixer_key

folder, point = Path(sys.argv[1]), sys.argv[2]
request, items, row, enrolled = pickle.loads((folder / "batch").read_bytes())
mixer = Mixer(key=read_mixer_key(folder / "key"), enrolled=enrolled, minimum=2, state=folder / "state0")
spool = BatchSpool(folder / "spool0", memory=64)

def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)

spool.begin(request, mixer=mixer, row=row)
spool.put(request, items[:3], first=0)
if point == "pieces":
    killed()
spool.put(request, items[3:], first=3)
if point == "mixing":
    ExternalPermutation.drain = killed
said = spool.mix(request, mixer=mixer)
killed()
"""


@pytest.mark.process
@pytest.mark.parametrize("point", ["pieces", "mixing", "answers"])
def test_what_a_killed_mixer_leaves_is_refused_and_removed(two: Row, point: str) -> None:
    items = two.envelopes(*REPORTS)
    request = two.request(items)
    write_private_key(two.folder / "key", two.keys[0])
    (two.folder / "batch").write_bytes(pickle.dumps((request, items, two.mixers, two.enrolled)))
    done = subprocess.run([sys.executable, "-c", KILLED, str(two.folder), point], timeout=600)
    assert done.returncode == -9
    left = list((two.folder / "spool0").iterdir())
    assert len(left) == 1
    spool, mixer = two.spool(0), two.at(0)
    if point != "answers":
        assert refused(spool.take, request, first=0, count=1, size=two.size(1)) is Refusal.WRONG_ROUND
    if point == "mixing":
        assert refused(spool.mix, request, mixer=mixer) is Refusal.WRONG_ROUND
    assert refused(spool.begin, request, mixer=mixer, row=two.mixers) is Refusal.REPLAYED
    two.context = round_context()
    items, _ = two.step(two.envelopes(*REPORTS))
    assert len(items) == 6
    assert list((two.folder / "spool0").iterdir()) == []
