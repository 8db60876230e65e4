"""Mix cascades, and batches in pieces: what each mixer takes, what it refuses, and what it can tell."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import refused
from sealing import SIZE, Row, round_context

from shuffle_plugins.shuffler import (
    BatchLimits,
    BatchRefused,
    BatchRequest,
    MixedStatement,
    Refusal,
    ShuffleError,
)
from shuffle_plugins.shuffler import mixer as spool_module
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, draw_marks, layer_size
from shuffle_plugins.shuffler.keys import ServiceKey, SigningKey, public_key_bytes
from shuffle_plugins.shuffler.mixer import BatchSpool, items_digest

REPORTS = [bytes([i]) * SIZE for i in range(6)]


@dataclass(kw_only=True)
class Cascade(Row):
    """A row of mixers, the first of which may cheat."""

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
            outputs=items_digest(layers, size=len(layers[0])),
            masks=masks,
        )
        request = self.request(self.parts(self.envelopes(REPORTS[0]))[0])
        return replace(said, signature=self.at(0).sign(request.statement(said)))


@pytest.fixture(params=[1, 2, 3])
def row(request: pytest.FixtureRequest, tmp_path: Path) -> Cascade:
    return Cascade(folder=tmp_path, keys=[ServiceKey.generate() for _ in range(request.param)])


@pytest.fixture
def two(tmp_path: Path) -> Cascade:
    return Cascade(folder=tmp_path, keys=[ServiceKey.generate() for _ in range(2)])


def test_reports_come_through_all_mixers_in_pieces(row: Cascade) -> None:
    """Everything but dummies; lengths are equal at every layer; nothing is left on any disk."""
    envelopes = row.envelopes(*REPORTS[:4], None, REPORTS[5])
    layers, said = row.parts(envelopes)[0], ()
    last = len(row.keys) - 1
    for position in range(len(row.keys)):
        assert {len(layer) for layer in layers} == {layer_size(SIZE, mixers=len(row.keys), position=position)}
        items = row.items(layers, envelopes, position=position)
        layers, one = row.step(items, previous=said)
        said = (*said, one)
        assert one.rejected == {}
        assert (one.answered, one.count, len(one.masks)) == (6, 5 if position == last else 6, last - position)
    assert {len(layer) for layer in layers} == {layer_size(SIZE, mixers=1, position=1)}
    assert sorted(row.opened(layers)) == [*REPORTS[:4], REPORTS[5]]
    for position in range(len(row.keys)):
        assert list((row.folder / f"spool{position}").iterdir()) == []


def test_each_mixer_permutes(two: Cascade) -> None:
    """With the other mixer's order known, both orders of two reports come out, of each mixer alone."""
    seen: list[set[tuple[int, ...]]] = [set(), set()]
    for _ in range(30):
        two.context = round_context()
        envelopes, said = two.envelopes(*REPORTS[:2]), ()
        layers = two.parts(envelopes)[0]
        for position in range(2):
            inside = [two.opener(position).open(layer).inner for layer in layers]
            items = two.items(layers, envelopes, position=position)
            layers, one = two.step(items, previous=said)
            said = (one,)
            seen[position].add(tuple(inside.index(layer) for layer in layers))
    assert [len(orders) for orders in seen] == [2, 2]  # a mixer that permutes fails with probability 2**-29


def test_a_later_mixer_sees_no_signer_in_a_layer_and_nobody_sees_the_report(two: Cascade) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, _ = two.first(envelopes)
    for layer in layers:
        opened = two.opener(1).open(layer)
        assert opened.signer == b""
        assert not any(public_key_bytes(client) in opened.inner for client in two.clients)
        assert not any(report in opened.inner for report in REPORTS)
    tickets = [two.opener(1).open_ticket(ticket) for ticket in two.parts(envelopes)[1]]
    assert [ticket.signer for ticket in tickets] == [public_key_bytes(client) for client in two.clients]
    assert not {ticket.mark for ticket in tickets} & {two.opener(1).open(layer).mark for layer in layers}


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
def test_between_mixers_nothing_can_be_changed(two: Cascade, change: str) -> None:
    """By who relays: a later mixer takes what the one before it has signed, item for item, in its order."""
    for honest_request in (False, True):
        two.context = round_context()
        envelopes = two.envelopes(*REPORTS)
        layers, said = two.first(envelopes)
        items = two.items(layers, envelopes, position=1)
        other = changed(items, change)
        request = two.request(items if honest_request else other, previous=(said,))
        spool = two.spool(1)
        if change == "drop" and honest_request:
            assert spool.put(request, other, first=0) is None  # it waits for the last one
            continue
        code = refused(spool.put, request, other, first=0)
        assert code is (Refusal.NOT_PROVEN if change == "drop" else Refusal.UNREADABLE)
        assert refused(spool.put, request, items, first=0) is Refusal.REPLAYED


def masks_of(row: Cascade, envelopes: Sequence[bytes]) -> tuple[int, ...]:
    """The first mixer's sums of masks, which it knows."""
    opened = [row.opener(0).open(layer) for layer in row.parts(envelopes)[0]]
    return tuple(sum(masks) % (1 << 128) for masks in zip(*(one.masks for one in opened), strict=True))


CHEATS = ["replace", "replace all but one", "drop", "repeat", "tag", "old", "nothing"]


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_first_mixer_that_cheats_is_found_out(two: Cascade, cheat: str) -> None:
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
        assert len(two.opened(two.step(items, previous=(said,))[0])) == 6
        return
    assert refused(two.step, items, previous=(said,)) is Refusal.INCONSISTENT


def test_clients_that_sit_out_cannot_take_the_place_of_others(two: Cascade) -> None:
    """Their layers are there up to the last mixer, which counts reports for itself."""
    two.minimum = 3
    envelopes = two.envelopes(REPORTS[0], REPORTS[1], None, None)
    honest = [two.opener(0).open(layer).inner for layer in two.parts(envelopes)[0]]
    items = two.items(honest, envelopes, position=1)
    said = two.signed(honest, masks=masks_of(two, envelopes))
    assert refused(two.step, items, previous=(said,)) is Refusal.UNDER_MINIMUM
    two.context = round_context()
    envelopes = two.envelopes(REPORTS[0], REPORTS[1], None, None)
    honest = [two.opener(0).open(layer).inner for layer in two.parts(envelopes)[0]]
    own = [two.opener(0).open(layer).inner for layer in two.parts(two.envelopes(*REPORTS))[0]]
    layers = [*honest[:2], own[2], own[3]]  # reports of its own instead of the dummies
    said = two.signed(layers, masks=masks_of(two, envelopes))
    items = two.items(layers, envelopes, position=1)
    assert refused(two.step, items, previous=(said,)) is Refusal.INCONSISTENT


def test_tickets_are_of_enrolled_clients_once_each_and_faults_are_told_by_position(two: Cascade) -> None:
    stranger = SigningKey.generate()
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
            two.step(items, previous=(said,))
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
    assert all(sum(law.values()) == 64 for law in laws.values())


def test_a_statement_holds_for_its_round_row_place_and_signer(two: Cascade) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, said = two.first(envelopes)
    good = two.request(two.items(layers, envelopes, position=1), previous=(said,))
    good.check_previous()
    stranger = ServiceKey.generate()
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
        assert refused(replace(good, **change).check_previous) is Refusal.NOT_PROVEN
    with pytest.raises(ShuffleError, match="mixers before"):
        replace(good, previous=())
    with pytest.raises(ShuffleError, match="the one asked among them"):
        replace(good, position=2)


def test_layers_open_in_their_own_order_and_place_alone(two: Cascade) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, _ = two.first(envelopes)
    for keys in (two.sealing_keys[::-1], [], [*two.sealing_keys, public_key_bytes(two.analyzer)]):
        opener = two.opener(1, mixer_keys=keys)
        assert refused(opener.open, layers[0]) is Refusal.UNREADABLE
        assert refused(opener.open, two.parts(envelopes)[0][0]) is Refusal.UNREADABLE
        if opener.position:
            assert refused(opener.open_ticket, two.parts(envelopes)[1][0]) is Refusal.UNREADABLE
    first, _ = two.parts(envelopes)[0][:2]
    assert two.opener(0).open(first)
    stranger = ServiceKey.generate().public.sealing
    assert (
        refused(two.opener(0, mixer_keys=[two.sealing_keys[0], stranger]).open, first) is Refusal.UNREADABLE
    )
    with pytest.raises(ShuffleError, match="not one of the mixers"):
        two.opener(1, private_key=ServiceKey.generate().sealing)
    for keys in ([], [bytes(31)], [two.sealing_keys[0]] * 2):
        with pytest.raises(ShuffleError):
            two.envelope(REPORTS[0], mixer_key=keys)


def test_a_mixer_works_in_the_row_that_its_operator_pinned(two: Cascade) -> None:
    stranger = ServiceKey.generate().public
    items = two.parts(two.envelopes(*REPORTS))[0]
    rows = ((), two.mixers[::-1], (*two.mixers, stranger), (stranger, two.mixers[1]))
    for row in rows:
        two.context = round_context()
        with pytest.raises(ShuffleError, match="shuffle-mixer-public-key"):
            two.spool(0, cascade=row).put(two.request(items), items, first=0)
        # The round is spent all the same.
        assert refused(two.spool(0).put, two.request(items), items, first=0) is Refusal.REPLAYED


def begun(row: Cascade) -> tuple[BatchSpool, BatchRequest, list[bytes]]:
    """A batch of six, of which the first two have come."""
    items = row.parts(row.envelopes(*REPORTS))[0]
    request, spool = row.request(items), row.spool(0)
    assert spool.put(request, items[:2], first=0) is None
    return spool, request, items


@pytest.mark.parametrize("place", ["missing", "reordered", "longer", "too many", "empty"])
def test_a_piece_out_of_its_place_ends_the_batch(two: Cascade, place: str) -> None:
    spool, request, items = begun(two)
    items_then, first = {
        "missing": (items[4:], 4),
        "reordered": (items[4:6], 4),
        "longer": ([items[2] + b"!", items[3]], 2),
        "too many": ([*items[2:], items[0]], 2),
        "empty": ([], 2),
    }[place]
    assert refused(spool.put, request, items_then, first=first) is Refusal.UNREADABLE
    assert refused(spool.put, request, items[2:], first=2) is Refusal.WRONG_ROUND
    assert refused(spool.put, request, items[:2], first=0) is Refusal.REPLAYED
    assert list((two.folder / "spool0").iterdir()) == []


def test_a_first_piece_that_comes_again_is_a_replay(two: Cascade) -> None:
    spool, request, items = begun(two)
    assert refused(spool.put, request, items[:2], first=0) is Refusal.REPLAYED
    said = spool.put(request, items[2:], first=2)
    assert said is not None
    assert refused(spool.put, request, items[2:], first=2) is Refusal.UNREADABLE


def files_under(folder: Path) -> list[tuple[Path, bytes]]:
    return sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("announced", [{"size": 1 << 35}, {"size": 1 << 60}, {"count": 10_000_001}])
def test_no_server_can_fill_a_mixers_disk(two: Cascade, announced: dict[str, int]) -> None:
    """By default 64 GiB or 10 million reports: of what is beyond nothing is kept."""
    items = two.parts(two.envelopes(*REPORTS))[0]
    request, spool, before = two.request(items), two.spool(0), files_under(two.folder)
    large = replace(request, **announced)  # type: ignore[arg-type]
    assert refused(spool.put, large, items, first=0) is Refusal.TOO_LARGE
    assert files_under(two.folder) == before
    assert Refusal.TOO_LARGE.conclusive
    spool.mix(request, items)  # the round was not spent
    assert refused(spool.put, large, items, first=0) is Refusal.REPLAYED  # nor is it said of one that was


def test_all_batches_under_way_count_until_their_last_piece_is_out(two: Cascade) -> None:
    """Runs of their own, since a new batch takes the place of an earlier one of its run."""
    limits = {"reports": BatchLimits(most_reports=12), "bytes": BatchLimits(most_bytes=3 << 16)}
    for limit in limits.values():
        batches = []
        for run in ("first", "second", "third"):
            two.context = round_context(run=run)
            items = two.parts(two.envelopes(*REPORTS))[0]
            batches.append((two.request(items), items))
        spool = two.spool(0, limits=limit)
        for request, items in batches[:2]:
            spool.put(request, items[:2], first=0)
        (first, items), (second, _), (third, others) = batches
        assert refused(spool.put, third, others, first=0) is Refusal.TOO_LARGE
        said = spool.put(first, items[2:], first=2)
        assert said is not None
        assert refused(spool.put, third, others, first=0) is Refusal.TOO_LARGE
        spool.take(first, first=0, most=said.count)
        spool.mix(third, others)
        assert refused(spool.put, second, [], first=2) is Refusal.UNREADABLE  # ends the batch


def test_a_batch_that_does_not_fit_on_the_disk_is_refused(
    two: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may come of the batches under way counts too: each alone would fit, and all would fill it."""
    batches = []
    for run in ("first", "second"):
        two.context = round_context(run=run)
        items = two.parts(two.envelopes(*REPORTS))[0]
        batches.append((two.request(items), items))
    (first, items), (second, others) = batches
    free, spool = 2 * first.count * first.size, two.spool(0)
    monkeypatch.setattr(spool_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    free -= len(first.to_json()) + 1  # the request is there already
    assert refused(spool.put, first, items, first=0) is Refusal.TOO_LARGE
    free += len(first.to_json()) + 1
    spool.put(first, items[:3], first=0)
    assert refused(spool.put, second, others, first=0) is Refusal.TOO_LARGE
    free += free // 2
    spool.put(second, others, first=0)


def test_what_the_mixers_before_have_signed_holds_until_the_batch_is_mixed(two: Cascade) -> None:
    """A server begins with a signed statement, and then names other layers under the same signature."""
    envelopes = two.envelopes(*REPORTS)
    layers, said = two.first(envelopes)
    turned = layers[::-1]
    items = two.items(turned, envelopes, position=1)
    request, spool = two.request(items, previous=(said,)), two.spool(1)
    assert spool.put(request, items[:3], first=0) is None
    other = replace(said, outputs=items_digest(turned, size=len(turned[0])))
    assert refused(spool.put, replace(request, previous=(other,)), items[3:], first=3) is Refusal.WRONG_ROUND
    assert refused(spool.put, request, items[3:], first=3) is Refusal.UNREADABLE


def test_what_is_no_batch_in_the_folder_does_no_harm(two: Cascade) -> None:
    """Of the operator, or of a process that was killed as it began: that is removed after a day."""
    spool = two.folder / "spool0"
    for name in ("notes", "ab" * 16, "cd" * 16):
        (spool / name).mkdir(parents=True)
    (spool / ("cd" * 16) / "request").write_text("{")
    begun(two)
    assert len(list(spool.iterdir())) == 4
    for folder in spool.iterdir():
        os.utime(folder, (0, 0))
    two.context = round_context()
    begun(two)
    assert sorted(each.name for each in spool.iterdir()) == sorted(["notes", two.context.token.hex()])


def test_a_batch_is_told_apart_from_others(two: Cascade) -> None:
    spool, request, items = begun(two)
    other = replace(request, minimum=3)
    for call in (
        lambda: spool.put(other, items[2:], first=2),
        lambda: spool.take(request, first=0, most=1),
        lambda: two.spool(1).put(request, items[2:], first=2),
    ):
        assert refused(call) is Refusal.WRONG_ROUND
    said = spool.put(request, items[2:], first=2)
    assert said is not None
    for first, most in ((-1, 1), (6, 1), (0, 0)):
        assert refused(spool.take, request, first=first, most=most) is Refusal.WRONG_ROUND
    assert len(spool.take(request, first=0, most=1 << 62)) == said.count


def test_files_of_a_batch_are_for_their_owner_alone(two: Cascade) -> None:
    before = os.umask(0)
    try:
        begun(two)
    finally:
        os.umask(before)
    (folder,) = (two.folder / "spool0").iterdir()
    assert stat.S_IMODE((two.folder / "spool0").stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "inputs").stat().st_mode) == 0o600


def test_requests_and_statements_come_back_from_text_and_nothing_else_does(two: Cascade) -> None:
    envelopes = two.envelopes(*REPORTS)
    layers, said = two.first([*envelopes, envelopes[0]])
    request = two.request(two.items(layers, envelopes, position=1), previous=(said,))
    text = request.to_json()
    assert BatchRequest.from_json(text) == request
    assert MixedStatement.from_json(said.to_json()) == said
    assert BatchRequest.from_json(text).digest() == request.digest()
    values = json.loads(text)
    for key in values:
        with pytest.raises(ValueError, match="not the text of a BatchRequest"):
            BatchRequest.from_json(json.dumps({name: values[name] for name in values if name != key}))
    for other in (
        "",
        "[]",
        "[" * 100_000,
        *(json.dumps(values | change) for change in ({"more": 1}, {"count": 1.5})),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            BatchRequest.from_json(other)
    told = json.loads(said.to_json())
    for change in ({"rejected": {"0": "because"}}, {"masks": [-1]}, {"count": True}):
        with pytest.raises(ValueError):  # noqa: PT011
            MixedStatement.from_json(json.dumps(told | change))


def test_a_statement_that_cannot_be_is_refused_even_if_signed(two: Cascade) -> None:
    request = two.request(two.parts(two.envelopes(*REPORTS))[0])
    for answered, count, rejected in ((7, 6, {}), (6, 7, {}), (5, 5, {6: Refusal.DUPLICATE})):
        said = MixedStatement(
            request=request.digest(), answered=answered, count=count, rejected=rejected, outputs=bytes(32)
        )
        with pytest.raises(ValueError, match="as many good and bad"):
            request.check_said(replace(said, signature=two.at(0).sign(request.statement(said))))
