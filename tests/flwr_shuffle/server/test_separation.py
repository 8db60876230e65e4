"""Windows of sums in whole runs: who may be asked when, what that costs, and how a run goes on."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle import (
    Anonymous,
    ClientLimits,
    ClientsRefused,
    Cyclic,
    FixedSize,
    InProcessGrid,
    PrivateEvaluation,
    Replies,
    SelfSampling,
    ShuffleMod,
    ShuffleStrategy,
    SummingStage,
    TooFewEligible,
    Waiting,
)
from flwr_shuffle.messages import ClientRefusal, WindowPlace
from flwr_shuffle.rounds import Waits
from hypothesis import given, settings
from hypothesis import strategies as st
from strategy_harness import DIM, MODEL, record, train

from shuffle_plugins.accounting import Adversary, ShuffleAccountant
from shuffle_plugins.ledger import BudgetLedger, ClientLedger, ReportRefused
from shuffle_plugins.ledger.client import InWindow, Refused, epsilon_of, read_reports, written
from shuffle_plugins.protocols import VectorSum, WindowedSum
from shuffle_plugins.shuffler import Refusal

DELTA = 1e-6
CLIENTS, COHORT = 12, 4
SUM = WindowedSum.with_noise(
    dim=DIM, cohort=COHORT, noise_multiplier=1.0, overhead=0.5, coefficients=(4, 2, 1)
)
LIMITS = ClientLimits(max_local_epsilon=math.inf, max_rounds=100, max_epsilon=1e4, delta=DELTA)


class Joining(InProcessGrid):
    """A grid of which only some nodes are connected."""

    connected: list[int]

    def get_node_ids(self) -> list[int]:
        return list(self.connected)


def grid_of(*, clients: int = CLIENTS, evaluate: Any = None, **mod: Any) -> Joining:
    app = ClientApp(mods=[ShuffleMod(limits=LIMITS, **mod)])
    app.train()(train)
    app.evaluate()(evaluate)
    grid = Joining(app, num_nodes=clients)
    grid.connected = InProcessGrid.get_node_ids(grid)
    return grid


def strategy_of(**options: Any) -> ShuffleStrategy:
    chosen: dict[str, Any] = {
        "randomizer": SUM,
        "sampling": Cyclic(COHORT),
        "population": CLIENTS,
        "delta": DELTA,
        "waiting": Waiting(poll_interval=0.01, connect_timeout=0.05),
    }
    return ShuffleStrategy(FedAvg(fraction_evaluate=0.0), **(chosen | options))


def invited(strategy: ShuffleStrategy) -> list[frozenset[str]]:
    """The names of those who are invited to each round, from here on."""
    found: list[frozenset[str]] = []
    begin = strategy._record.begin

    def noted(*args: Any, **kwargs: Any) -> None:
        begin(*args, **kwargs)
        found.append(frozenset(last(strategy)))

    strategy._record.begin = noted  # type: ignore[method-assign]
    return found


def last(strategy: ShuffleStrategy) -> list[str]:
    waits = strategy._rounds._waiting
    latest = max(waits._last.values())
    return [str(node) for node, when in waits._last.items() if when == latest]


def opened(strategy: ShuffleStrategy) -> int:
    """How many windows of its present series were opened."""
    series = strategy.settings.stage.series
    assert series is not None
    return series.index


def cost(participations: int) -> float:
    accountant = ShuffleAccountant()
    accountant.step(SUM.round(), num_steps=participations)
    return accountant.epsilon(DELTA, lower=False).upper


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_nobody_is_invited_twice_in_a_window_whoever_comes_and_goes(data: st.DataObject) -> None:
    """People leave and come back, some under new names; series end. No person and no name is invited twice in
    ``band`` rounds of a series in a row, and none is charged for fewer rounds than it was in.
    """
    band, people = data.draw(st.integers(1, 4)), 8
    waits, series, index = Waits(), bytes(31) + b"\x01", 0
    names = {person: person for person in range(people)}  # of those who are connected
    new_name = people
    taken: defaultdict[bytes, list[tuple[int, int, int]]] = defaultdict(list)  # index, person, name
    for _ in range(data.draw(st.integers(5, 25))):
        for person in data.draw(st.sets(st.integers(0, people - 1), max_size=3)):
            if person not in names or data.draw(st.booleans()):  # comes back, or is restarted
                names[person], new_name = new_name, new_name + 1
            else:
                del names[person]
        if data.draw(st.integers(0, 7)) == 0:
            series, index = bytes(31) + bytes([series[-1] + 1]), 0
        window = WindowPlace(series=series, index=index)
        able = waits.begin(list(names.values()), window=window, apart=band)
        if not able:
            continue
        cohort = data.draw(st.sets(st.sampled_from(sorted(able)), min_size=1, max_size=3))
        waits.invite(cohort)
        person_of = {name: person for person, name in names.items()}
        if data.draw(st.booleans()):  # else nothing is opened, and the window is tried again
            taken[series] += [(index, person_of[name], name) for name in cohort]
            index += 1
    for rounds in taken.values():
        for which in (1, 2):
            times = defaultdict(list)
            for entry in rounds:
                times[entry[which]].append(entry[0])
            for found in times.values():
                assert all(later - earlier >= band for earlier, later in itertools.pairwise(found))


def test_those_who_wait_longest_come_first_and_nobody_waits_longer_than_needed() -> None:
    waits, drawn = Waits(), Counter[int]()
    for index in range(12):
        window = WindowPlace(series=bytes(32), index=index)
        able = waits.begin(range(12), window=window, apart=3)
        assert len(able) == 12 - 4 * min(index, 2)
        cohort = Cyclic(4).draw(able)
        waits.invite(cohort)
        drawn.update(cohort)
    assert set(drawn.values()) == {4}
    # In a new series all may be invited at once, in the order of the old one.
    able = waits.begin(range(13), window=WindowPlace(series=bytes(31) + b"\x01", index=0), apart=3)
    assert len(able) == 13
    assert not set(able[:8]) & set(cohort)


@pytest.mark.parametrize("sampling", [FixedSize(COHORT), Cyclic(COHORT)])
def test_a_run_of_windows_is_charged_by_participation_before_everybody(sampling: FixedSize) -> None:
    strategy, rounds = strategy_of(sampling=sampling), 9
    seen = invited(strategy)
    result = strategy.start(grid_of(), record(MODEL), num_rounds=rounds)
    assert [len(names) for names in seen] == [COHORT] * rounds
    for place, names in enumerate(seen):
        assert not names & frozenset().union(*seen[max(0, place - 2) : place])
    spent = strategy.spending()
    assert spent.worst_client_rounds == 3  # 12 clients for three rounds of four: even chance is a cycle
    assert spent.server.upper == pytest.approx(cost(3), rel=1e-3)
    assert spent.observer.upper == pytest.approx(spent.server.upper, rel=1e-6)
    told = result.train_metrics_clientapp[rounds]
    assert told["epsilon-observer"] == told["epsilon-server"] >= spent.server.upper * (1 - 1e-9)
    statement = str(strategy.statement())
    assert "a participation in windows of 3 rounds" in statement
    assert "takes part at most once in 3 rounds in a row" in " ".join(statement.split())


def test_a_budget_for_every_participation_lasts_to_the_last_round() -> None:
    """Asked about those who are invited: who took part most is not among them."""
    for against in (Adversary.SERVER, Adversary.MODEL_OBSERVER):
        strategy = strategy_of(max_epsilon=cost(2) * 1.001, budget_against=against)
        with pytest.raises(PrivacyBudgetExhausted):
            strategy.start(grid_of(), record(MODEL), num_rounds=20)
        assert strategy.accountant.num_rounds == 6
        assert strategy.spending().server.upper <= cost(2) * 1.001


def test_cohorts_in_turn_cost_plain_sums_what_one_client_took_part_in() -> None:
    plain = VectorSum.with_noise(dim=DIM, cohort=COHORT, noise_multiplier=4.0, overhead=0.5)
    strategy = strategy_of(randomizer=plain)
    strategy.start(grid_of(), record(MODEL), num_rounds=6)
    spent, alone = strategy.spending(), ShuffleAccountant()
    alone.step(plain.round(), num_steps=2)
    assert spent.worst_client_rounds == 2
    assert spent.observer.upper == pytest.approx(alone.epsilon(DELTA, lower=False).upper, rel=1e-3)
    assert spent.server.upper == pytest.approx(spent.observer.upper, rel=1e-6)


def test_too_few_that_may_be_invited_end_the_run_before_anything_is_sent() -> None:
    grid, strategy = grid_of(clients=16), strategy_of()
    grid.connected = grid.connected[:12]

    def leave(now: int, model: Any) -> None:
        if now == 1:  # four that were not in the first window go, and four join
            gone = [node for node in grid.connected if str(node) not in last(strategy)][:4]
            new = InProcessGrid.get_node_ids(grid)[12:]
            grid.connected = [node for node in grid.connected if node not in gone] + new

    seen = invited(strategy)
    with pytest.raises(TooFewEligible, match=r"0 of 12 connected.* may take part.* 4 are needed.* 3 times"):
        strategy.start(grid, record(MODEL), num_rounds=5, evaluate_fn=leave)
    assert len(seen) == 2 == strategy.accountant.num_rounds
    # Started again, it goes on with a new series, in which those that are there may take part at once.
    strategy.start(grid, record(MODEL), num_rounds=3)
    assert strategy.accountant.num_rounds == 5


def test_clients_that_join_wait_and_a_budget_lasts(caplog: pytest.LogCaptureFixture) -> None:
    """One is restarted after every round: it waits, and all together are charged for their own rounds."""
    caplog.set_level(logging.INFO, logger="flwr")
    grid, strategy = grid_of(clients=40), strategy_of(max_epsilon=cost(4) * 1.001)
    spare = grid.connected[20:]
    grid.connected = grid.connected[:20]

    def restart(now: int, model: Any) -> None:
        if now:
            joined[spare[now]] = now
            grid.connected = [*grid.connected[1:], spare[now]]

    joined: dict[int, int] = {}
    seen = invited(strategy)
    strategy.start(grid, record(MODEL), num_rounds=12, evaluate_fn=restart)
    assert "nodes joined" in caplog.text
    for place, names in enumerate(seen):
        assert all(place - joined.get(int(name), -9) >= 2 for name in names)
    assert strategy.spending().worst_client_rounds <= 4  # one in three of twelve rounds


def test_a_run_that_was_cut_off_goes_on_with_a_new_series_and_what_was_spent(tmp_path: Path) -> None:
    file, budget = tmp_path / "ledger", cost(3) * 1.001
    options: dict[str, Any] = {
        "ledger": file,
        "max_epsilon": budget,
        "budget_against": Adversary.SERVER,
        "shuffler": SummingStage(),
    }

    class Stop(Exception):
        pass

    def stop(now: int, model: Any) -> None:
        if now == 4:
            raise Stop

    first = strategy_of(**options)
    with pytest.raises(Stop):
        first.start(grid_of(), record(MODEL), num_rounds=9, evaluate_fn=stop)
    series = first.settings.stage.series
    assert opened(first) == 4
    again = strategy_of(**options)  # by the same stage, whose series others may be in
    with pytest.raises(PrivacyBudgetExhausted):
        again.start(grid_of(), record(MODEL), num_rounds=20)
    # Four rounds, in which somebody was twice; then everybody may be that one, and once more.
    assert again.accountant.num_rounds == 4 + 3
    assert again.settings.stage.series is not series
    assert again.spending().server.upper <= budget
    assert BudgetLedger(file).accountant().worst_client_rounds == 3


def test_a_window_that_was_lost_is_charged_to_those_who_were_invited() -> None:
    """Somebody may have seen it: it ends the series, and the next round's clients are others."""

    class Losing(SummingStage):
        def collect(self, replies: Replies) -> Anonymous:
            found = super().collect(replies)
            if replies.instruction.server_round != 2:
                return found
            self.series = None
            return replace(found, total=None, refusal=Refusal.NO_ANSWER)

    strategy = strategy_of(shuffler=Losing())
    seen = invited(strategy)
    strategy.start(grid_of(), record(MODEL), num_rounds=3)
    assert len(frozenset().union(*seen)) == 3 * COHORT
    assert opened(strategy) == 1
    assert strategy.accountant.num_rounds == 3
    assert strategy.spending().worst_client_rounds == 1


def test_metrics_of_an_evaluation_are_asked_of_everybody() -> None:
    def evaluate(message: Message, context: Any) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.5})}), reply_to=message)

    evaluation = PrivateEvaluation(metrics={"accuracy": (0.0, 1.0)}, noise_multiplier=2.0)
    strategy = strategy_of(evaluation=evaluation)
    result = strategy.start(grid_of(evaluate=evaluate), record(MODEL), num_rounds=4)
    assert len(result.evaluate_metrics_clientapp) == 4
    assert opened(strategy) == 4


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"population": 11}, "population of at least 12"),
        ({"sampling": FixedSize(5)}, "population of at least 15"),
        ({"sampling": SelfSampling(0.5)}, "FixedSize or Cyclic"),
    ],
)
def test_populations_too_small_for_the_windows_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        strategy_of(**options)


# -- a client's own limit ---------------------------------------------------------------------------------


def test_a_client_refuses_to_come_again_before_its_window_has_passed(tmp_path: Path) -> None:
    free = ClientLimits(max_local_epsilon=math.inf, max_epsilon=1e4, delta=DELTA)
    tokens = itertools.count(1)
    with ClientLedger(tmp_path / "ledger") as ledger:

        def answers(index: int, *, series: int = 1, limits: ClientLimits = free) -> bool:
            try:
                ledger.charge(
                    run="run",
                    token=next(tokens).to_bytes(16),
                    server_round=1,
                    mechanism=SUM.name,
                    local_epsilon=math.inf,
                    local_delta=0.0,
                    limits=limits,
                    shuffled=written(SUM.round()),
                    summed=True,
                    window=InWindow(bytes([series]) * 32, index, SUM.band),
                )
            except ReportRefused as refused:
                if refused.code is Refused.SEPARATION:
                    return False
                raise
            return True

        found = [answers(index) for index in (5, 6, 7, 8, 5, 2, 3)]
        assert found == [True, False, False, True, True, True, False]
        assert answers(6, series=2)
        strict = replace(free, min_separation=10)
        assert not answers(17, limits=strict)
        assert answers(18, limits=strict)
        assert ledger.spent().reports == 6
        assert epsilon_of(read_reports(ledger.path)["run"], delta=DELTA) == pytest.approx(cost(6), rel=1e-6)


def test_a_client_in_a_run_refuses_what_its_operator_does_not_allow() -> None:
    """All refuse the fourth round: it is three windows after their first, and they want four."""
    strategy = strategy_of()
    grid = grid_of(node_config=lambda _: {"shuffle-min-separation": 4})
    with pytest.raises(ClientsRefused) as stopped:
        strategy.start(grid, record(MODEL), num_rounds=30)
    assert str(ClientRefusal.SEPARATION) in str(stopped.value)
    assert strategy.accountant.num_rounds == 3
