"""Clients choose the largest level that their limits allow, and are trained and charged by groups."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy
from flwr_shuffle import (
    ClientLimits,
    FixedSize,
    GroupGrid,
    GroupsStrategy,
    InProcessGrid,
    Poisson,
    PrivateEvaluation,
    ShuffleGrid,
    ShuffleMod,
    ShuffleStrategy,
    Updates,
    Waiting,
    grids_by_level,
)
from flwr_shuffle.messages import LEVELS_KEY, RECORD_KEY, ClientRefusal, instruction_of
from recorded_grid import RecordedGrid

from shuffle_plugins.accounting import Adversary, FederatedAccountant, ShuffleAccountant
from shuffle_plugins.ledger import BudgetLedger
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning import weigh_groups

LEVELS = (1.0, 4.0)
MODEL = ArrayRecord({"w": Array(np.zeros(3))})
trained: dict[float, list[int]] = {}


def limits_of(context: Context, *, limits: Sequence[float] = (0.5, 2.0, 6.0)) -> dict[str, Any]:
    """Of twelve nodes four allow 0.5, four 2 and four 6."""
    return {
        "shuffle-max-local-epsilon": limits[int(context.node_config["partition-id"]) % 3],
        "shuffle-max-rounds": 20,
    }


def app_of(*, moves: Callable[[float], float] = lambda most: 0.1, **options: Any) -> ClientApp:
    """Clients whose training adds as much as follows from the most that they allow."""
    configured = options.get("node_config") or limits_of
    app = ClientApp(mods=[ShuffleMod(**{"node_config": limits_of} | options)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        place = int(context.node_config["partition-id"])
        most = configured(context)["shuffle-max-local-epsilon"]
        trained.setdefault(most, []).append(place)
        moved = message.content["arrays"]["w"].numpy() + moves(most)
        content = {
            "arrays": ArrayRecord({"w": Array(moved)}),
            "metrics": MetricRecord({"num-examples": 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def strategy_of(level: float, *, strategy: Strategy | None = None, **options: Any) -> ShuffleStrategy:
    return ShuffleStrategy(
        strategy or FedAvg(fraction_evaluate=0.0),
        **{
            "randomizer": "linf-coordinate",
            "local_epsilon": level,
            "clipping_norm": 1.0,
            "sampling": FixedSize(4),
            "population": 4,
            "delta": 1e-2,
        }
        | options,
    )


def test_a_client_takes_the_largest_level_that_its_limits_allow(caplog: pytest.LogCaptureFixture) -> None:
    grid = InProcessGrid(app_of(), num_nodes=12)
    caplog.set_level(logging.INFO, logger="flwr")
    found = grids_by_level(grid, (4.0, 1.0, 4.0))
    first = grid.get_node_ids()[0]
    places = {level: sorted(n - first for n in each.get_node_ids()) for level, each in found.items()}
    assert places == {1.0: [1, 4, 7, 10], 4.0: [2, 5, 8, 11]}
    assert "4 at local_epsilon=1, 4 at local_epsilon=4; 4 nodes take none" in caplog.text
    assert {node.node_id for node in found[1.0].get_nodes()} == found[1.0].members
    app_limits = ClientLimits(max_local_epsilon=1.5, max_rounds=3)  # the stricter of both holds
    again = grids_by_level(InProcessGrid(app_of(limits=app_limits), num_nodes=12), LEVELS)
    assert [len(each.get_node_ids()) for each in again.values()] == [8, 0]
    for refused in ((), (0.0,), (1.0, -1.0)):
        with pytest.raises(ValueError, match="level"):
            grids_by_level(grid, refused)
    with pytest.raises(ValueError, match="plain grid"):
        GroupGrid(ShuffleGrid(grid, stage=strategy_of(1.0).settings.stage), members=[1])


def test_what_is_no_offer_is_refused_and_clients_without_limits_take_nothing() -> None:
    grid = InProcessGrid(app_of(), num_nodes=1)
    node = grid.get_node_ids()[0]
    for record in (ConfigRecord({"levels": ["1.0"]}), ConfigRecord(), MetricRecord({"levels": [1.0]})):
        (reply,) = grid.send_and_receive([Message(RecordDict({LEVELS_KEY: record}), node, "train")])
        assert reply.error.reason == str(ClientRefusal.BAD_INSTRUCTION)
    unlimited = InProcessGrid(app_of(node_config=None), num_nodes=3)
    assert all(not each.get_node_ids() for each in grids_by_level(unlimited, LEVELS).values())


def groups_of(inner: Strategy | None = None, **options: Any) -> list[ShuffleStrategy]:
    inner = inner or FedAvg(fraction_evaluate=0.0)
    return [strategy_of(level, strategy=inner, **options) for level in LEVELS]


def test_clients_of_all_levels_report_in_one_round_and_each_group_is_charged_for_itself() -> None:
    trained.clear()
    grid = RecordedGrid(app_of(), num_nodes=12)
    strategy = GroupsStrategy(groups_of())
    result = strategy.start(grid, MODEL, num_rounds=2, timeout=30)
    rounds = [m for m in grid.sent if RECORD_KEY in m.content]
    asked = {instruction_of(m).mechanism.local_epsilon for m in rounds[:8]}
    assert asked == set(LEVELS)  # the first eight messages are one round of both groups
    assert len(rounds) == 16
    assert {most: sorted(set(places)) for most, places in trained.items()} == {
        2.0: [1, 4, 7, 10],
        6.0: [2, 5, 8, 11],
    }
    assert not np.allclose(result.arrays["w"].numpy(), 0.0)
    for level, group in strategy.groups.items():
        alone = ShuffleAccountant()
        mechanism = registry.get("linf-coordinate", local_epsilon=level, dim=3)
        alone.step(mechanism.round(population=4, cohort=4, sampling="full"), num_steps=2)
        expected = alone.epsilon(1e-2).upper
        assert strategy.get_epsilon(1e-2, level=level) == pytest.approx(expected, rel=1e-6)
        told = result.train_metrics_clientapp[2]
        assert told[f"reports-{level:g}"] == 4
        assert told[f"epsilon-observer-{level:g}"] == pytest.approx(expected, rel=1e-6)
        assert f"local_epsilon={level:g}" in str(group.statement())
        assert any("who is in which group is taken to be public" in each for each in group.statement().trust)
    assert strategy.get_epsilon(1e-2) == strategy.get_epsilon(1e-2, level=4.0)


class Kept(FedAvg):
    """Keeps the models that it was given."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.given: list[np.ndarray] = []

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        self.given += [reply.content["arrays"]["w"].numpy() for reply in replies]
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("weigh", ["precision", "clients"])
def test_the_mean_of_the_groups_means_is_weighed_and_unbiased(weigh: Any) -> None:
    """Reports of ε0 = 300 and 500 are nearly exact; the two groups' clients move in opposite directions."""
    inner, levels, counts = Kept(), (300.0, 500.0), (6, 3)
    groups = [
        strategy_of(level, strategy=inner, randomizer="laplace", sampling=FixedSize(n), population=n)
        for level, n in zip(levels, counts, strict=True)
    ]
    app = app_of(
        node_config=lambda context: limits_of(context, limits=(300.0, 350.0, 500.0)),
        moves=lambda most: -0.3 if most == 500.0 else 0.1,
    )
    GroupsStrategy(groups, weigh=weigh).start(
        InProcessGrid(app, num_nodes=9), MODEL, num_rounds=1, timeout=30
    )
    variances = [
        registry.get("laplace", local_epsilon=level, dim=3).worst_variance / n
        for level, n in zip(levels, counts, strict=True)
    ]
    weights = weigh_groups(variances, clients=counts if weigh == "clients" else None)
    (model,) = inner.given
    # Laplace noise is over 12 deviations off in one of three numbers less than once in a million runs
    assert np.abs(model - weights.combine([0.1, -0.3])).max() < 12 * np.sqrt(weights.variance / 3) < 0.04


def test_a_group_whose_budget_is_spent_sits_out_and_the_last_one_ends_the_run() -> None:
    trained.clear()
    strategy = GroupsStrategy(groups_of(max_epsilon=4.5))
    with pytest.raises(PrivacyBudgetExhausted):
        strategy.start(InProcessGrid(app_of(), num_nodes=12), MODEL, num_rounds=50, timeout=30)
    rounds = {most: len(places) // 4 for most, places in trained.items()}
    assert 1 <= rounds[6.0] < rounds[2.0] < 50
    for level, most in ((1.0, 2.0), (4.0, 6.0)):
        assert strategy.groups[level].accountant.num_rounds == rounds[most]
        assert strategy.get_epsilon(1e-2, level=level) <= 4.5
    assert strategy.arrays is not None


class HalfDeafGrid(InProcessGrid):
    """One node does not answer when it is first asked for its level."""

    def __init__(self, app: ClientApp, *, num_nodes: int) -> None:
        super().__init__(app, num_nodes=num_nodes)
        self.timeouts: list[float | None] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if any(message.has_content() and LEVELS_KEY in message.content for message in replies):
            self.timeouts.append(timeout)
            return replies if self.timeouts[1:] else replies[:1] + replies[2:]
        return replies


def test_a_round_that_waits_for_its_group_asks_who_connects_and_who_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of eight nodes three and two take a level, and a round needs three of each; four more connect."""
    grid = HalfDeafGrid(app_of(), num_nodes=12)
    shown = GroupGrid(grid, members=grid.get_node_ids()[:8])
    monkeypatch.setattr("flwr_shuffle.rounds.time.sleep", lambda _: shown.members.update(grid.get_node_ids()))
    options = {"population": 3, "minimum_reports": 2, "waiting": Waiting(answer_timeout=7.0)}
    result = GroupsStrategy(groups_of(**options)).start(shown, MODEL, num_rounds=2, timeout=30)
    told = [[result.train_metrics_clientapp[n][f"reports-{level:g}"] for level in LEVELS] for n in (1, 2)]
    assert told == [[3, 4], [4, 4]]
    assert grid.timeouts == 3 * [7.0]  # at first, once more the one that did not answer, and the last four


def test_a_run_killed_between_two_groups_ledgers_goes_on_from_the_newer_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round's model and momentum are saved by the first group alone."""

    def strategy() -> GroupsStrategy:
        inner = FedAvgM(fraction_evaluate=0.0, server_momentum=0.9)
        ledgers = [BudgetLedger(tmp_path / "b.db", model=f"level {level:g}") for level in LEVELS]
        pairs = zip(LEVELS, ledgers, strict=True)
        return GroupsStrategy([strategy_of(each, strategy=inner, ledger=ledger) for each, ledger in pairs])

    def keep(group: ShuffleStrategy, *args: Any) -> None:
        kept.append(group)
        if len(kept) == 4:
            raise KeyboardInterrupt
        saving(group, *args)

    kept: list[ShuffleStrategy] = []
    saving = ShuffleStrategy._keep
    monkeypatch.setattr(ShuffleStrategy, "_keep", keep)
    first, second = strategy(), strategy()
    with pytest.raises(KeyboardInterrupt):
        first.start(InProcessGrid(app_of(), num_nodes=12), MODEL, num_rounds=3, timeout=30)
    expected = first.groups[1.0].arrays
    assert expected is not None
    told: dict[int, Any] = {}

    def look(number: int, arrays: ArrayRecord) -> None:
        told[number] = arrays["w"].numpy(), np.array(second.strategy.momentum_vector)  # type: ignore[attr-defined]

    second.start(InProcessGrid(app_of(), num_nodes=12), MODEL, num_rounds=3, timeout=30, evaluate_fn=look)
    assert list(told) == [2, 3]
    assert np.array_equal(told[2][0], expected["w"].numpy())
    assert np.array_equal(told[2][1], np.array(first.strategy.momentum_vector))  # type: ignore[attr-defined]
    assert [group.accountant.num_rounds for group in second.groups.values()] == [3, 3]


@pytest.mark.parametrize("one_encoding", [False, True])
def test_a_summary_names_each_group_and_the_inner_strategy_once(
    one_encoding: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="flwr")
    strategy = GroupsStrategy(groups_of(), one_encoding=one_encoding)
    strategy.summary()
    assert caplog.text.count("Sampling: FixedSize(cohort=4)") == 2
    assert caplog.text.count("Fraction: train") == 1
    assert caplog.text.count("in one encoding") == one_encoding
    with pytest.raises(ValueError, match=r"no group of local_epsilon=2.0, but of \[1.0, 4.0\]"):
        strategy.get_epsilon(1e-2, level=2.0)


def test_what_are_no_groups_is_refused(tmp_path: Any) -> None:
    inner = FedAvg(fraction_evaluate=0.0)

    def two(**options: Sequence[Any]) -> list[ShuffleStrategy]:
        return [
            strategy_of(level, strategy=inner, **{name: each[i] for name, each in options.items()})
            for i, level in enumerate(LEVELS)
        ]

    asking = PrivateEvaluation(metrics={"accuracy": (0, 1)}, local_epsilon=1.0)
    for groups, why in (
        ([], "for each level"),
        ([strategy_of(1.0), strategy_of(4.0)], "same inner strategy"),
        ([*groups_of(inner), strategy_of(4.0, strategy=inner)], "same ε0"),
        (groups_of(evaluation=asking), "no evaluation"),
        (two(updates=[Updates(), Updates(trained=lambda name: name == "w")]), "same arrays"),
        (two(ledger=[None, tmp_path / "b.db"]), "every group a ledger"),
        (two(ledger=2 * [tmp_path / "b.db"]), "every group a ledger"),
        (groups_of(ledger=FederatedAccountant()), "same accountant"),
    ):
        with pytest.raises(ValueError, match=why):
            GroupsStrategy(groups)
    with pytest.raises(ValueError, match="weigh"):
        GroupsStrategy(groups_of(), weigh="evenly")  # type: ignore[arg-type]


def exact_delta(epsilon: float, *, own: tuple[float, int], other: tuple[float, int], labelled: bool) -> float:
    """δ of one round of bits in which all take part, at the worst data: everything enumerated."""
    flips = [1 / (1 + math.exp(level)) for level, _ in (own, other)]

    def law(ones: int, of: int, flip: float) -> np.ndarray:
        found = np.ones(1)
        for i in range(of):
            p = 1 - flip if i < ones else flip
            found = np.convolve(found, [1 - p, p])
        return found

    worst = 0.0
    for mine, theirs in product(range(own[1]), range(other[1] + 1)):
        rest = [law(mine, own[1] - 1, flips[0]), law(theirs, other[1], flips[1])]
        laws = []
        for bit in (0, 1):
            group = np.convolve(rest[0], law(bit, 1, flips[0]))
            laws.append((np.outer if labelled else np.convolve)(group, rest[1]))
        for p, q in (laws, laws[::-1]):
            worst = max(worst, float(np.maximum(p - math.exp(epsilon) * q, 0).sum()))
    return worst


@pytest.mark.parametrize("one_encoding", [False, True])
def test_what_a_round_is_charged_dominates_all_data_of_both_groups(one_encoding: bool) -> None:
    strategy = GroupsStrategy(groups_of(), one_encoding=one_encoding)
    model = ArrayRecord({"w": Array(np.zeros(1))})
    strategy.start(InProcessGrid(app_of(), num_nodes=12), model, num_rounds=1, timeout=30)
    for level, other in (LEVELS, LEVELS[::-1]):
        for delta in (1e-1, 1e-2, 1e-3):
            epsilon = strategy.get_epsilon(delta, level=level)
            attained = exact_delta(epsilon, own=(level, 4), other=(other, 4), labelled=not one_encoding)
            assert attained <= delta * (1 + 1e-9)
            server = strategy.groups[level].accountant.epsilon(delta, adversary=Adversary.SERVER).upper
            assert server == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.slow
def test_in_one_encoding_reports_of_all_groups_are_decoded_together() -> None:
    """At ε0 = 20 and 25 bits are flipped once in 10^8 times; eight clients move up, and four down."""
    inner, levels, counts = Kept(), (20.0, 25.0), (8, 4)
    groups = [
        strategy_of(level, strategy=inner, sampling=FixedSize(n), population=n, minimum_reports=n)
        for level, n in zip(levels, counts, strict=True)
    ]
    app = app_of(
        node_config=lambda context: limits_of(context, limits=(20.0, 20.0, 25.0)),
        moves=lambda most: -1.0 if most == 25.0 else 1.0,
    )
    model = ArrayRecord({"w": Array(np.zeros(1))})
    GroupsStrategy(groups, one_encoding=True).start(
        InProcessGrid(app, num_nodes=12), model, num_rounds=1, timeout=30
    )
    assert inner.given[0] == pytest.approx(1 / 3, abs=1e-6)


@pytest.mark.slow
def test_in_one_encoding_the_loud_hide_among_the_quiet_until_a_budget_is_spent(tmp_path: Any) -> None:
    def groups(**options: Any) -> list[ShuffleStrategy]:
        inner, path = FedAvg(fraction_evaluate=0.0), tmp_path / "b.db"
        ledgers = [BudgetLedger(path, model=f"level {level:g}") for level in LEVELS]
        return [
            strategy_of(level, strategy=inner, ledger=ledger, **options)
            for level, ledger in zip(LEVELS, ledgers, strict=True)
        ]

    twenty = {"sampling": FixedSize(20), "population": 20, "minimum_reports": 20}
    strategy = GroupsStrategy(groups(max_epsilon=4.0, **twenty), one_encoding=True)
    with pytest.raises(PrivacyBudgetExhausted):
        strategy.start(InProcessGrid(app_of(), num_nodes=60), MODEL, num_rounds=9, timeout=30)
    rounds = {group.accountant.num_rounds for group in strategy.groups.values()}
    assert len(rounds) == 1  # the round that was not sent costs neither group anything
    (num_rounds,) = rounds
    assert 1 <= num_rounds < 9
    labelled = ShuffleAccountant()
    own = registry.get("linf-coordinate", local_epsilon=4.0, dim=3)
    labelled.step(own.round(population=20, cohort=20, sampling="full"), num_steps=num_rounds)
    spent = strategy.get_epsilon(1e-2, level=4.0)
    assert spent < 0.9 * labelled.epsilon(1e-2).upper
    with BudgetLedger(tmp_path / "b.db", model="level 4") as ledger:
        assert ledger.accountant().epsilon(1e-2, lower=False).upper == pytest.approx(spent, rel=1e-6)


def test_in_one_encoding_nothing_is_released_or_charged_without_enough_of_each_group() -> None:
    """One of the four loud clients that are asked fails, and all are needed."""

    def limits(context: Context) -> dict[str, Any]:
        allowed = limits_of(context)
        if int(context.node_config["partition-id"]) == 2 and asked:
            allowed["shuffle-max-rounds"] = 0
        asked.add(int(context.node_config["partition-id"]))
        return allowed

    asked: set[int] = set()
    strategy = GroupsStrategy(groups_of(minimum_reports=4), one_encoding=True)
    grid = InProcessGrid(app_of(node_config=limits), num_nodes=12)
    strategy.start(grid, MODEL, num_rounds=1, timeout=30)
    assert strategy.arrays is None
    assert strategy.get_epsilon(1e-2) == 0.0


def test_who_was_in_one_encoding_is_charged_for_itself_when_it_reports_alone() -> None:
    groups = groups_of()
    GroupsStrategy(groups, one_encoding=True).start(
        InProcessGrid(app_of(), num_nodes=12), MODEL, num_rounds=1, timeout=30
    )
    alone = groups_of()[1]
    for each in (groups[1], alone):
        own = grids_by_level(InProcessGrid(app_of(), num_nodes=12), LEVELS)[4.0]
        each.start(own, MODEL, num_rounds=1, timeout=30)
    mixed, charged = (
        [each.federated_round.observer for each in strategy.accountant.history]
        for strategy in (groups[1], alone)
    )
    assert mixed[0] != charged[0]
    assert mixed[1:] == charged
    labelled = GroupsStrategy(groups)  # the reports say which group they are of
    labelled.start(InProcessGrid(app_of(), num_nodes=12), MODEL, num_rounds=1, timeout=30)
    assert groups[1].accountant.history[2].federated_round.observer == charged[0]


def test_what_one_encoding_does_not_take_is_refused() -> None:
    for options, why in (
        ({"randomizer": "privunit-g"}, "linf-coordinate"),
        ({"sampling": Poisson(0.5), "minimum_reports": 2}, "FixedSize"),
        ({"sampling": FixedSize(4, honest_fraction=0.5)}, "honest_fraction"),
        ({"updates": Updates(records_per_client=3, samples_per_client=2)}, "once"),
    ):
        with pytest.raises(ValueError, match=why):
            GroupsStrategy(groups_of(**options), one_encoding=True)
    inner = FedAvg(fraction_evaluate=0.0)
    two = [strategy_of(level, strategy=inner, clipping_norm=level) for level in LEVELS]
    with pytest.raises(ValueError, match="one radius"):
        GroupsStrategy(two, one_encoding=True)
    with pytest.raises(ValueError, match="weigh"):
        GroupsStrategy(groups_of(), one_encoding=True, weigh="clients")
