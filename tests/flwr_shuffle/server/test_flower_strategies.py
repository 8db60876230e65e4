"""Every strategy of Flower's is run or refused, custom ``start`` methods run, and clients that cannot come
are not waited for."""

import logging
import time

import flwr.serverapp.strategy as flowers
import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp.strategy import FedAvg, Krum, Result
from flwr_shuffle import FixedSize, ShuffleGrid, Waiting
from flwr_shuffle.grids import InProcessGrid
from flwr_shuffle.rounds import connected, is_simulation
from strategy_harness import CLIENTS, MODEL, client_app, grid_of, numpy_of, record, shuffled

from shuffle_plugins.accounting import FederatedAccountant, FederatedRound

SINGLE, TWICE = "single updates", "second time"
REFUSED = {
    "Bulyan": ((), SINGLE),
    "FedMedian": ((), SINGLE),
    "FedTrimmedAvg": ((), SINGLE),
    "Krum": ((), SINGLE),
    "MultiKrum": ((), SINGLE),
    "QFedAvg": ((0.1,), "own loss"),
    "FedXgbBagging": ((), "trees"),
    "FedXgbCyclic": ((), "trees"),
    "DifferentialPrivacyServerSideFixedClipping": ((FedAvg(), 1.0, 1.0, 10), TWICE),
    "DifferentialPrivacyClientSideFixedClipping": ((FedAvg(), 1.0, 1.0, 10), TWICE),
    "DifferentialPrivacyServerSideAdaptiveClipping": ((FedAvg(), 0.1, 10), TWICE),
    "DifferentialPrivacyClientSideAdaptiveClipping": ((FedAvg(), 0.1, 10), TWICE),
}
RUN = {"FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi"}
FLOATS = {name: value for name, value in MODEL.items() if name != "batches"}


def test_every_strategy_of_flowers_is_decided():
    """A new strategy in Flower fails here until somebody decides."""
    assert set(flowers.__all__) - {"Result", "Strategy"} == RUN | REFUSED.keys()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_strategies_that_need_single_replies_are_refused(name):
    arguments, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason) as told:
        shuffled(getattr(flowers, name)(*arguments))
    assert name in str(told.value)
    assert "FedAvg" in str(told.value) or "strategy that it wraps" in str(told.value)


def test_they_are_refused_inside_wrappers_and_as_base_classes_too():
    class Mine(Krum):
        pass

    wrapper = FedAvg()
    wrapper.strategy = Krum()  # where Flower's own wrappers have what they wrap
    for inner in (wrapper, Mine()):
        with pytest.raises(ValueError, match="single updates"):
            shuffled(inner)


# -- a strategy's own start ---------------------------------------------------------------------------------


class Saving(FedAvg):
    """After CustomFedAvg of Flower's examples/advanced-pytorch (Apache-2.0): its own loop, with results after
    every round, the best model kept, and a learning rate halved on the way."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round == 2:
            config["lr"] = config["lr"] * 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
    ):
        self.best, self.told = -1.0, []
        result, arrays = Result(), initial_arrays
        for now in range(1, num_rounds + 1):
            messages = self.configure_train(now, arrays, train_config, grid)
            released, metrics = self.aggregate_train(now, grid.send_and_receive(messages, timeout=timeout))
            if released is not None:
                result.arrays = arrays = released
            result.train_metrics_clientapp[now] = metrics
            messages = self.configure_evaluate(now, arrays, ConfigRecord(), grid)
            self.aggregate_evaluate(now, grid.send_and_receive(messages, timeout=timeout))
            accuracy = evaluate_fn(now, arrays)["accuracy"]
            self.told.append((now, metrics["reports"], accuracy))
            if accuracy > self.best:
                self.best, self.best_model = accuracy, arrays
        return result


def test_a_start_of_ones_own_runs_on_shuffled_rounds(tmp_path):
    inner, config, seen = Saving(fraction_evaluate=0.0), ConfigRecord({"lr": 0.1}), []

    def evaluate(now, arrays):
        seen.append(now)
        return MetricRecord({"accuracy": [0, 0.2, 0.9, 0.5, 0.0][now]})

    def start(rounds):
        strategy = shuffled(inner, ledger=tmp_path / "books.db")
        result = strategy.start(
            grid_of(), record(FLOATS), num_rounds=rounds, train_config=config, evaluate_fn=evaluate
        )
        return strategy, result

    _, result = start(3)
    assert inner.told == [(1, CLIENTS, 0.2), (2, CLIENTS, 0.9), (3, CLIENTS, 0.5)]  # on the user's own object
    assert config["lr"] == 0.05
    assert set(result.train_metrics_clientapp) == {1, 2, 3}
    best, last = numpy_of(inner.best_model)["weight"], numpy_of(result.arrays)["weight"]
    assert not np.array_equal(best, last)  # of round 2, not 3
    again, _ = start(4)
    assert seen == [1, 2, 3, 4]  # it goes on after the ledger's last round
    assert again.accountant.num_rounds == 4


def test_a_start_that_wraps_flowers_runs_once():
    calls = []

    class Announcing(FedAvg):
        def start(self, *arguments, **named):
            calls.append("begun")
            result = super().start(*arguments, **named)
            calls.append(sorted(result.train_metrics_clientapp))
            return {"mine": result}

    result = shuffled(Announcing(fraction_evaluate=0.0)).start(grid_of(), record(FLOATS), num_rounds=2)
    assert calls == ["begun", [1, 2]]
    assert result["mine"].train_metrics_clientapp[1]["reports"] == CLIENTS


def test_a_start_that_cannot_be_run_is_refused():
    class Fewer(FedAvg):
        def start(self, grid, arrays):
            return None

    with pytest.raises(ValueError, match=r"own start\(\).*evaluate_fn.*subclass of ShuffleStrategy"):
        shuffled(Fewer())
    assigned = FedAvg()
    assigned.start = print
    with pytest.raises(ValueError, match=r"start\(\) assigned.*evaluate_fn"):
        shuffled(assigned)


# -- waiting for clients ------------------------------------------------------------------------------------


class Nodes(InProcessGrid):
    """Nodes with heartbeats, as many as ``counts`` says from look to look."""

    def __init__(self, counts, *, heartbeat):
        super().__init__(client_app(), num_nodes=CLIENTS)
        self._counts, self._heartbeat, self._now = iter(counts), heartbeat, 0
        self.looks = 0

    def get_node_ids(self):
        self.looks += 1
        self._now = next(self._counts, self._now)
        return super().get_node_ids()[: self._now]

    def get_nodes(self):
        return [
            NodeInfo(node_id=node, heartbeat_interval=self._heartbeat)
            for node in super().get_node_ids()[: self._now]
        ]


SIMULATED, SUPERNODE = 1e300, 30.0


def test_a_simulation_with_too_few_nodes_ends_at_once_and_says_how_to_set_them():
    with pytest.raises(TimeoutError, match=r"2 clients.*20 are needed.*'num-supernodes=20'"):
        connected(
            Nodes([2], heartbeat=SIMULATED),
            needed=20,
            enough=20,
            waiting=Waiting(poll_interval=0.01),
            settling=0.05,
        )


def test_a_simulation_whose_nodes_are_still_registering_is_waited_for():
    grid = Nodes([0, 0, 0, 2, 5, 20], heartbeat=SIMULATED)
    found = connected(grid, needed=20, enough=20, waiting=Waiting(poll_interval=0.001), settling=30)
    assert len(found) == 20


def test_supernodes_are_waited_for_as_long_as_the_user_says(caplog):
    grid = Nodes([2], heartbeat=SUPERNODE)
    begun, waiting = time.monotonic(), Waiting(connect_timeout=0.3, poll_interval=0.01)
    with (
        caplog.at_level(logging.INFO, logger="flwr"),
        pytest.raises(TimeoutError, match=r"wait longer than the 0.3 s of connect_timeout"),
    ):
        connected(grid, needed=20, enough=20, waiting=waiting, settling=0.01)
    assert time.monotonic() - begun >= 0.3
    assert "2 of 20 connected" in caplog.text


@pytest.mark.parametrize("left", [17, 15])
def test_a_client_that_is_gone_for_good_is_waited_for_once(left, caplog):
    """With a population of all clients a dead node ended the run, although the rest were enough."""
    grid = Nodes([20, *[left] * 40], heartbeat=SUPERNODE)
    strategy = shuffled(
        sampling=FixedSize(20),
        population=20,
        minimum_reports=16,
        waiting=Waiting(connect_timeout=0.3, poll_interval=0.01),
    )
    if left < 16:
        with pytest.raises(TimeoutError, match="15 clients are connected"):
            strategy.start(grid, record(FLOATS), num_rounds=3)
        return
    with caplog.at_level(logging.WARNING, logger="flwr"):
        result = strategy.start(grid, record(FLOATS), num_rounds=3)
    assert [told["reports"] for told in result.train_metrics_clientapp.values()] == [20, 17, 17]
    assert caplog.text.count("17 clients are connected") == 1
    expected = FederatedAccountant()
    mechanism = strategy.settings.mechanism.build(dim=sum(value.size for value in FLOATS.values()))
    for number in (20, 17, 17):
        drawn = FederatedRound.drawn(mechanism, candidates=number, invited=number, reports=number)
        expected.step(drawn, participants=None)
    assert strategy.get_epsilon(1e-6) == expected.epsilon(1e-6, lower=False).upper


def test_nodes_of_flowers_own_simulation_are_recognised():
    """Its engine registers two nodes, as ``flwr run .`` does by default."""
    from flwr.server.superlink.fleet.vce.vce_api import _register_nodes
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    _register_nodes(2, factory)
    assert is_simulation(factory.state().get_node_info())


# -- what noise leaves of a round ---------------------------------------------------------------------------


def test_a_hopeless_run_is_told_so_before_anything_is_sent(caplog):
    """Ten clients, 62,006 parameters, ε0 = 4: what Flower's quickstart-pytorch makes of a docs' snippet."""
    model = record({"weights": np.zeros(62_006, dtype=np.float32)})
    strategy = shuffled(
        randomizer="privunit", local_epsilon=4.0, clipping_norm=1.0, sampling=FixedSize(10), population=10
    )
    grid = grid_of(lambda message, context: pytest.fail("sent"), clients=10)
    with caplog.at_level(logging.INFO, logger="flwr"):
        shuffle_grid = ShuffleGrid(grid, stage=strategy.settings.stage)
        strategy.configure_train(1, model, ConfigRecord(), shuffle_grid)
    mechanism = strategy.settings.mechanism.build(dim=62_006)
    ratio = np.sqrt(10 / mechanism.worst_variance)
    [warning] = [entry for entry in caplog.records if "by noise more than by training" in entry.getMessage()]
    assert warning.levelname == "WARNING"
    assert f"at most {ratio:.2g} over all rounds" in warning.getMessage()
    assert f"about {np.ceil(10 / ratio**2):,.0f} reports" in warning.getMessage()
    assert "fewer parameters" in warning.getMessage()
    assert "multi-message sum" in warning.getMessage()
