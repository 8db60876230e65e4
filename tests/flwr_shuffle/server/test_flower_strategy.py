"""Rounds of ShuffleStrategy around strategies of Flower's and of one's own."""

import logging
import random

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    Strategy,
)
from flwr_shuffle import (
    FixedSize,
    InMemoryStage,
    InProcessGrid,
    ShuffleGrid,
    WrongRecipients,
)
from flwr_shuffle.messages import plain_payload
from flwr_shuffle.updates import Layout
from strategy_harness import (
    CLIENTS,
    MODEL,
    client_app,
    delta,
    grid_of,
    honest_payload,
    numpy_of,
    plain_app,
    record,
    shuffled,
    train,
    update,
)
from thinning import first_fast

from shuffle_plugins.accounting import Adversary, BudgetExceeded, FederatedAccountant
from shuffle_plugins.ledger import BudgetLedger, LedgerError, RoundState, read_budget
from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler import InMemoryShuffler

FLOATS = {name: value for name, value in MODEL.items() if name != "batches"}
MEAN = np.mean([update(client) for client in range(CLIENTS)], axis=0)


def moved(arrays):
    return delta(Layout.of(record(MODEL)), arrays, record(MODEL)).numpy()


class Own(Strategy):
    """A user's strategy: sends to everybody, goes half of the way, and knows nothing of shuffling."""

    def __init__(self):
        self.rounds = []
        self.replies = []
        self.before = None

    def configure_train(self, server_round, arrays, config, grid):
        self.before = arrays
        self.rounds.append(server_round)
        content = RecordDict({"model": arrays, "lr": config})
        return (Message(content, node, "train") for node in grid.get_node_ids())

    def aggregate_train(self, server_round, replies):
        self.replies = list(replies)
        [reply] = self.replies
        old, new = numpy_of(self.before), numpy_of(reply.content["model"])
        return record({name: (old[name] + new[name]) / 2 for name in old}), None

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self):
        pass


def _config():
    from flwr.app import ConfigRecord

    return ConfigRecord()


@pytest.mark.parametrize(
    ("inner", "noise"),
    [
        (lambda: FedAvg(fraction_evaluate=0.0), 0.05),
        (lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.7, server_momentum=0.9), 0.08),
        (lambda: FedAdam(fraction_evaluate=0.0, tau=0.3), 0.02),
        (lambda: FedYogi(fraction_evaluate=0.0, tau=0.3), 0.02),
        (lambda: FedAdagrad(fraction_evaluate=0.0, tau=0.3), 0.02),
        (lambda: FedProx(fraction_evaluate=0.0, proximal_mu=0.1), 0.05),
        (lambda: FedAvg(fraction_evaluate=0.0, weighted_by_key="weight", arrayrecord_key="model"), 0.05),
    ],
    ids=["FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedProx", "other keys"],
)
def test_strategies_do_as_they_do_without(inner, noise):
    def unprotected(message, context):
        reply = train(message, context)
        [key] = message.content.array_records
        metrics = MetricRecord({"num-examples": 1, "weight": 1})
        return Message(RecordDict({key: reply.content["arrays"], "metrics": metrics}), reply_to=message)

    app = ClientApp()
    app.train()(unprotected)
    plain = inner().start(InProcessGrid(app, num_nodes=CLIENTS), record(FLOATS), num_rounds=3)
    ours = shuffled(inner()).start(grid_of(), record(FLOATS), num_rounds=3)
    for name, expected in numpy_of(plain.arrays).items():
        np.testing.assert_allclose(numpy_of(ours.arrays)[name], expected, atol=noise)
        assert numpy_of(ours.arrays)[name].dtype == FLOATS[name].dtype


def test_a_strategy_of_ones_own():
    inner = Own()
    result = shuffled(inner).start(grid_of(), record(MODEL), num_rounds=2)
    np.testing.assert_allclose(moved(result.arrays), MEAN, atol=0.03)  # half the way, twice
    assert inner.rounds == [1, 2]
    [reply] = inner.replies
    assert reply.metadata.src_node_id not in grid_of().get_node_ids()
    assert sorted(reply.content) == ["metrics", "model"]
    assert dict(reply.content["metrics"]) == {"num-examples": 1}


# -- cohorts ------------------------------------------------------------------------------------------------


class Impatient(Own):
    def configure_train(self, server_round, arrays, config, grid):
        while len(list(grid.get_node_ids())) < 1000:
            pass
        return []


class Doubling(Own):
    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        return [*messages[:-1], messages[0]]


@pytest.mark.parametrize(
    "inner",
    [
        lambda: FedAvg(fraction_train=0.5),
        lambda: FedAvg(min_available_nodes=CLIENTS + 1),
        lambda: FedAvg(min_train_nodes=CLIENTS + 1),
        lambda: FedAvg(fraction_train=0.0),
        Impatient,
        Doubling,
    ],
    ids=["half", "waits for more", "wants more", "none", "waits", "twice"],
)
def test_strategies_that_sample_on_their_own_are_told(inner, tmp_path):
    ledger = BudgetLedger(tmp_path / "ledger", model="m")
    strategy = shuffled(inner(), ledger=ledger)
    with pytest.raises(WrongRecipients, match="fraction_train"):
        strategy.start(grid_of(), record(MODEL), num_rounds=1)
    assert ledger.rounds() == []


def test_equal_models_may_be_different_records():
    class Equal(Own):
        def configure_train(self, server_round, arrays, config, grid):
            self.before = arrays
            for node in grid.get_node_ids():
                yield Message(RecordDict({"model": record(MODEL)}), node, "train")

    result = shuffled(Equal()).start(grid_of(), record(MODEL), num_rounds=1)
    np.testing.assert_allclose(moved(result.arrays), MEAN / 2, atol=0.02)


class Connecting(InProcessGrid):
    """Its nodes connect one after another; a few more with every look."""

    def __init__(self, app, counts):
        super().__init__(app, num_nodes=max(counts))
        self._counts = iter(counts)
        self._now = 0

    def get_node_ids(self):
        self._now = next(self._counts, self._now)
        return super().get_node_ids()[: self._now]


def test_the_draw_and_the_books_are_of_one_look(tmp_path):
    """FedAvg alone would compute its cohort from the first few that connected."""
    grid = Connecting(client_app(), [3, 9, 25, 40, 80])
    with BudgetLedger(tmp_path / "ledger", model="m") as ledger:
        strategy = shuffled(sampling=FixedSize(10), population=20, ledger=ledger)
        strategy.start(grid, record(MODEL), num_rounds=1)
        [entry] = ledger.rounds()
    assert (entry.charged.observer.population, entry.charged.observer.cohort) == (25, 10)
    assert (entry.charged.server.population, entry.participants) == (10, 10)


# -- what is not released -----------------------------------------------------------------------------------


def failing(count):
    def payload(message, context):
        if context.node_config["partition-id"] < count:
            raise RuntimeError
        return honest_payload(message, context)

    return payload


def test_drop_outs_cost_what_was_received_and_too_few_reports_release_nothing(tmp_path):
    with BudgetLedger(tmp_path / "ledger", model="m") as ledger:
        strategy = shuffled(ledger=ledger)
        few = strategy.start(grid_of(failing(5)), record(MODEL), num_rounds=1)
        assert ledger.last_checkpoint() is None
        assert few.train_metrics_clientapp == {}
        np.testing.assert_array_equal(moved(few.arrays), 0)
        assert strategy.accountant.num_rounds == 0  # the stage let nobody see them
        result = strategy.start(grid_of(failing(4)), record(MODEL), num_rounds=1)
        refused, entry = ledger.rounds()
    assert refused.state is RoundState.REFUSED
    assert result.train_metrics_clientapp[1]["reports"] == 16
    assert (entry.charged.reports, entry.participants, entry.state) == (16, 16, RoundState.COMPLETE)
    aim = np.mean([update(client) for client in range(4, CLIENTS)], axis=0)
    np.testing.assert_allclose(moved(result.arrays), aim, atol=0.035)


def test_nodes_started_anew_may_be_clients_of_before(tmp_path):
    class Restarted(InProcessGrid):
        looks = 0

        def get_node_ids(self):
            self.looks += 1
            nodes = super().get_node_ids()
            return nodes[:CLIENTS] if self.looks <= 3 else nodes[CLIENTS:]

    strategy = shuffled(ledger=tmp_path / "ledger")
    strategy.start(Restarted(client_app(), num_nodes=2 * CLIENTS), record(MODEL), num_rounds=5)
    assert strategy.spending().worst_client_rounds == 5
    [budget] = read_budget(tmp_path / "ledger", delta=1e-6)
    assert budget.total.spending.worst_client_rounds == 5
    again = shuffled(ledger=tmp_path / "ledger")
    again.start(grid_of(), record(MODEL), num_rounds=6)
    assert again.spending().worst_client_rounds == 6


def test_a_second_start_trains_the_model_it_is_given():
    strategy = shuffled()
    strategy.start(grid_of(), record(MODEL), num_rounds=1)
    other = {**MODEL, "scale": np.array(100.0, dtype=np.float32)}
    result = strategy.start(grid_of(), record(other), num_rounds=1)
    assert abs(float(result.arrays["scale"].numpy()) - 100) < 1
    assert strategy.accountant.num_rounds == 2


def sending_dummies(count):
    def payload(message, context):
        honest = honest_payload(message, context)
        if context.node_config["partition-id"] < count:
            return plain_payload(None, size=len(honest) - 1)
        return honest

    return payload


@pytest.mark.parametrize(("unwilling", "earlier"), [(failing(10), 0), (sending_dummies(10), 10)])
def test_clients_that_never_report_hide_nobody(unwilling, earlier, monkeypatch):
    """Not either if all clients of an earlier start() of the strategy have answered."""
    # Half of the clients never report. Rounds that are released drew many willing ones by chance: here with
    # a seed, since too few rounds are released once in some thousand runs.
    draws = random.Random(0)
    monkeypatch.setattr(random, "SystemRandom", lambda: draws)
    strategy = shuffled(sampling=FixedSize(4), minimum_reports=3, local_epsilon=2.0, randomizer="linf-block")
    if earlier:
        strategy.start(grid_of(), record(MODEL), num_rounds=earlier)
    strategy.start(grid_of(unwilling), record(MODEL), num_rounds=40)
    charged = [each.federated_round.observer for each in strategy.accountant.history[earlier:]]
    assert charged
    assert charged[-1].population <= 11
    assert charged[-1].sampling_rate >= 4 / 15


def test_a_mixers_lost_answer_is_charged_in_full(tmp_path):
    from flwr_shuffle.grids import Anonymous

    from shuffle_plugins.shuffler import Refusal

    class Lost(InMemoryStage):
        def collect(self, replies):
            return Anonymous(reports=None, answered=CLIENTS, participants=(), refusal=Refusal.NO_ANSWER)

    with BudgetLedger(tmp_path / "ledger", model="m") as ledger:
        strategy = shuffled(ledger=ledger, shuffler=Lost(InMemoryShuffler()))
        strategy.start(grid_of(), record(MODEL), num_rounds=1)
        [entry] = ledger.rounds()
    assert entry.state is RoundState.REFUSED
    assert entry.charged.reports == strategy.minimum_reports


# -- the budget ---------------------------------------------------------------------------------------------


@first_fast("adversary", list(Adversary))
def test_the_budget_ends_the_run_before_it_is_exceeded(adversary, tmp_path):
    answered = []

    def payload(message, context):
        answered.append(context.node_id)
        return honest_payload(message, context)

    with BudgetLedger(tmp_path / "ledger", model="m") as ledger:
        options = {
            "randomizer": "laplace",
            "local_epsilon": 1.0,
            "clipping_norm": 1.0,
            "sampling": FixedSize(10),
            "budget_against": adversary,
            "max_epsilon": 3.0,
            "ledger": ledger,
        }
        strategy = shuffled(**options)
        with pytest.raises(BudgetExceeded, match=f"against {adversary} over 3"):
            strategy.start(grid_of(payload), record(MODEL), num_rounds=100)
        rounds = strategy.accountant.num_rounds
        assert 1 <= rounds < 100
        assert len(answered) == 10 * rounds
        assert strategy.get_epsilon(1e-6) <= 3.0
        saved = ledger.last_checkpoint()
        assert saved.server_round == rounds
        resumed = shuffled(**options)
        with pytest.raises(PrivacyBudgetExhausted):
            resumed.start(grid_of(payload), record(MODEL), num_rounds=100)
        assert len(answered) == 10 * rounds
    np.testing.assert_array_equal(moved(resumed.arrays), moved(strategy.arrays))
    assert np.abs(moved(strategy.arrays)).max() > 0


def test_what_a_round_cost_is_told_and_asked():
    strategy = shuffled(randomizer="linf-block", local_epsilon=2.0, sampling=FixedSize(10))
    result = strategy.start(grid_of(), record(MODEL), num_rounds=2)
    told = result.train_metrics_clientapp[2]
    assert sorted(told) == ["epsilon-observer", "epsilon-server", "reports"]
    spending = strategy.spending()
    assert told["epsilon-observer"] == pytest.approx(spending.observer.upper, rel=0.02)
    assert told["epsilon-server"] == pytest.approx(spending.server.upper, rel=0.02)
    assert told["epsilon-observer"] < told["epsilon-server"] <= 4.0
    assert (spending.server.adversary, spending.num_rounds) == ("server", 2)
    spent = strategy.get_privacy_spent()
    assert (spent.epsilon, spent.num_releases) == (told["epsilon-observer"], 2)
    fresh = shuffled()
    fresh.load_state_dict(strategy.state_dict())
    assert fresh.get_epsilon(1e-6) == pytest.approx(strategy.get_epsilon(1e-6), rel=0.02)


class Named(InProcessGrid):
    """A grid of a run that has an app's name, as those of Flower's engines have."""

    def __init__(self, name, clients=CLIENTS):
        super().__init__(client_app(), num_nodes=clients)
        self.run.fab_id = name


def test_another_project_does_not_go_on_with_the_first_ones_model(tmp_path, monkeypatch):
    """Both say ledger="budget.db", and both run in the SuperLink's folder."""
    monkeypatch.chdir(tmp_path)
    first = shuffled(ledger="budget.db")
    first.start(Named("clinic/digits"), record(MODEL), num_rounds=2)
    with pytest.raises(LedgerError, match=r"budget\.db holds .*'clinic/digits'.*'bank/loans'"):
        shuffled(ledger="budget.db").start(Named("bank/loans"), record(MODEL), num_rounds=2)
    with pytest.raises(LedgerError, match="other arrays"):
        shuffled(ledger="budget.db").start(Named("clinic/digits"), record(FLOATS), num_rounds=2)
    apart = shuffled(ledger=BudgetLedger("budget.db", model="loans"))
    apart.start(Named("bank/loans"), record(MODEL), num_rounds=1)
    assert apart.accountant.num_rounds == 1
    renamed = shuffled(ledger=BudgetLedger("budget.db", app="clinic/digits"))
    renamed.start(Named("clinic/figures"), record(MODEL), num_rounds=3)
    assert renamed.accountant.num_rounds == 3


# -- the rest of Flower's loop ------------------------------------------------------------------------------


def test_nothing_is_asked_for_evaluation_unless_the_user_says_so(caplog):
    """Flower's strategies ask everybody by default."""
    asked = []
    app = client_app()
    app.evaluate()(lambda message, context: asked.append(1))
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = shuffled(FedAvg()).start(InProcessGrid(app, num_nodes=CLIENTS), record(MODEL), num_rounds=2)
    assert not asked
    assert result.evaluate_metrics_clientapp == {}
    assert "clients are asked nothing" in caplog.text


def test_raw_evaluation_is_left_alone():
    app = client_app()

    @app.evaluate()
    def evaluate(message, context):
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": 2, "loss": 3.0})}), reply_to=message
        )

    rounds = []
    result = shuffled(FedAvg(), evaluation="raw").start(
        InProcessGrid(app, num_nodes=CLIENTS),
        record(MODEL),
        num_rounds=2,
        evaluate_fn=lambda now, arrays: rounds.append(now) or MetricRecord({"round": now}),
    )
    assert result.evaluate_metrics_clientapp[2]["loss"] == pytest.approx(3.0)
    assert rounds == [0, 1, 2]
    assert result.evaluate_metrics_serverapp[2]["round"] == 2


def test_rounds_need_the_grid():
    strategy = shuffled()
    with pytest.raises(ValueError, match="ShuffleGrid"):
        strategy.configure_train(1, record(MODEL), _config(), grid_of())
    grid = ShuffleGrid(grid_of(), stage=strategy.settings.stage)
    messages = strategy.configure_train(1, record(MODEL), _config(), grid)
    with pytest.raises(ValueError, match="not shuffled"):
        strategy.aggregate_train(1, grid_of().send_and_receive(messages))
    with pytest.raises(ValueError, match="did not begin"):
        strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert strategy.aggregate_train(1, []) == (None, None)
    with pytest.raises(ValueError, match="another stage"):
        shuffled().start(grid, record(MODEL))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"minimum_reports": 21}, "needs 21 reports"),
        ({"shuffler": InMemoryShuffler(minimum=21)}, "needs 21 reports"),
        ({"max_epsilon": float("nan")}, "max_epsilon"),
        ({"randomizer": MechanismSpec(name="laplace", local_epsilon=1.0)}, "leave out both"),
        ({"randomizer": "privunits"}, "did you mean 'privunit' .* a sum is an object"),
        ({"clipping_norm": None}, "'laplace', give clipping_norm .* begin with 1.0"),
        ({"ledger": "nowhere/budget.db"}, "budget ledger: the folder .*nowhere does not exist"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, match):
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        shuffled(**options)


def test_a_cohort_larger_than_the_population_is_said_to_be_everybody(caplog):
    caplog.set_level("INFO", logger="flwr")
    shuffled(sampling=FixedSize(CLIENTS)).summary()
    assert "sampling earns nothing" not in caplog.text
    shuffled(sampling=FixedSize(CLIENTS + 1)).summary()
    assert f"with {CLIENTS} clients all are invited, and sampling earns nothing" in caplog.text


def test_the_rounds_are_those_of_the_accountant_or_the_ledger_given(tmp_path):
    accountant = FederatedAccountant(method="rdp")
    assert shuffled(ledger=accountant).accountant is accountant
    assert shuffled(ledger=BudgetLedger(tmp_path / "x", method="rdp")).accountant.method == "rdp"


def test_a_state_older_than_what_is_recorded_is_refused(tmp_path):
    strategy = shuffled()
    states = [strategy.state_dict()]
    for rounds in (1, 2):
        strategy.start(grid_of(), record(MODEL), num_rounds=1)
        states.append(strategy.state_dict())
        assert strategy.accountant.num_rounds == rounds
    for older in states[:2]:
        with pytest.raises(ValueError, match="older than this strategy"):
            strategy.load_state_dict(older)
    assert strategy.accountant.num_rounds == 2
    strategy.load_state_dict(states[2])
    other = shuffled(local_epsilon=300.0)
    other.start(grid_of(), record(MODEL), num_rounds=1)
    with pytest.raises(ValueError, match="older"):  # of another run: its rounds would be forgotten
        other.load_state_dict(states[2])
    grid = ShuffleGrid(grid_of(), stage=strategy.settings.stage)
    strategy.configure_train(1, record(MODEL), _config(), grid)
    with pytest.raises(ValueError, match="older"):  # without the round under way
        strategy.load_state_dict(states[2])
    with pytest.raises(ValueError, match="ledger"):
        shuffled(ledger=tmp_path / "y").load_state_dict(states[2])


def test_an_app_without_the_mod_ends_the_run_and_says_so(caplog):
    strategy = shuffled()
    with (
        caplog.at_level(logging.WARNING, logger="flwr"),
        pytest.raises(ValueError, match="ShuffleMod the first"),
    ):
        strategy.start(InProcessGrid(plain_app(), num_nodes=CLIENTS), record(MODEL), num_rounds=2)
    assert "result" not in caplog.text  # before the error, a line on the round would only mislead


def test_an_error_that_is_survived_is_charged_too(tmp_path, monkeypatch):
    """The same strategy object goes on after an exception in a round."""
    run = shuffled(sampling=FixedSize(10), ledger=tmp_path / "ledger")
    with monkeypatch.context() as patched:
        patched.setattr(InMemoryStage, "collect", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run.start(grid_of(), record(MODEL), num_rounds=1)
    run.start(grid_of(), record(MODEL), num_rounds=1)
    assert run.accountant.num_rounds == 2
    with BudgetLedger(tmp_path / "ledger", model="model") as ledger:
        assert [entry.state for entry in ledger.rounds()] == [RoundState.OPEN, RoundState.COMPLETE]
