"""Stages that open windows of sums: what they solve, when a series ends, and what hostile parties get."""

from __future__ import annotations

import copy
import errno
import logging
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import flwr_shuffle.client as client_mod
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import ClientLimits, InProcessGrid, ShuffleMod, SummingStage
from flwr_shuffle.grids import Replies
from flwr_shuffle.messages import (
    RECORD_KEY,
    ClientRefusal,
    Instruction,
    Step,
    WindowPlace,
)
from sharing_run import COHORT, DIM, MODEL, SUM, SharedRun, recorded
from test_shared_sum import tampered

from shuffle_plugins.mechanisms import SumSpec
from shuffle_plugins.protocols import WindowedSum, Windows, WindowSolver
from shuffle_plugins.secure_aggregation.aggregator import Aggregator
from shuffle_plugins.secure_aggregation.prio3.field import FIELD64
from shuffle_plugins.shuffler import Refusal

WINDOWED = WindowedSum.with_noise(
    dim=DIM, cohort=COHORT, noise_multiplier=2.0, overhead=0.3, coefficients=(8, 4, 3)
)
GROUP, GROUPS = 5, 4  # one group of clients a round, so that none comes twice within three rounds


@dataclass(kw_only=True)
class WindowRun(SharedRun):
    """Groups of clients, which take turns, and aggregators, whose rounds open windows."""

    clients: int = GROUP * GROUPS
    mechanism: WindowedSum = WINDOWED
    rounds: int = 0

    @property
    def place(self) -> WindowPlace | None:
        return self.stage.series and self.stage.series.place

    def instruction(self, **changes: Any) -> Instruction:
        window = self.stage.next_window(self.mechanism, run="test", clients=GROUP)
        return super().instruction(**{"window": window, **changes})

    def answers(self, instruction: Instruction) -> list[Message]:
        first = self.aggregators + self.rounds * GROUP % self.clients
        self.rounds += 1
        content = RecordDict(
            {"arrays": ArrayRecord({"w": Array(MODEL)}), RECORD_KEY: instruction.to_record()}
        )
        return self.grid.send_and_receive(
            [Message(content, node, "train") for node in self.nodes[first : first + GROUP]]
        )


class Trusted:
    """What a party that sees all counts makes of them, round by round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tossed = recorded(WINDOWED, monkeypatch)
        self.begin()

    def begin(self) -> None:
        self._windows, self._solver = Windows(WINDOWED), WindowSolver(WINDOWED)
        self.tossed.clear()

    def next(self) -> torch.Tensor:
        counts, reports = torch.stack(self.tossed).sum(dim=0), len(self.tossed)
        self.tossed.clear()
        return self._solver.solve(self._windows.open(counts, reports=reports), reports=reports)


@pytest.fixture
def run(tmp_path: Path) -> WindowRun:
    return WindowRun(folder=tmp_path)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Trusted:
    return Trusted(monkeypatch)


def check_next(run: WindowRun, trusted: Trusted, *, rounds: int = 1) -> None:
    """So many rounds open the next windows, and the sums are exactly those that a trusted party solves."""
    for _ in range(rounds):
        index = run.place.index if run.place else 0
        found = run.round()
        assert (found.refusal, found.answered) == (None, GROUP)
        assert found.total is not None
        assert torch.equal(found.total.sum, trusted.next())
        assert run.place is not None
        assert run.place.index == index + 1


# -- the sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregators", "verified", "on_disk"), [(2, False, False), (1, False, True), (1, True, True)]
)
def test_shared_windows_are_solved_as_a_trusted_party_would(
    tmp_path: Path, aggregators: int, verified: bool, on_disk: bool, trusted: Trusted
) -> None:
    run = WindowRun(folder=tmp_path, aggregators=aggregators)
    run.stage = run.new_stage(verified=verified, window_folder=tmp_path if on_disk else None)
    check_next(run, trusted, rounds=5)
    assert run.stage.series is not None
    assert len(run.stage.series.shares) == WINDOWED.band - 1


def test_a_server_without_room_for_its_windows_says_so_and_ends_the_series(
    run: WindowRun, trusted: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.stage = run.new_stage(window_folder=run.folder)
    check_next(run, trusted)

    def full(**kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    instruction, replies = run.begun()
    batch = run.stage._begun(instruction, DIM)  # its shares are in another file
    assert batch.nodes == []
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(OSError, match=r"of its windows cannot be kept in .*No space left"):
            run.collect(replies, instruction)
    assert run.place is None


def test_a_trusted_summing_stage_opens_the_same_windows(trusted: Trusted) -> None:
    limits = ClientLimits(max_local_epsilon=math.inf, max_rounds=100, max_epsilon=1e4, delta=1e-3)
    app = ClientApp(mods=[ShuffleMod(limits=limits)])

    @app.train()
    def _(message: Message, context: Any) -> Message:
        moved = message.content["arrays"]["w"].numpy() + 0.02
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)})}), reply_to=message)

    grid, stage = InProcessGrid(app, num_nodes=GROUP * GROUPS), SummingStage()
    for number in range(5):
        instruction = Instruction(
            token=number.to_bytes(16, "big"),
            run="test",
            server_round=number,
            mechanism=SumSpec(protocol=WINDOWED),
            minimum=COHORT,
            window=stage.next_window(WINDOWED, run="test", clients=GROUP),
        )
        content = RecordDict(
            {"arrays": ArrayRecord({"w": Array(MODEL)}), RECORD_KEY: instruction.to_record()}
        )
        group = grid.get_node_ids()[number % GROUPS * GROUP :][:GROUP]
        replies = grid.send_and_receive([Message(content, node, "train") for node in group])
        few = number == 2  # then nothing enters, and the next round opens that window
        given = replies[: COHORT - 1] if few else replies
        found = stage.collect(Replies(messages=given, instruction=instruction, dim=DIM, grid=grid))
        if few:
            assert (found.refusal, found.total) == (Refusal.UNDER_MINIMUM, None)
            trusted.tossed.clear()
        else:
            assert found.total is not None
            assert torch.equal(found.total.sum, trusted.next())
    assert stage.series is not None
    assert stage.series.index == 4


def test_a_summing_stage_never_opens_a_window_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, total = SummingStage(), torch.zeros(2 * DIM, dtype=torch.int64)
    place = stage.next_window(WINDOWED, run="test", clients=GROUP)

    def without_room(*_: Any, **__: Any) -> torch.Tensor:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(WindowSolver, "solve", without_room)
        with pytest.raises(OSError, match="no space"):
            stage._estimated(WINDOWED, total, COHORT, window=place)
    assert stage.series is None
    following = stage.next_window(WINDOWED, run="test", clients=GROUP)
    assert following is not None
    assert following.index == 0
    assert following != place
    with pytest.raises(ValueError, match="another window"):
        stage._estimated(WINDOWED, total, COHORT, window=place)
    stage._estimated(WINDOWED, total, COHORT, window=following)
    assert stage.series is not None
    assert stage.series.index == 1


def test_an_aggregators_operator_says_where_sums_are_kept(
    run: WindowRun, trusted: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run.config
    place = {"shuffle-window-file": str(run.folder / "in-memory")}
    monkeypatch.setattr(
        run.grid, "_node_config", lambda position: config(position) | (place if position == 0 else {})
    )
    check_next(run, trusted, rounds=3)
    assert (run.folder / "in-memory").exists()
    assert [file.name for file in run.folder.glob("*.windows")] == ["aggregator1.rounds.windows"]


# -- when a series goes on, and when it ends -----------------------------------------------------------------


def test_who_drops_out_is_in_no_window_and_too_few_open_none(tmp_path: Path, trusted: Trusted) -> None:
    """Nor does anybody if an aggregator does not say who is good."""
    run = WindowRun(folder=tmp_path, clients=6 * GROUP)
    check_next(run, trusted, rounds=2)
    before = run.place
    instruction, replies = run.begun()
    found = run.collect(replies[: COHORT - 1], instruction)
    assert (found.refusal, run.place) == (Refusal.UNDER_MINIMUM, before)
    tampered(run, lambda values: values.clear(), step=Step.CHECK)
    assert run.round().refusal is Refusal.NOT_AGREED
    run.grid.receive = list
    assert run.place == before
    trusted.tossed.clear()
    instruction, replies = run.begun()
    del trusted.tossed[0]
    found = run.collect(replies[1:], instruction)
    assert found.total is not None
    assert torch.equal(found.total.sum, trusted.next())
    check_next(run, trusted, rounds=2)


def lose_answer(run: WindowRun, patch: pytest.MonkeyPatch) -> None:
    tampered(run, lambda values: values.clear(), step=Step.ADD)


def lie(run: WindowRun, patch: pytest.MonkeyPatch) -> None:
    def lying(counts: np.ndarray, **kwargs: Any) -> Any:
        found = honest(counts, **kwargs)
        found.share.counts[-1] += 1  # in the coins
        return found

    honest = client_mod.share
    patch.setattr(client_mod, "share", lying)


def lose_file(run: WindowRun, patch: pytest.MonkeyPatch) -> None:
    (run.folder / "aggregator1.rounds.windows").unlink()


def fill_a_disk(run: WindowRun, patch: pytest.MonkeyPatch) -> None:
    """One aggregator refuses after the other has opened the window."""

    def failing(self: Aggregator, *args: Any, **kwargs: Any) -> Any:
        if self.public_key.sealing == run.keys[1].public.sealing:
            raise ValueError("the disk is full")
        return honest(self, *args, **kwargs)

    honest = Aggregator.add_up
    patch.setattr(Aggregator, "add_up", failing)


def put_old_state_back(run: WindowRun, patch: pytest.MonkeyPatch) -> None:
    """As if the server's machine had been set back by a window."""
    old = copy.deepcopy(run.stage.series)
    assert run.round().total is not None
    run.stage.series = old


@pytest.mark.parametrize(
    ("happens", "refusal", "charged"),
    [
        (lose_answer, Refusal.NO_ANSWER, True),
        (lie, Refusal.INCONSISTENT, True),
        (lose_file, Refusal.NOT_IN_SERIES, False),
        (fill_a_disk, Refusal.MISCONFIGURED, False),
        (put_old_state_back, Refusal.NOT_IN_SERIES, False),
    ],
)
def test_a_lost_window_ends_the_series_and_the_next_round_begins_another(
    run: WindowRun,
    trusted: Trusted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    happens: Callable[[WindowRun, pytest.MonkeyPatch], None],
    refusal: Refusal,
    charged: bool,
) -> None:
    check_next(run, trusted, rounds=2)
    old = run.place
    happens(run, monkeypatch)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found = run.round()
    assert (found.refusal, found.total, run.place) == (refusal, None, None)
    assert found.refusal.conclusive != charged
    assert "a series of windows ends after" in caplog.text
    monkeypatch.undo()
    run.grid.receive = list
    with pytest.MonkeyPatch.context() as patched:
        again = Trusted(patched)
        check_next(run, again, rounds=4)
    assert old is not None
    assert run.place is not None
    assert run.place.series != old.series


def test_a_server_that_starts_again_begins_a_new_series(run: WindowRun, trusted: Trusted) -> None:
    """Replies to the old one's instruction are of no use to it, and no old window is opened."""
    check_next(run, trusted, rounds=2)
    instruction, replies = run.begun()
    run.stage = run.new_stage()
    with pytest.raises(ValueError, match="another window"):
        run.collect(replies, instruction)
    trusted.begin()
    check_next(run, trusted, rounds=2)


def test_another_run_more_clients_or_another_noise_begin_a_new_series(run: WindowRun) -> None:
    first = run.stage.next_window(WINDOWED, run="test", clients=80)
    assert first is not None
    assert run.stage.next_window(WINDOWED, run="test", clients=90) == first  # cohorts differ a little
    assert run.stage.next_window(SUM, run="test", clients=200) is None  # as of an evaluation
    names = {first.series}
    louder = replace(WINDOWED, coins=2 * WINDOWED.coins)
    for mechanism, name, clients in [(WINDOWED, "test", 91), (WINDOWED, "next", 91), (louder, "next", 91)]:
        window = run.stage.next_window(mechanism, run=name, clients=clients)
        assert window is not None
        assert window.index == 0
        names.add(window.series)
    assert len(names) == 4


def test_a_sum_that_fails_between_two_windows_does_not_end_the_series(
    run: WindowRun, trusted: Trusted
) -> None:
    """As an evaluation does, whose sum is not of windows."""
    check_next(run, trusted)
    before = run.place
    plain = run.instruction(
        mechanism=SumSpec(protocol=SUM), window=None, shared=run.stage.shared(SUM, clients=GROUP)
    )
    tampered(run, lambda values: values.clear(), step=Step.ADD)
    assert run.collect(run.answers(plain), plain).refusal is Refusal.NO_ANSWER
    run.grid.receive = list
    assert run.place == before
    trusted.tossed.clear()
    check_next(run, trusted)


# -- hostile parties ----------------------------------------------------------------------------------------


def test_with_proofs_a_window_beyond_what_its_clients_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no check words: an aggregator that lies is noticed by the bounds, also those of old data."""
    run = WindowRun(folder=tmp_path, aggregators=1)
    run.stage = run.new_stage(verified=True)
    assert run.round().total is not None
    honest = Aggregator.add_verified

    def lying(self: Aggregator, *args: Any, **kwargs: Any) -> bytes:
        window = np.frombuffer(honest(self, *args, **kwargs), np.uint64).copy()
        window[0] = (int(window[0]) + most + 1) % FIELD64.modulus
        return window.tobytes()

    monkeypatch.setattr(Aggregator, "add_verified", lying)
    series = run.stage.series
    assert series is not None
    most = series.largest(GROUP)
    assert most == GROUP * (12 * WINDOWED.data_highest + WINDOWED.coins_highest)
    found = run.round()
    assert (found.refusal, found.total, run.place) == (Refusal.INCONSISTENT, None, None)


def test_a_client_takes_part_in_windows_alone_where_the_sum_is_of_windows(run: WindowRun) -> None:
    """Without its place in a series a round's own sum would be opened, which has no noise."""
    bare = run.instruction(window=None)
    windows = run.instruction(mechanism=SumSpec(protocol=SUM))
    for instruction in (bare, windows, replace(bare, shared=None)):
        assert {answer.error.reason for answer in run.answers(instruction)} <= {
            str(ClientRefusal.BAD_INSTRUCTION),
            str(ClientRefusal.PINNED),
        }


def test_what_aggregators_pin_covers_coins_and_check_seed(run: WindowRun) -> None:
    """Fewer coins in later rounds, or another check seed, would show data of earlier ones."""
    told = run.instruction()
    assert told.shared is not None
    terms = told.shared.of_round(told, WINDOWED, dim=DIM, aggregators=(bytes(32),))
    quieter = replace(WINDOWED, coins=WINDOWED.coins - 2)
    others = [
        replace(told, mechanism=SumSpec(protocol=quieter)),
        replace(told, shared=replace(told.shared, check_seed=bytes(32))),
        replace(told, minimum=told.minimum - 1),
    ]
    for other in others:
        assert other.shared is not None
        mechanism = other.mechanism.build(dim=DIM)
        found = other.shared.of_round(other, mechanism, dim=DIM, aggregators=(bytes(32),))
        assert found.pinned() != terms.pinned()
    same = replace(told, token=bytes(16), server_round=9, window=replace(told.window, index=7))
    found = same.shared.of_round(same, WINDOWED, dim=DIM, aggregators=(bytes(32),))
    assert found.pinned() == terms.pinned()
