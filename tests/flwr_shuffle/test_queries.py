"""Queries: what they tell, what they cost, and what a server cannot make of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr_shuffle import (
    Bins,
    BudgetExhausted,
    ClientLimits,
    ClientsRefused,
    Counts,
    FixedSize,
    InProcessGrid,
    Mean,
    Quantiles,
    QueryGrid,
    ShuffleMod,
)
from flwr_shuffle.messages import RECORD_KEY, ClientRefusal, Instruction, payload_of
from flwr_shuffle.metrics import metrics_of, radius_of, record_of, size_of, vector_of
from mixing import SpiedGrid
from mod_harness import instruction
from sharing_run import SharedRun
from strategy_harness import MODEL, record, shuffled, train
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, FederatedAccountant, FederatedRound, ShuffleAccountant
from shuffle_plugins.ledger import BudgetLedger, ClientLedger
from shuffle_plugins.mechanisms import MechanismSpec, Norm
from shuffle_plugins.protocols import DecoyVectorSum, LaplaceVectorSum, VectorSum, WindowedSum
from shuffle_plugins.shuffler import InMemoryShuffler

CLIENTS = 40
GENEROUS = ClientLimits(max_local_epsilon=500.0, max_rounds=100)
SUMS = ClientLimits(max_local_epsilon=math.inf, max_epsilon=1e4, delta=1e-5, max_rounds=100)
AGES = {"age": Bins(0, 100, 10)}
EVERYTHING = {
    "age": Bins(0, 100, 10),
    "smokes": Counts(),
    "kind": Counts(3),
    "height": (1.0, 2.0),
    "income": Quantiles(0, 1000, (0.25, 0.5, 0.9)),
}


def held(place: int) -> dict[str, Any]:
    """What a client's app returns; clients are 0, 1, 2, …, 39."""
    return {
        "age": [2.5 * place, 2.5 * place],
        "smokes": int(place % 4 == 0),
        "kind": [5 * (place % 3 == each) for each in range(3)],
        "height": 1 + place / 39,
        "income": 25 * place + 1,
        "name": [float(place)],  # nobody asks for it
    }


def query(message: Message, context: Context) -> Message:
    told = MetricRecord(held(int(context.node_config["partition-id"])))
    return Message(RecordDict({"query_results": told}), reply_to=message)


def app_of(answer: Callable[..., Message] = query, **options: Any) -> ClientApp:
    app = ClientApp(mods=[ShuffleMod(**({"limits": GENEROUS} | options))])
    app.query()(answer)
    app.train()(train)
    return app


def grid_of(answer: Callable[..., Message] = query, *, clients: int = CLIENTS, **options: Any) -> SpiedGrid:
    return SpiedGrid(app_of(answer, **options), num_nodes=clients)


def loud(grid: InProcessGrid, metrics: Any = EVERYTHING, **options: Any) -> QueryGrid:
    """Reports one by one, with next to no noise."""
    chosen = {"cohort": 30, "randomizer": "laplace", "local_epsilon": 400.0, "delta": 1e-5}
    return QueryGrid(grid, metrics, **(chosen | options))


def summed(grid: InProcessGrid, metrics: Any = AGES, **options: Any) -> QueryGrid:
    return QueryGrid(grid, metrics, **({"cohort": 30, "epsilon": 1.0, "delta": 1e-5} | options))


def ask(grid: QueryGrid, nodes: Sequence[int] | None = None) -> list[Message]:
    content = RecordDict({"question": ConfigRecord({"year": 2026})})
    return list(
        grid.send_and_receive([Message(content, node, "query") for node in nodes or grid.get_node_ids()])
    )


@pytest.mark.parametrize("kind", [Mean(-3, 5), Counts(), Counts(4), Bins(-1, 2, 7), Quantiles(0, 9)])
def test_whatever_an_app_returns_is_in_the_ball(kind: Any) -> None:
    draw, metrics = np.random.default_rng(3), metrics_of({"x": kind})
    for _ in range(200):
        size = kind.size if isinstance(kind, Counts) else 1 if isinstance(kind, Mean) else draw.integers(0, 9)
        wild = draw.choice([-math.inf, -5.0, 0.0, 0.3, 1.0, 2.0, 1e300, math.inf], size=size).tolist()
        try:
            vector = vector_of(metrics, RecordDict({"m": MetricRecord({"x": wild})}), failed_share=0.0)
        except ValueError:
            assert isinstance(kind, Counts)  # negative or infinite counts
            continue
        assert vector.shape == (size_of(metrics),)
        for norm, order in ((Norm.L1, 1), (Norm.L2, 2), (Norm.LINF, math.inf)):
            length = float(torch.linalg.vector_norm(vector.double(), ord=order))
            assert length <= radius_of(metrics, norm) * (1 + 1e-6)


def test_bins_are_numpys() -> None:
    values = np.random.default_rng(1).uniform(2, 10, size=500).round(1)
    kind = Bins(2.0, 10.0, 9)
    expected, _ = np.histogram(values, bins=np.linspace(2.0, 10.0, 10))
    assert 500 * kind.vector(values.tolist()) == pytest.approx(expected)
    assert sum(kind.vector([each])[-1] for each in (10.0, 11.0, math.inf)) == 3  # the nearest bin
    assert not kind.vector([]).any()


def test_quantiles_are_exact_to_a_256th_of_the_range_and_agree_with_least_squares() -> None:
    draw = np.random.default_rng(2)
    kind = Quantiles(0, 1000, (0.1, 0.5, 0.99))
    values = draw.gamma(2, 100, size=3000)
    mean = np.mean([kind.vector([each]) for each in values], axis=0)
    assert np.abs(kind.read(mean, reports=3000) - np.quantile(values, kind.at)).max() <= 1000 / 256
    # with noise: the distribution function of the least-squares fit to all 272 counts, made monotone
    noisy = mean + draw.normal(0, 0.003, size=kind.size)
    tree = np.vstack([np.kron(np.eye(16), np.ones(16)), np.eye(256)])
    fitted = np.linalg.lstsq(tree, noisy, rcond=None)[0]
    summed = np.concatenate([[0.0], np.cumsum(np.cumsum(fitted))])
    place = np.arange(256)
    lengths = place[None, :] - place[:, None] + 1.0
    means = np.where(lengths > 0, (summed[1:] - summed[:-1, None]) / np.maximum(lengths, 1), math.inf)
    least = np.minimum.accumulate(means[:, ::-1], axis=1)[:, ::-1]  # over all that end no earlier
    least = np.where(lengths > 0, least, -math.inf)
    below = np.concatenate([[0.0], least.max(axis=0).clip(min=0)])  # the monotone fit, as max of min of means
    expected = np.interp(np.array(kind.at) * below[-1], below, np.linspace(0, 1000, 257))
    assert kind.read(noisy, reports=3000) == pytest.approx(expected, abs=1e-6)


def test_a_query_tells_what_there_is() -> None:
    grid = grid_of()
    [reply] = ask(loud(grid))
    told, privacy = reply.content["query_results"], reply.content["privacy"]
    assert sorted(told) == sorted(EVERYTHING)
    assert told["age"] == pytest.approx([4.0] * 10, abs=2.0)
    assert told["smokes"] == pytest.approx(10, abs=1.0)
    assert told["kind"] == pytest.approx([14, 13, 13], abs=2.0)
    assert told["height"] == pytest.approx(1.5, abs=0.03)
    assert told["income"] == pytest.approx([251, 501, 901], abs=60)
    assert privacy["reports"] == CLIENTS
    assert sorted(reply.content["standard_errors"]) == sorted(EVERYTHING)
    seen = [message.content["question"]["year"] for message in grid.seen if "question" in message.content]
    assert seen == [2026] * CLIENTS  # what the script asks reaches the app


@pytest.mark.parametrize("kind", [Mean(-3, 5), Counts(), Counts(4), Bins(0, 1, 4), Quantiles(0, 1)])
def test_errors_are_stated_in_units_of_what_is_told(kind: Any) -> None:
    """A quantile's is that in the middle of its range, and less where counts are kept from falling."""
    draw, reports, noise = np.random.default_rng(7), 10_000, 20.0
    spread = np.linspace(0, 1, 1 << 12, endpoint=False).tolist()
    mean = kind.vector(spread) if isinstance(kind, (Bins, Quantiles)) else np.zeros(kind.size)
    noisy = mean + draw.normal(0, noise / reports, (4000, kind.size))
    told = [kind.read(each, reports=reports) for each in noisy]
    exact = kind.read(mean, reports=reports)
    found = float(np.sqrt(np.mean((np.array(told) - exact) ** 2))) / kind.error(noise, reports=reports)
    assert (0.7 if isinstance(kind, Quantiles) else 0.93) < found < 1.07


@pytest.mark.parametrize("asked", [AGES, AGES | {"kind": Counts(3)}])
def test_the_standard_error_of_decoys_is_theirs_and_of_the_draw_among_metrics(asked: Any) -> None:
    clients = grid_of(
        limits=ClientLimits(max_local_epsilon=math.inf, max_epsilon=9, delta=1e-5, max_rounds=9)
    )
    grid = summed(clients, asked, shuffler=InMemoryShuffler(), cohort=CLIENTS, epsilon=4.0)
    [reply] = ask(grid)
    mechanism = grid.settings.mechanism.build(dim=size_of(metrics_of(asked)))
    assert isinstance(mechanism, DecoyVectorSum)
    contents = [RecordDict({"m": MetricRecord(held(place) | {"age": place})}) for place in range(CLIENTS)]
    vectors = torch.stack([vector_of(metrics_of(asked), each, failed_share=0.0) for each in contents])
    sums = torch.stack([mechanism.randomize_sum(vectors) for _ in range(1000)])
    error = float((sums - vectors.sum(dim=0)).square().mean().sqrt())
    assert error == pytest.approx(reply.content["standard_errors"]["age"], rel=0.1)


@pytest.mark.parametrize("shuffler", [None, InMemoryShuffler()])
def test_standard_errors_are_those_of_the_clients_that_answered(shuffler: Any) -> None:
    """Each adds its noise, those beyond the cohort as well."""
    grid = summed(grid_of(limits=SUMS), cohort=10, shuffler=shuffler)
    told = [ask(grid, grid.get_node_ids()[:clients])[0].content for clients in (10, CLIENTS)]
    few, many = (float(each["standard_errors"]["age"]) for each in told)
    assert many == pytest.approx(few * math.sqrt(CLIENTS / 10))


def test_the_standard_error_of_decoys_of_lists_is_as_the_guide_says() -> None:
    mechanism = DecoyVectorSum.with_noise(dim=10, cohort=CLIENTS, noise_multiplier=3.0, signed=False)
    stated = math.sqrt((mechanism.worst_variance - CLIENTS) / 10)
    vectors = torch.full((CLIENTS, 10), 0.1)  # a number in each bin
    sums = torch.stack([mechanism.randomize_sum(vectors) for _ in range(1000)])
    error = float((sums - vectors.sum(dim=0)).square().mean().sqrt())
    assert stated * 1.15 < error < 1.05 * math.sqrt(stated**2 + CLIENTS / 10)


@pytest.mark.parametrize(
    ("asked", "kind"), [(AGES, LaplaceVectorSum), (dict.fromkeys("abcdefg", (0, 1)), VectorSum)]
)
def test_the_sum_of_less_noise_is_taken(asked: Any, kind: type) -> None:
    """Laplace noise grows with the number of metrics, Gaussian noise with its root."""
    grid = summed(grid_of(), asked)
    mechanism = grid.settings.mechanism.build(dim=size_of(metrics_of(asked)))
    assert isinstance(mechanism, kind)
    if kind is LaplaceVectorSum:
        assert mechanism.noise_variance == pytest.approx(8.0, rel=0.05)  # 2·(2/ε)²


def test_several_queries_can_have_one_target() -> None:
    alone, among = summed(grid_of()), summed(grid_of(), num_queries=4)
    mechanisms = [grid.settings.mechanism.build(dim=10) for grid in (alone, among)]
    assert 3 < mechanisms[1].worst_variance / mechanisms[0].worst_variance < 17
    accountant = ShuffleAccountant()
    accountant.step(mechanisms[1].round(population=30, cohort=30), num_steps=4)
    assert 0.95 < accountant.epsilon(1e-5).upper <= 1.0


def test_what_it_costs_is_in_the_books_before_anything_is_told(tmp_path: Path) -> None:
    files = {"shuffle-max-local-epsilon": math.inf, "shuffle-max-epsilon": 9.0, "shuffle-delta": 1e-5}
    clients = SpiedGrid(
        app_of(limits=None),
        num_nodes=CLIENTS,
        node_config=lambda place: (
            files | {"shuffle-max-rounds": 9, "shuffle-ledger-file": str(tmp_path / f"{place}.db")}
        ),
    )
    grid = summed(clients, ledger=tmp_path / "queries.db")
    states: list[list[str]] = []

    def relay(messages: list[Message]) -> list[Message]:
        with BudgetLedger(tmp_path / "queries.db") as ledger:
            states.append([each.state for each in ledger.rounds()])
        return messages

    clients.relay = relay
    told = [ask(grid)[0].content["privacy"] for _ in range(2)]
    assert states == [["open"], ["complete", "open"]]
    mechanism = grid.settings.mechanism.build(dim=10)
    expected = FederatedAccountant()
    for each in told:
        one = FederatedRound.drawn(mechanism, candidates=CLIENTS, invited=CLIENTS, reports=30)
        expected.step(one, participants=[str(client) for client in range(CLIENTS)])
        for adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
            bound = expected.epsilon(1e-5, adversary=adversary, lower=False).upper
            name = "epsilon-observer" if adversary is Adversary.MODEL_OBSERVER else "epsilon-server"
            assert each[name] == pytest.approx(bound, rel=1e-6)
    assert told[0]["epsilon-observer"] <= 1.0
    with ClientLedger(tmp_path / "0.db") as ledger:
        assert ledger.spent().reports == 2
    again = summed(clients, ledger=tmp_path / "queries.db")  # another run
    assert again.spending().num_rounds == 2
    assert "'age'" in str(again.statement())
    assert "covered are all in its ledger" in str(again.statement()).lower()


def test_a_budget_ends_queries_before_anybody_is_asked() -> None:
    clients = grid_of(limits=SUMS)
    grid = summed(clients, max_epsilon=2.5)
    assert len(ask(grid)) == len(ask(grid)) == 1
    asked = len(clients.seen)
    with pytest.raises(BudgetExhausted, match=r"another round could take .* One such round alone costs ε ≤"):
        ask(grid)
    assert len(clients.seen) == asked
    assert grid.spending().num_rounds == 2


@pytest.mark.parametrize("opened", ["once", "twice"])
def test_queries_during_a_training_count_in_its_budget_and_in_what_it_tells(
    tmp_path: Path, opened: str
) -> None:
    """Whether both have one ledger object, or each its own of one file."""
    clients = grid_of(limits=ClientLimits(max_local_epsilon=500.0, max_rounds=99))
    with BudgetLedger(tmp_path / "budget.db") as ledger:
        options: dict[str, Any] = {
            "ledger": ledger if opened == "once" else tmp_path / "budget.db",
            "population": CLIENTS,
            "sampling": FixedSize(CLIENTS),
            "randomizer": "privunit",
            "local_epsilon": 2.0,
        }
        strategy = shuffled(**options)
        grid = loud(clients, AGES, ledger=ledger, local_epsilon=1.0)
        counted: list[tuple[int, int]] = []

        def between(server_round: int, arrays: Any) -> MetricRecord:
            if server_round:
                ask(grid)
                counted.append((strategy.accountant.num_rounds, grid.accountant.num_rounds))
            return MetricRecord()

        told = strategy.start(clients, record(MODEL), num_rounds=3, evaluate_fn=between)
        assert counted == [(1, 2), (3, 4), (5, 6)]
        expected = FederatedAccountant()
        names = [str(client) for client in range(CLIENTS)]
        for each in ledger.accountant().history[:5]:
            expected.step(each.federated_round, participants=names)
        spent = expected.epsilon(1e-6, adversary=Adversary.SERVER, lower=False).upper
        assert told.train_metrics_clientapp[3]["epsilon-server"] == pytest.approx(spent, rel=1e-6)
        tight = shuffled(**(options | {"max_epsilon": spent * 0.99}))
        with pytest.raises(BudgetExhausted):
            tight.start(clients, record(MODEL), num_rounds=4)


def test_too_few_answers_tell_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clients = SpiedGrid(
        app_of(
            limits=SUMS,
            node_config=lambda context: (
                {"shuffle-min-reports": 1000} if int(context.node_config["partition-id"]) < 11 else {}
            ),
        ),
        num_nodes=CLIENTS,
    )
    grid = summed(clients)
    assert ask(grid) == []
    assert "this round has no result" in caplog.text
    assert grid.spending().num_rounds == 0  # nobody saw the sum of 29
    asked = len(clients.seen)
    assert ask(grid, grid.get_node_ids()[:29]) == []
    assert "29 clients drawn, 30 needed" in caplog.text
    assert len(clients.seen) == asked


def test_a_query_beyond_the_clients_budgets_is_refused_by_them_whatever_the_servers_budget_is() -> None:
    grid = loud(grid_of(limits=ClientLimits(max_local_epsilon=500.0, max_total_local_epsilon=700.0)), AGES)
    assert len(ask(grid)) == 1
    with pytest.raises(ClientsRefused, match="40: shuffle: the round would exceed the client's total"):
        ask(grid)
    assert grid.spending().num_rounds == 1  # nobody sent anything


def test_a_query_that_is_cut_off_counts() -> None:
    clients = grid_of(limits=SUMS)
    grid = summed(clients)

    def broken(messages: list[Message]) -> list[Message]:
        raise KeyboardInterrupt

    clients.receive = broken
    messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    with pytest.raises(KeyboardInterrupt):
        grid.send_and_receive(messages)
    assert grid.spending().num_rounds == 1
    clients.receive = list
    assert len(list(grid.send_and_receive(messages))) == 1  # the same messages can be sent again


def failing(message: Message, context: Context) -> Message:
    raise RuntimeError("the data base is gone")


def other_names(message: Message, context: Context) -> Message:
    return Message(RecordDict({"m": MetricRecord({"years": 3})}), reply_to=message)


def texts(message: Message, context: Context) -> Message:
    return Message(RecordDict({"m": ConfigRecord({"age": "forty"})}), reply_to=message)


def not_a_number(message: Message, context: Context) -> Message:
    return Message(RecordDict({"m": MetricRecord({"age": [30.0, math.nan]})}), reply_to=message)


@pytest.mark.parametrize("answer", [failing, other_names, texts, not_a_number])
def test_a_client_that_fails_looks_like_any_other(answer: Callable[..., Message]) -> None:
    clients = grid_of(answer)
    [reply] = ask(loud(clients, AGES))
    assert reply.content["query_results"]["age"] == pytest.approx([0.0] * 10, abs=3.0)
    payloads = {len(payload_of(each)) for each in clients.seen if each.metadata.src_node_id != 1}
    assert payloads == {MechanismSpec(name="laplace", local_epsilon=400.0).report_bytes(dim=10) + 1}


def told_by(clients: InProcessGrid, asked: Instruction | None) -> str:
    """How the first client answers a hostile server: the text of its refusal, or nothing."""
    content = RecordDict() if asked is None else RecordDict({RECORD_KEY: asked.to_record()})
    [answer] = clients.send_and_receive([Message(content, clients.get_node_ids()[0], "query")])
    return answer.error.reason if answer.has_error() else ""


SPEC = MechanismSpec(name="laplace", local_epsilon=1.0)


def test_a_query_for_raw_data_is_refused_and_says_what_to_do() -> None:
    clients = grid_of()
    assert told_by(clients, None) == ClientRefusal.NOT_ALLOWED
    assert "QueryGrid" in ClientRefusal.NOT_ALLOWED
    assert told_by(clients, instruction(SPEC)) == ClientRefusal.BAD_INSTRUCTION
    assert told_by(clients, instruction(SPEC, metrics=metrics_of(AGES))) == ""


@pytest.mark.parametrize(
    "asked",
    [
        {"age": Bins(0, 100, 1000)},
        {"age": Bins(39, 41, 10)},
        {"age": (0, 100)},
        {"name": Bins(0, 100, 10)},
        AGES | {"income": Quantiles(0, 1000)},
    ],
)
def test_a_client_answers_no_other_bins_than_it_agreed_to(asked: Any) -> None:
    clients = grid_of(metrics=AGES | {"height": (0, 3)})
    assert told_by(clients, instruction(SPEC, metrics=metrics_of(asked))) == ClientRefusal.OTHER_METRICS
    assert told_by(clients, instruction(SPEC, metrics=metrics_of(AGES))) == ""


def test_a_query_of_a_named_function() -> None:
    app = app_of()

    @app.query("ages")
    def ages(message: Message, context: Context) -> Message:
        return Message(RecordDict({"any": MetricRecord({"age": 5})}), reply_to=message)

    grid = loud(InProcessGrid(app, num_nodes=CLIENTS), AGES, record="ages")
    [reply] = grid.send_and_receive(
        [Message(RecordDict(), node, "query.ages") for node in grid.get_node_ids()]
    )
    assert reply.content["ages"]["age"] == pytest.approx([CLIENTS] + [0] * 9, abs=3.0)


def test_other_messages_pass_and_queries_are_not_pulled_one_by_one() -> None:
    grid = loud(InProcessGrid(app_of(allow=["evaluate"]), num_nodes=CLIENTS), AGES)
    [reply] = grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "evaluate")])
    assert reply.has_error()  # the app has no such function
    question = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    with pytest.raises(ValueError, match="use send_and_receive"):
        grid.push_messages(question)
    with pytest.raises(ValueError, match="must be of type query"):
        grid.send_and_receive([*question[1:], Message(RecordDict(), grid.get_node_ids()[0], "evaluate")])
    assert grid.spending().num_rounds == 0


def test_a_node_that_is_no_client_or_there_twice_is_refused_before_anything_is_recorded(
    tmp_path: Path,
) -> None:
    run = SharedRun(folder=tmp_path)
    grid = QueryGrid(run.grid, AGES, cohort=4, delta=1e-3, epsilon=8.0, shuffler=run.stage)
    nodes = list(grid.get_node_ids())
    with pytest.raises(ValueError, match="asked twice"):
        ask(grid, [*nodes, nodes[0]])
    with pytest.raises(ValueError, match="are no clients"):
        ask(grid, [*nodes, run.nodes[0]])
    assert grid.spending().num_rounds == 0


def test_a_node_that_is_written_to_but_no_longer_listed_counts_as_joined() -> None:
    """It may be one of the others, restarted."""
    clients = grid_of(clients=60, limits=SUMS)
    grid, nodes = summed(clients), list(clients.get_node_ids())
    clients.get_node_ids = lambda: nodes[:30]  # type: ignore[method-assign]
    assert ask(grid, nodes[:30])
    assert ask(grid, nodes[30:])
    assert grid.accountant.worst_client_rounds == 2


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epsilon": None}, "give one of epsilon"),
        ({"local_epsilon": 1.0}, "goes with the name"),
        ({"epsilon": None, "randomizer": "privunit", "local_epsilon": 1.0, "num_queries": 4}, "num_queries"),
        ({"epsilon": None, "randomizer": "k-rr", "local_epsilon": 1.0}, "take vectors"),
        ({"epsilon": None, "randomizer": "privunit"}, "local_epsilon"),
        ({"randomizer": "privunit", "local_epsilon": 1.0}, "give one of epsilon"),
        ({"metrics": {}}, "nothing is asked for"),
        ({"metrics": ["age"]}, "names with what is told"),
        ({"metrics": {"age": (3, 1)}}, "in order"),
        ({"metrics": {"age": (0, 1, 2)}}, "the range of 'age' is two numbers"),
        ({"metrics": {"age": 3}}, "a kind of metric"),
        ({"metrics": {f"m{each}": Bins(0, 1, 1 << 20) for each in range(2)}}, "together"),
        ({"cohort": 1}, "cohort"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything(options: Any, match: str) -> None:
    clients = grid_of()
    with pytest.raises(ValueError, match=match):
        summed(clients, **options)
    assert clients.seen == []


def test_a_sum_of_ones_own_must_fit_the_metrics() -> None:
    mechanism = LaplaceVectorSum.with_noise(dim=10, cohort=30, noise_multiplier=3.0)
    grid = summed(grid_of(limits=SUMS), randomizer=mechanism, epsilon=None)
    assert len(ask(grid)) == 1
    with pytest.raises(ValueError, match=r"build the sum with honest_fraction=0\.5"):
        summed(grid_of(), randomizer=mechanism, epsilon=None, honest_fraction=0.5)
    half = LaplaceVectorSum.with_noise(dim=10, cohort=30, noise_multiplier=3.0, honest_fraction=0.5)
    for share in (1.0, 0.5):
        summed(grid_of(), randomizer=half, epsilon=None, honest_fraction=share)
    with pytest.raises(ValueError, match="build the sum with dim=11"):
        summed(grid_of(), AGES | {"height": (0, 3)}, randomizer=mechanism, epsilon=None)
    counts_alone = DecoyVectorSum.with_noise(dim=1, cohort=30, noise_multiplier=3.0, signed=False)
    with pytest.raises(ValueError, match="signed=True"):
        summed(grid_of(), {"height": (0, 3)}, randomizer=counts_alone, epsilon=None)


@first_fast("verified", [False, True])
def test_aggregators_add_up_what_nobody_sees(tmp_path: Path, verified: bool) -> None:
    run = SharedRun(folder=tmp_path)
    run.app.query()(query)
    stage = run.new_stage(verified=verified)
    grid = QueryGrid(run.grid, AGES, cohort=4, delta=1e-3, epsilon=8.0, shuffler=stage)
    nodes = list(grid.get_node_ids())
    assert nodes == run.nodes[2:]  # aggregators are no clients
    [reply] = ask(grid, nodes)
    stated = reply.content["standard_errors"]["age"]
    assert reply.content["privacy"]["reports"] == 6
    ages = reply.content["query_results"]["age"]
    assert ages[:3] == pytest.approx([4, 2, 0], abs=7 * max(stated, 1))
    assert "aggregators" in str(grid.statement())


def test_what_record_of_reads_is_what_vector_of_wrote() -> None:
    asked = metrics_of(EVERYTHING)
    vectors = [vector_of(asked, RecordDict({"m": MetricRecord(held(i))}), failed_share=0) for i in range(40)]
    told = record_of(asked, torch.stack(vectors).mean(dim=0), reports=40)
    assert told["age"] == pytest.approx([4.0] * 10, abs=1e-4)
    assert told["smokes"] == pytest.approx(10, abs=1e-4)
    assert told["kind"] == pytest.approx([14, 13, 13], abs=1e-4)
    assert told["height"] == pytest.approx(1.5, abs=1e-4)
    assert told["income"] == pytest.approx([251, 501, 901], abs=25)


@pytest.mark.parametrize("coefficients", [(1,), (2, 1)])
def test_a_query_is_no_window_of_sums(coefficients: tuple[int, ...]) -> None:
    windowed = WindowedSum(dim=10, cohort=30, levels=8, coins=1000, coefficients=coefficients)
    with pytest.raises(ValueError, match="take a VectorSum"):
        QueryGrid(grid_of(), AGES, cohort=30, delta=1e-5, randomizer=windowed)


def test_a_node_that_another_grid_of_one_budget_never_saw_may_be_a_busy_one_restarted() -> None:
    accountant = FederatedAccountant()
    first, second = (summed(grid_of(clients=60, limits=SUMS), ledger=accountant) for _ in range(2))
    nodes = list(first.get_node_ids())
    assert ask(first, nodes[:30])
    assert ask(second, nodes[30:])
    assert accountant.worst_client_rounds == 2
