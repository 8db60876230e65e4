"""Mix cascades, and batches in pieces: what each mixer takes, what it refuses, and what it can tell."""

from __future__ import annotations

import itertools
import os
import pickle
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sealing import SIZE, Parties, round_context

from shuffle_plugins.shuffler import (
    BatchLimits,
    BatchRefused,
    BatchRequest,
    BatchSpool,
    EnvelopeOpener,
    ExternalPermutation,
    ItemsDigest,
    MixedStatement,
    Mixer,
    Refusal,
    ServicePublicKey,
    ShuffleError,
    SpentTokens,
    layer_size,
    open_reports,
    part_sizes,
    ticket_size,
)
from shuffle_plugins.shuffler import spool as spool_module
from shuffle_plugins.shuffler.keys import (
    ServiceKey,
    generate_service_key,
    generate_signing_key,
    public_key_bytes,
    write_private_key,
)
from shuffle_plugins.shuffler.marks import agree, draw_marks, mark_bytes, read_marks

REPORTS = [bytes([i]) * SIZE for i in range(6)]


@dataclass(kw_only=True)
class Row(Parties):
    """As many mixers as there are keys, each with its own folder, and a server that does as it is told."""

    folder: Path
    keys: list[ServiceKey]
    minimum: int = 2

    def __post_init__(self) -> None:
        for position, key in enumerate(self.keys):
            SpentTokens.create(self.folder / f"state{position}", public_key=key.public.sealing)

    @property
    def mixers(self) -> tuple[ServicePublicKey, ...]:
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
        """Bytes of the layer at a position."""
        return layer_size(SIZE, mixers=len(self.keys), position=position)

    def parts(self, envelopes: Sequence[bytes]) -> list[list[bytes]]:
        """The first layers, and the tickets of each later mixer."""
        parts, start = [], 0
        for size in part_sizes(SIZE, mixers=len(self.keys)):
            parts.append([envelope[start : start + size] for envelope in envelopes])
            start += size
        assert {len(envelope) for envelope in envelopes} == {start}
        return parts

    def items(self, layers: Sequence[bytes], envelopes: Sequence[bytes], *, position: int) -> list[bytes]:
        """What a mixer gets: layers, and with them the tickets of the clients' envelopes."""
        tickets = self.parts(envelopes)[position] if position else [b""] * len(layers)
        return [layer + ticket for layer, ticket in zip(layers, tickets, strict=True)]

    def request(
        self,
        items: Sequence[bytes],
        *,
        position: int = 0,
        previous: tuple[MixedStatement, ...] = (),
        **changes: Any,
    ) -> BatchRequest:
        size = self.size(position) + ticket_size(mixers=len(self.keys), position=position)
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
        previous: tuple[MixedStatement, ...] = (),
        piece: int = 2,
    ) -> tuple[list[bytes], MixedStatement]:
        """One mixer's work, its items in pieces."""
        request = self.request(items, position=position, previous=previous)
        spool, mixer = self.spool(position), self.at(position)
        spool.begin(request, mixer=mixer, cascade=self.mixers)
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

    def first(self, envelopes: Sequence[bytes]) -> tuple[list[bytes], MixedStatement]:
        """The first mixer's work."""
        return self.step(self.parts(envelopes)[0])

    def opener(self, position: int, **changes: Any) -> EnvelopeOpener:
        """What the mixer at a position opens with."""
        values = {
            "context": self.context,
            "analyzer_key": self.analyzer_key,
            "private_key": self.keys[position].sealing,
            "enrolled": self.enrolled,
            "mixer_keys": self.sealing_keys,
        }
        return EnvelopeOpener(**{**values, **changes})

    def signed(self, layers: Sequence[bytes], *, masks: tuple[int, ...]) -> MixedStatement:
        """What a first mixer says that signs whatever it likes."""
        said = MixedStatement(
            request=bytes(32),
            answered=len(layers),
            count=len(layers),
            outputs=ItemsDigest.of(layers, size=self.size(1)).value(),
            masks=masks,
        )
        request = self.request(self.parts(self.envelopes(REPORTS[0]))[0])
        return replace(said, signature=self.at(0).sign(request.statement(said)))

    def opened(self, items: Sequence[bytes]) -> list[bytes]:
        return open_reports(items, context=self.context, analyzer_private_key=self.analyzer)


@pytest.fixture(params=[1, 2, 3])
def row(request: pytest.FixtureRequest, tmp_path: Path) -> Row:
    return Row(folder=tmp_path, keys=[generate_service_key() for _ in range(request.param)])


@pytest.fixture
def two(tmp_path: Path) -> Row:
    return Row(folder=tmp_path, keys=[generate_service_key() for _ in range(2)])


def refused(call: Any, *args: Any, **kwargs: Any) -> Refusal:
    with pytest.raises(BatchRefused) as error:
        call(*args, **kwargs)
    return error.value.code


def test_reports_come_through_all_mixers_in_pieces(row: Row) -> None:
    """Everything but dummies; lengths are equal at every layer; nothing is left on any disk."""
    envelopes = row.envelopes(*REPORTS[:4], None, REPORTS[5])
    layers, said = row.parts(envelopes)[0], ()
    last = len(row.keys) - 1
    for position in range(len(row.keys)):
        assert {len(layer) for layer in layers} == {row.size(position)}
        items = row.items(layers, envelopes, position=position)
        layers, one = row.step(items, position=position, previous=said)
        said = (*said, one)
        assert one.rejected == {}
        assert (one.answered, one.count, len(one.masks)) == (6, 5 if position == last else 6, last - position)
    assert {len(layer) for layer in layers} == {row.size(len(row.keys))}
    assert sorted(row.opened(layers)) == [*REPORTS[:4], REPORTS[5]]
    for position in range(len(row.keys)):
        assert list((row.folder / f"spool{position}").iterdir()) == []


def test_each_mixer_permutes(two: Row) -> None:
    """With the other mixer's order known, both orders of two reports come out, of each mixer alone."""
    seen: list[set[tuple[int, ...]]] = [set(), set()]
    for _ in range(30):
        two.context = round_context()
        envelopes, said = two.envelopes(*REPORTS[:2]), ()
        layers = two.parts(envelopes)[0]
        for position in range(2):
            inside = [two.opener(position).open(layer).inner for layer in layers]
            items = two.items(layers, envelopes, position=position)
            layers, one = two.step(items, position=position, previous=said)
            said = (one,)
            seen[position].add(tuple(inside.index(layer) for layer in layers))
    assert [len(orders) for orders in seen] == [2, 2]  # a mixer that permutes fails with probability 2**-29


def test_a_later_mixer_sees_no_signer_in_a_layer_and_nobody_sees_the_report(two: Row) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, _ = two.first(envelopes)
    for layer in layers:
        opened = two.opener(1).open(layer)
        assert opened.signer == b""
        assert not any(public_key_bytes(client) in opened.inner for client in two.clients)
        assert not any(report in opened.inner for report in REPORTS)
    tickets = [two.opener(1).open_ticket(ticket) for ticket in two.parts(envelopes)[1]]
    assert [ticket.signer for ticket in tickets] == [public_key_bytes(client) for client in two.clients]
    assert not {ticket.masked for ticket in tickets} & {two.opener(1).open(layer).mark for layer in layers}


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
    for honest_request in (False, True):
        two.context = round_context()
        envelopes = two.envelopes(*REPORTS)
        layers, said = two.first(envelopes)
        items = two.items(layers, envelopes, position=1)
        other = changed(items, change)
        request = two.request(items if honest_request else other, position=1, previous=(said,))
        spool, mixer = two.spool(1), two.at(1)
        if change == "drop" and not honest_request:
            assert refused(spool.begin, request, mixer=mixer, cascade=two.mixers) is Refusal.NOT_PROVEN
            continue
        spool.begin(request, mixer=mixer, cascade=two.mixers)
        spool.put(request, other, first=0)
        code = refused(spool.mix, request, mixer=mixer)
        if change == "reorder" and not honest_request:
            assert code is Refusal.UNREADABLE  # the layers are in another order than they were signed in
        else:
            assert code in (Refusal.UNREADABLE, Refusal.DUPLICATE, Refusal.INCONSISTENT)
        assert refused(spool.mix, request, mixer=mixer) is Refusal.WRONG_ROUND


def masks_of(row: Row, envelopes: Sequence[bytes]) -> tuple[int, ...]:
    """The first mixer's sums of masks, which it knows."""
    opened = [row.opener(0).open(layer) for layer in row.parts(envelopes)[0]]
    return tuple(sum(masks) % (1 << 128) for masks in zip(*(one.masks for one in opened), strict=True))


CHEATS = ["replace", "replace all but one", "drop", "repeat", "tag", "old", "nothing"]


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_first_mixer_that_cheats_is_found_out(two: Row, cheat: str) -> None:
    """It signs what it likes, with the server's help; the second one gives out nothing but an honest batch.

    For the layers that it leaves out it would have to know their marks.
    """
    old, _ = two.first(two.envelopes(*REPORTS))
    two.context = round_context()
    envelopes = two.envelopes(*REPORTS)
    honest = [two.opener(0).open(layer).inner for layer in two.parts(envelopes)[0]]
    accomplice = two.envelopes(*REPORTS[::-1])  # other layers of the same round, and their marks known
    own = [two.opener(0).open(layer).inner for layer in two.parts(accomplice)[0]]
    layers = {
        "replace": [own[0], *honest[1:]],
        "replace all but one": [honest[0], *own[1:]],
        "drop": honest[1:],
        "repeat": [honest[1], *honest[1:]],
        "tag": [bytes([honest[0][0] ^ 1]) + honest[0][1:], *honest[1:]],
        "old": [old[0], *honest[1:]],
        "nothing": honest,
    }[cheat]
    tickets = two.parts(envelopes)[1][: len(layers)]
    items = [layer + ticket for layer, ticket in zip(layers, tickets, strict=True)]
    said = two.signed(layers, masks=masks_of(two, envelopes[: len(layers)] if cheat == "drop" else envelopes))
    if cheat == "nothing":
        assert len(two.opened(two.step(items, position=1, previous=(said,))[0])) == 6
        return
    assert refused(two.step, items, position=1, previous=(said,)) is Refusal.INCONSISTENT


def test_clients_that_sit_out_cannot_take_the_place_of_others(two: Row) -> None:
    """Their layers are there up to the last mixer, which counts reports for itself."""
    two.minimum = 3
    envelopes = two.envelopes(REPORTS[0], REPORTS[1], None, None)
    honest = [two.opener(0).open(layer).inner for layer in two.parts(envelopes)[0]]
    items = two.items(honest, envelopes, position=1)
    said = two.signed(honest, masks=masks_of(two, envelopes))
    assert refused(two.step, items, position=1, previous=(said,)) is Refusal.UNDER_MINIMUM
    two.context = round_context()
    envelopes = two.envelopes(REPORTS[0], REPORTS[1], None, None)
    honest = [two.opener(0).open(layer).inner for layer in two.parts(envelopes)[0]]
    own = [two.opener(0).open(layer).inner for layer in two.parts(two.envelopes(*REPORTS))[0]]
    layers = [*honest[:2], own[2], own[3]]  # reports of its own instead of the dummies
    said = two.signed(layers, masks=masks_of(two, envelopes))
    items = two.items(layers, envelopes, position=1)
    assert refused(two.step, items, position=1, previous=(said,)) is Refusal.INCONSISTENT


def test_tickets_are_of_enrolled_clients_once_each_and_faults_are_told_by_position(two: Row) -> None:
    stranger = generate_signing_key()
    for place, code in enumerate((Refusal.UNKNOWN_SIGNER, Refusal.DUPLICATE, Refusal.UNREADABLE), 1):
        two.context = round_context()
        envelopes = two.envelopes(*REPORTS)
        tickets = two.parts(envelopes)[1]
        strange = two.envelope(REPORTS[0], mixer_key=two.sealing_keys, signing_key=stranger)
        tickets[place] = {
            Refusal.UNKNOWN_SIGNER: two.parts([strange])[1][0],
            Refusal.DUPLICATE: tickets[0],
            Refusal.UNREADABLE: bytes(len(tickets[0])),
        }[code]
        layers, said = two.first(envelopes)
        items = [layer + ticket for layer, ticket in zip(layers, tickets, strict=True)]
        with pytest.raises(BatchRefused) as error:
            two.step(items, position=1, previous=(said,))
        assert (error.value.code, dict(error.value.rejected)) == (code, {place: code})


def test_tickets_tell_nothing_of_marks_but_their_sum() -> None:
    """All that two colluding later mixers and a server see of three clients' marks, modulo 2, by enumeration.

    The first mixer is honest: of its masks only the sums come out. For every pair of marks with equal sums
    the law of what is seen is the same.
    """
    laws: dict[tuple[int, ...], Counter[Any]] = {}
    for marks in itertools.product(range(2), repeat=2):
        law: Counter[Any] = Counter()
        for masks in itertools.product(range(2), repeat=4):  # two clients, two later mixers
            for others in itertools.product(range(2), repeat=2):  # the second mixer's masks for the third
                seen = []
                for client in range(2):
                    given = masks[2 * client : 2 * client + 2]
                    script = iter([marks[client], marks[client], *given, others[client]])
                    drawn = draw_marks(3, modulus=2, draw=lambda _, script=script: next(script))
                    assert drawn.marks == (0, marks[client], marks[client])
                    assert drawn.masks == (given, (others[client],), ())
                    seen.append((drawn.masked[1], drawn.masked[2], drawn.masks[1]))
                sums = tuple(sum(masks[place::2]) % 2 for place in range(2))
                law[(*seen, sums)] += 1
        laws[marks] = law
    assert laws[(0, 1)] == laws[(1, 0)]
    assert laws[(0, 0)] != laws[(0, 1)]
    for law in laws.values():
        assert agree(masked=0, marks=0, masks=0, modulus=2)
        assert sum(law.values()) == 64


def test_marks_travel_as_whole_numbers_of_16_bytes() -> None:
    values = (0, 1, 1 << 64, (1 << 128) - 1)
    assert read_marks(mark_bytes(*values)) == values
    assert read_marks(b"") == ()
    assert mark_bytes(1 << 128, -1) == mark_bytes(0, (1 << 128) - 1)
    for length in (1, 15, 17):
        with pytest.raises(ValueError, match="a mark has 16 bytes"):
            read_marks(bytes(length))


def test_a_statement_holds_for_its_round_row_place_and_signer(two: Row) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, said = two.first(envelopes)
    good = two.request(two.items(layers, envelopes, position=1), position=1, previous=(said,))
    good.check_previous()
    stranger = generate_service_key()
    wrong: list[dict[str, Any]] = [
        {"context": round_context()},
        {"analyzer_key": bytes(32)},
        {"mixers": (stranger.public, two.mixers[1])},
        {"mixers": (*two.mixers, stranger.public)},
        {"mixers": (two.mixers[1], two.mixers[0])},
        {"previous": (replace(said, signature=stranger.signing.sign(bytes(32))),)},
        {"previous": (replace(said, answered=5),)},
        {"previous": (replace(said, rejected={0: Refusal.DUPLICATE}),)},
        {"previous": (replace(said, request=bytes(32)),)},
        {"previous": (replace(said, outputs=bytes(32)),)},
        {"previous": (replace(said, masks=(said.masks[0] ^ 1,)),)},
        {"previous": (replace(said, masks=()),)},
        {"count": 5},
    ]
    for change in wrong:
        with pytest.raises(BatchRefused) as error:
            replace(good, **change).check_previous()
        assert error.value.code is Refusal.NOT_PROVEN
    with pytest.raises(ShuffleError, match="mixers before"):
        replace(good, previous=())
    with pytest.raises(ShuffleError, match="position"):
        replace(good, position=2)


def test_layers_open_in_their_own_order_and_place_alone(two: Row) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, _ = two.first(envelopes)
    for keys in (two.sealing_keys[::-1], [], [*two.sealing_keys, public_key_bytes(two.analyzer)]):
        opener = two.opener(1, mixer_keys=keys)
        assert refused(opener.open, layers[0]) is Refusal.UNREADABLE
        assert refused(opener.open, two.parts(envelopes)[0][0]) is Refusal.UNREADABLE
        if not opener.first:
            assert refused(opener.open_ticket, two.parts(envelopes)[1][0]) is Refusal.UNREADABLE
    first, _ = two.parts(envelopes)[0][:2]
    assert two.opener(0).open(first)
    stranger = generate_service_key().public.sealing
    assert (
        refused(two.opener(0, mixer_keys=[two.sealing_keys[0], stranger]).open, first) is Refusal.UNREADABLE
    )
    with pytest.raises(ShuffleError, match="not one of the mixers"):
        two.opener(1, private_key=generate_service_key().sealing)
    for keys in ([], [bytes(31)], [two.sealing_keys[0]] * 2):
        with pytest.raises(ShuffleError):
            two.envelope(REPORTS[0], mixer_key=keys)


def test_a_mixer_works_in_the_row_that_its_operator_pinned(two: Row) -> None:
    stranger = generate_service_key().public
    items = two.parts(two.envelopes(*REPORTS))[0]
    rows = ((), two.mixers[::-1], (*two.mixers, stranger), (stranger, two.mixers[1]))
    for row in rows:
        two.context = round_context()
        with pytest.raises(ShuffleError, match="shuffle-mixer-public-key"):
            two.spool(0).begin(two.request(items), mixer=two.at(0), cascade=row)
        # The round is spent all the same.
        assert (
            refused(two.spool(0).begin, two.request(items), mixer=two.at(0), cascade=two.mixers)
            is Refusal.REPLAYED
        )


def pieces_of(row: Row) -> tuple[BatchSpool, Mixer, BatchRequest, list[bytes]]:
    items = row.parts(row.envelopes(*REPORTS))[0]
    request = row.request(items)
    spool, mixer = row.spool(0), row.at(0)
    spool.begin(request, mixer=mixer, cascade=row.mixers)
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
    assert refused(spool.begin, request, mixer=mixer, cascade=two.mixers) is Refusal.REPLAYED


def test_pieces_that_are_not_the_batch_that_was_announced_are_not_mixed(two: Row) -> None:
    spool, mixer, request, items = pieces_of(two)
    spool.put(request, [items[1], items[0], *items[2:]], first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNREADABLE
    two.context = round_context()
    spool, mixer, request, items = pieces_of(two)
    spool.put(request, items[:5], first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNREADABLE
    assert list((two.folder / "spool0").iterdir()) == []


@pytest.mark.parametrize("size", [1 << 35, 1 << 60])
def test_a_batch_of_items_that_nobody_can_send_is_refused(
    two: Row, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announced alone, where an operator allows it and has the disk, it takes no memory."""
    request = replace(two.request(two.parts(two.envelopes(*REPORTS))[0]), size=size)
    monkeypatch.setattr(spool_module, "_free", lambda folder: 1 << 90)
    spool, mixer = two.spool(0, limits=BatchLimits(most_bytes=1 << 80)), two.at(0)
    spool.begin(request, mixer=mixer, cascade=two.mixers)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNREADABLE
    assert list((two.folder / "spool0").iterdir()) == []


def files_under(folder: Path) -> list[tuple[Path, bytes]]:
    return sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("announced", [{"size": 1 << 35}, {"size": 1 << 60}, {"count": 10_000_001}])
def test_no_server_can_fill_a_mixers_disk(two: Row, announced: dict[str, int]) -> None:
    """By default 64 GiB or 10 million reports: what is beyond is refused before anything is written."""
    request = two.request(two.parts(two.envelopes(*REPORTS))[0])
    spool, mixer, before = two.spool(0), two.at(0), files_under(two.folder)
    large = replace(request, **announced)
    assert refused(spool.begin, large, mixer=mixer, cascade=two.mixers) is Refusal.TOO_LARGE
    assert files_under(two.folder) == before
    assert not (two.folder / "spool0").exists()
    spool.begin(request, mixer=mixer, cascade=two.mixers)  # the round was not spent


def test_all_batches_under_way_count_until_their_last_piece_is_out(two: Row) -> None:
    """Runs of their own, since a new batch takes the place of an earlier one of its run."""
    limits = {"reports": BatchLimits(most_reports=12), "bytes": BatchLimits(most_bytes=3 << 16)}
    for limit in limits.values():
        begun = []
        for run in ("first", "second"):
            two.context = round_context(run=run)
            items = two.parts(two.envelopes(*REPORTS))[0]
            begun.append((two.request(items), items))
            two.spool(0, limits=limit).begin(begun[-1][0], mixer=two.at(0), cascade=two.mixers)
        two.context = round_context(run="third")
        third = two.request(two.parts(two.envelopes(*REPORTS))[0])
        spool, mixer = two.spool(0, limits=limit), two.at(0)
        assert refused(spool.begin, third, mixer=mixer, cascade=two.mixers) is Refusal.TOO_LARGE
        request, items = begun[0]
        spool.put(request, items, first=0)
        said = spool.mix(request, mixer=mixer)
        assert refused(spool.begin, third, mixer=mixer, cascade=two.mixers) is Refusal.TOO_LARGE
        spool.take(request, first=0, count=said.count, size=two.size(1))
        spool.begin(third, mixer=mixer, cascade=two.mixers)
        for request in (begun[1][0], third):
            assert refused(spool.put, request, [], first=0) is Refusal.UNREADABLE  # ends the batch


def test_a_spent_round_that_is_too_large_is_a_replay(two: Row) -> None:
    """TOO_LARGE says that nothing was ever mixed, so it must not be said of a round that was."""
    spool, mixer, request, _ = pieces_of(two)
    assert Refusal.TOO_LARGE.conclusive
    large = replace(request, size=1 << 60)
    assert refused(spool.begin, large, mixer=mixer, cascade=two.mixers) is Refusal.REPLAYED


def test_of_two_processes_that_begin_at_once_not_both_go_beyond_the_limit(
    two: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (two.spool(0, limits=BatchLimits(most_reports=11)) for _ in range(2))
    requests = []
    for run in ("first", "second"):
        two.context = round_context(run=run)
        requests.append(two.request(two.parts(two.envelopes(*REPORTS))[0]))
    sweep = BatchSpool._sweep

    def meanwhile(spool: BatchSpool, run: bytes) -> None:
        monkeypatch.setattr(BatchSpool, "_sweep", sweep)
        second.begin(requests[1], mixer=two.at(0), cascade=two.mixers)
        spool._sweep(run)

    monkeypatch.setattr(BatchSpool, "_sweep", meanwhile)
    assert refused(first.begin, requests[0], mixer=two.at(0), cascade=two.mixers) is Refusal.TOO_LARGE
    assert len(list((two.folder / "spool0").iterdir())) == 1


def test_a_batch_that_does_not_fit_on_the_disk_is_refused(two: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    request = two.request(two.parts(two.envelopes(*REPORTS))[0])
    need = 2 * request.count * request.size
    for free, fits in ((need - 1, False), (need, True)):
        monkeypatch.setattr(spool_module, "_free", lambda folder, free=free: free)
        if fits:
            two.spool(0).begin(request, mixer=two.at(0), cascade=two.mixers)
        else:
            code = refused(two.spool(0).begin, request, mixer=two.at(0), cascade=two.mixers)
            assert code is Refusal.TOO_LARGE


def test_batches_that_have_not_come_yet_take_room_on_the_disk_too(
    two: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches announced one after another each alone would fit on an empty disk, and all would fill it."""
    requests = []
    for run in ("first", "second"):
        two.context = round_context(run=run)
        items = two.parts(two.envelopes(*REPORTS))[0]
        requests.append((two.request(items), items))
    (first, items), (second, _) = requests
    one = 2 * first.count * first.size
    spool, mixer = two.spool(0), two.at(0)
    monkeypatch.setattr(spool_module, "_free", lambda folder: one)
    spool.begin(first, mixer=mixer, cascade=two.mixers)
    assert refused(spool.begin, second, mixer=mixer, cascade=two.mixers) is Refusal.TOO_LARGE
    spool.put(first, items, first=0)  # half of what it may take is on the disk now
    monkeypatch.setattr(spool_module, "_free", lambda folder: one + one // 2)
    spool.begin(second, mixer=mixer, cascade=two.mixers)


def test_what_the_mixers_before_have_signed_holds_until_the_batch_is_mixed(two: Row) -> None:
    """A server begins with a signed statement, and then names other layers under the same signature."""
    envelopes = two.envelopes(*REPORTS)
    layers, said = two.first(envelopes)
    turned = layers[::-1]
    items = two.items(turned, envelopes, position=1)
    request = two.request(items, position=1, previous=(said,))
    spool, mixer = two.spool(1), two.at(1)
    spool.begin(request, mixer=mixer, cascade=two.mixers)
    spool.put(request, items, first=0)
    other = replace(said, outputs=ItemsDigest.of(turned, size=two.size(1)).value())
    assert refused(spool.mix, replace(request, previous=(other,)), mixer=mixer) is Refusal.NOT_PROVEN


def test_other_files_in_the_folder_of_batches_do_no_harm(two: Row) -> None:
    (two.folder / "spool0").mkdir()
    (two.folder / "spool0" / "notes").write_text("of the operator")
    pieces_of(two)
    assert (two.folder / "spool0" / "notes").exists()


def test_files_that_cannot_be_used_are_told_in_a_sentence(two: Row) -> None:
    (two.folder / "spool0").write_text("no folder")
    with pytest.raises(ShuffleError, match="the mixer's files of a batch cannot be used"):
        pieces_of(two)


def test_a_row_of_too_many_mixers_is_refused(two: Row) -> None:
    request = two.request(two.parts(two.envelopes(*REPORTS))[0])
    with pytest.raises(ShuffleError, match="mixers of a cascade"):
        replace(request, mixers=two.mixers * 200)


@pytest.mark.parametrize(
    "change", [{"analyzer_key": bytes(31)}, {"analyzer_key": bytes(33)}, {"inputs": bytes(31)}], ids=str
)
def test_a_request_with_a_key_or_a_digest_of_another_size_is_refused(
    two: Row, change: dict[str, bytes]
) -> None:
    request = two.request(two.parts(two.envelopes(*REPORTS))[0])
    with pytest.raises(ShuffleError, match="an analyzer's key has 32 bytes, a digest 32"):
        replace(request, **change)  # type: ignore[arg-type]


def test_items_are_told_apart_only_if_all_have_the_same_size() -> None:
    """Their sizes are not in the digest: with items of other sizes, other items could have the same one."""
    digest = ItemsDigest.of([b"ab", b"cd"], size=2)
    for item in (b"", b"a", b"abc"):
        with pytest.raises(ShuffleError, match=f"has 2 bytes, got {len(item)}$"):
            digest.add(item)
    assert digest.count == 2
    assert digest.value() == ItemsDigest.of([b"ab", b"cd"], size=2).value()


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


def test_a_batch_is_mixed_once(two: Row) -> None:
    """Also if the mixer was killed while it mixed: then its pieces lie under another name."""
    for killed in (False, True):
        two.context = round_context()
        spool, mixer, request, items = pieces_of(two)
        spool.put(request, items, first=0)
        if killed:
            (folder,) = (two.folder / "spool0").iterdir()
            os.rename(folder / "inputs", folder / "mixing")
        else:
            assert spool.mix(request, mixer=mixer).count == 6
        assert refused(spool.mix, request, mixer=mixer) is Refusal.WRONG_ROUND
        assert list((two.folder / "spool0").iterdir()) == []


def test_files_of_a_batch_are_for_their_owner_alone(two: Row) -> None:
    before = os.umask(0)
    try:
        pieces_of(two)
    finally:
        os.umask(before)
    (folder,) = (two.folder / "spool0").iterdir()
    assert stat.S_IMODE((two.folder / "spool0").stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "inputs").stat().st_mode) == 0o600


def test_too_few_reports_are_not_given_out_and_the_round_is_spent(two: Row) -> None:
    items = two.parts(two.envelopes(REPORTS[0], None, None))[0]
    request = two.request(items)
    spool, mixer = two.spool(0), two.at(0)
    spool.begin(request, mixer=mixer, cascade=two.mixers)
    spool.put(request, items, first=0)
    assert refused(spool.mix, request, mixer=mixer) is Refusal.UNDER_MINIMUM
    assert refused(spool.begin, request, mixer=mixer, cascade=two.mixers) is Refusal.REPLAYED
    assert list((two.folder / "spool0").iterdir()) == []


# A mixer's process that is killed: between two pieces, while it mixes, or between two answers.
KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from shuffle_plugins.shuffler import BatchSpool, ExternalPermutation, Mixer
from shuffle_plugins.shuffler.keys import read_service_key

folder, point = Path(sys.argv[1]), sys.argv[2]
request, items, row, enrolled = pickle.loads((folder / "batch").read_bytes())
mixer = Mixer(key=read_service_key(folder / "key"), enrolled=enrolled, minimum=2, state=folder / "state0")
spool = BatchSpool(folder / "spool0", memory=64)

def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)

spool.begin(request, mixer=mixer, cascade=row)
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
    items = two.parts(two.envelopes(*REPORTS))[0]
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
    assert refused(spool.begin, request, mixer=mixer, cascade=two.mixers) is Refusal.REPLAYED
    two.context = round_context()
    items, _ = two.first(two.envelopes(*REPORTS))
    assert len(items) == 6
    assert list((two.folder / "spool0").iterdir()) == []


def test_a_batch_that_does_not_fit_in_memory_is_mixed_all_the_same(
    two: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = []
    original = ExternalPermutation.drain

    def noted(self: ExternalPermutation) -> Any:
        spilled.append(self.spilled)
        return original(self)

    monkeypatch.setattr(ExternalPermutation, "drain", noted)
    envelopes = two.envelopes(*REPORTS)
    items = two.parts(envelopes)[0]
    request, spool, mixer = two.request(items), two.spool(0, memory=256), two.at(0)
    spool.begin(request, mixer=mixer, cascade=two.mixers)
    spool.put(request, items, first=0)
    said = spool.mix(request, mixer=mixer)
    layers = spool.take(request, first=0, count=said.count, size=two.size(1))
    assert spilled == [True]
    given, _ = two.step(two.items(layers, envelopes, position=1), position=1, previous=(said,))
    assert sorted(two.opened(given)) == REPORTS
