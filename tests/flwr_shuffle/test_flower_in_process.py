"""The grid in one process behaves as Flower's own, as far as an app can see."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from flwr_shuffle.grids import InProcessGrid

MODEL = ArrayRecord({"w": Array(np.zeros(3))})


def counting_app():
    app = ClientApp()

    @app.train()
    def train(message, context):
        seen = context.state["seen"]["rounds"] if "seen" in context.state else 0
        context.state["seen"] = MetricRecord({"rounds": seen + 1})
        position = context.node_config["partition-id"]
        moved = message.content["arrays"]["w"].numpy() + position
        message.content.clear()
        content = {
            "arrays": ArrayRecord({"w": Array(moved)}),
            "metrics": MetricRecord({"num-examples": 1, "rounds": seen + 1}),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        raise KeyError("a secret of the client")

    return app


def test_flower_strategy_trains_and_nodes_remember():
    grid = InProcessGrid(counting_app(), num_nodes=5)
    result = FedAvg(fraction_evaluate=0.0).start(grid, MODEL, num_rounds=3)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 3 * 2.0)
    assert result.train_metrics_clientapp[3]["rounds"] == pytest.approx(3)
    assert {grid.context(node).state["seen"]["rounds"] for node in grid.get_node_ids()} == {3}


def test_replies_bear_their_senders_and_what_they_answer():
    grid = InProcessGrid(counting_app(), num_nodes=4, run_id=77)
    sent = [Message(RecordDict({"arrays": MODEL}), node, "train") for node in grid.get_node_ids()]
    replies = grid.send_and_receive(sent)
    assert [reply.metadata.src_node_id for reply in replies] == grid.get_node_ids()
    assert [r.metadata.reply_to_message_id for r in replies] == [m.metadata.message_id for m in sent]
    assert {reply.metadata.run_id for reply in replies} == {77} == {grid.run.run_id}
    assert len({message.metadata.message_id for message in sent}) == 4
    assert "arrays" in sent[0].content  # the client cleared a copy


def test_exceptions_come_back_as_flower_sends_them():
    grid = InProcessGrid(counting_app(), num_nodes=1)
    [reply] = grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "evaluate")])
    assert reply.has_error()
    assert "a secret of the client" in reply.error.reason
    [reply] = grid.send_and_receive([Message(RecordDict(), grid.get_node_ids()[0], "query.unknown")])
    assert reply.has_error()


def test_pushed_messages_are_pulled_once():
    grid = InProcessGrid(counting_app(), num_nodes=2)
    ids = grid.push_messages(
        Message(RecordDict({"arrays": MODEL}), node, "train") for node in grid.get_node_ids()
    )
    assert len(grid.pull_messages(ids)) == 2
    assert grid.pull_messages(ids) == []


def test_node_config_by_position_or_for_all():
    by_position = InProcessGrid(counting_app(), num_nodes=3, node_config=lambda i: {"name": f"c{i}"})
    last = by_position.get_node_ids()[-1]
    assert by_position.context(last).node_config == {"name": "c2", "partition-id": 2, "num-partitions": 3}
    same = InProcessGrid(counting_app(), num_nodes=3, node_config={"partition-id": 9})
    assert same.context(last).node_config["partition-id"] == 9
    with pytest.raises(ValueError, match="no node"):
        same.context(last + 1)


def test_what_all_nodes_say_is_logged_once_a_round(caplog: pytest.LogCaptureFixture) -> None:
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        logging.getLogger("flwr").warning("%s, says node %d", "the same", context.node_id)
        raise ValueError("boom")

    grid = InProcessGrid(app, num_nodes=20)
    for rounds in (1, 2):
        messages = [Message(RecordDict(), dst_node_id=n, message_type="train") for n in grid.get_node_ids()]
        assert all(reply.has_error() for reply in grid.send_and_receive(messages))
        assert sum("the same" in record.getMessage() for record in caplog.records) == rounds
        assert sum("raised an exception" in record.getMessage() for record in caplog.records) == rounds
