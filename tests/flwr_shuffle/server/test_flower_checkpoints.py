"""Checkpoints bring back a model and a strategy as they were, and nothing in them is executed."""

import pickle

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from flwr_shuffle.inner_strategy import ModelState, restore_strategy, strategy_state
from strategy_harness import MODEL, grid_of, numpy_of, record, shuffled

from shuffle_plugins.ledger import BudgetLedger


def test_models_come_back_bit_by_bit():
    arrays = record(
        MODEL
        | {"half": np.array([1.5, np.inf], np.float16), "flags": np.array([True, False]), "none": np.ones(0)}
    )
    found = ModelState.from_bytes(ModelState(arrays).to_bytes())
    assert list(found.arrays) == list(arrays)
    assert found.strategy is None
    for name, array in arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
        assert found.arrays[name].numpy().tobytes() == array.numpy().tobytes()


def test_state_of_any_shape_comes_back():
    state = {
        "step": 3,
        "rate": 0.5,
        "on": True,
        "name": "x",
        "nothing": None,
        "moments": [np.arange(3), {"deep": np.float32(2)}],
    }
    found = ModelState.from_bytes(ModelState(record(MODEL), state).to_bytes()).strategy
    assert found.keys() == state.keys()
    np.testing.assert_array_equal(found["moments"][0], np.arange(3))
    assert found["moments"][1]["deep"] == 2
    assert {key: found[key] for key in ("step", "rate", "on", "name", "nothing")} == {
        key: state[key] for key in ("step", "rate", "on", "name", "nothing")
    }


@pytest.mark.parametrize("state", [{1: 2}, {"x": object()}, {"x": {1, 2}}, {"x": np.array([object()])}])
def test_state_that_would_need_pickle_is_refused(state):
    with pytest.raises(ValueError, match="state holds"):
        ModelState(record(MODEL), state).to_bytes()


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("executed",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a checkpoint",
        pickle.dumps(_Bomb()),
        ModelState(record(MODEL)).to_bytes()[:-40],
    ],
    ids=["empty", "text", "pickle", "cut"],
)
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match=r"not a checkpoint|pickled|allow_pickle"):
        ModelState.from_bytes(data)


def test_moments_of_flowers_strategies_are_kept():
    strategy = FedAdam(fraction_evaluate=0.0)
    assert strategy_state(strategy) is None
    strategy.m_t, strategy.v_t = {"w": np.ones(2)}, {"w": np.full(2, 3.0)}
    other = FedAdam(fraction_evaluate=0.0)
    restore_strategy(other, strategy_state(strategy))
    np.testing.assert_array_equal(other.v_t["w"], 3.0)
    with pytest.raises(ValueError, match="another strategy"):
        restore_strategy(FedAvg(fraction_evaluate=0.0), strategy_state(strategy))
    restore_strategy(other, None)
    np.testing.assert_array_equal(other.v_t["w"], 3.0)


class Counting(FedAvg):
    def __init__(self):
        super().__init__(fraction_evaluate=0.0)
        self.seen = 0

    def aggregate_train(self, server_round, replies):
        self.seen += 1
        return super().aggregate_train(server_round, replies)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def test_a_strategys_own_state_goes_with_the_model(tmp_path):
    path = tmp_path / "ledger"
    shuffled(Counting(), ledger=path).start(grid_of(), record(MODEL), num_rounds=2)
    inner = Counting()
    shuffled(inner, ledger=path).start(grid_of(), record(MODEL), num_rounds=3)
    assert inner.seen == 3


@pytest.mark.parametrize(
    "inner",
    [
        lambda: FedAdam(fraction_evaluate=0.0),
        lambda: FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.7, server_momentum=0.9),
    ],
    ids=["FedAdam", "FedAvgM"],
)
def test_a_run_in_two_parts_is_one_run(inner, tmp_path):
    path = tmp_path / "ledger"
    first, second = inner(), inner()
    half = shuffled(first, ledger=path).start(grid_of(), record(MODEL), num_rounds=2)
    moments = [np.copy(moment) for moment in _moments(first)]
    restored, evaluated = [], []

    def evaluate(now, arrays):
        if not evaluated:
            restored.extend(np.copy(moment) for moment in _moments(second))
            for name, expected in numpy_of(half.arrays).items():
                np.testing.assert_array_equal(numpy_of(arrays)[name], expected)
        evaluated.append(now)

    rest = shuffled(second, ledger=path).start(grid_of(), record(MODEL), num_rounds=4, evaluate_fn=evaluate)
    assert len(moments) == len(restored) > 0
    for before, after in zip(moments, restored, strict=True):
        np.testing.assert_array_equal(before, after)
    assert sorted(rest.train_metrics_clientapp) == [3, 4]
    assert evaluated == [2, 3, 4]
    with BudgetLedger(path, model="model") as ledger:
        assert [entry.server_round for entry in ledger.rounds()] == [1, 2, 3, 4]


def _moments(strategy):
    if isinstance(strategy, FedAvgM):
        return strategy.momentum_vector
    return [*strategy.m_t.values(), *strategy.v_t.values()]


def test_a_run_that_is_done_trains_no_more(tmp_path):
    path = tmp_path / "ledger"
    first = shuffled(ledger=path).start(grid_of(), record(MODEL), num_rounds=2)
    again = shuffled(ledger=path).start(grid_of(), record(MODEL), num_rounds=2)
    assert again.train_metrics_clientapp == {}
    for name, expected in numpy_of(first.arrays).items():
        np.testing.assert_array_equal(numpy_of(again.arrays)[name], expected)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = tmp_path / "ledger"
    shuffled(ledger=path).start(grid_of(), record(MODEL), num_rounds=1)
    other = ArrayRecord({"w": Array(np.zeros(9))})
    with pytest.raises(ValueError, match="a name of its own"):
        shuffled(ledger=path).start(grid_of(), other, num_rounds=2)
    second = shuffled(ledger=BudgetLedger(path, model="second"))
    assert second.start(grid_of(), other, num_rounds=1).train_metrics_clientapp
