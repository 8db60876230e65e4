"""A round through the shuffling grid leaves no name and no order; whatever could tell them is refused."""

import os

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr_shuffle import InMemoryStage, ShuffleMod
from flwr_shuffle.grids import AnonymousReply, InProcessGrid, ShuffleGrid
from flwr_shuffle.messages import RECORD_KEY, ClientRefusal, Instruction, plain_payload
from mod_harness import GENEROUS
from strategy_harness import DIM, MODEL, grid_of, honest_payload, plain_app, record, train

from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler import InMemoryShuffler

SPEC = MechanismSpec(name="linf-block", local_epsilon=2.0)


def stage(minimum=2):
    return InMemoryStage(InMemoryShuffler(minimum=minimum))


def instruction(**fields):
    return Instruction(
        **({"token": os.urandom(16), "run": "r", "server_round": 1, "mechanism": SPEC} | fields)
    )


def question(node, asked, model=None):
    content = RecordDict({"arrays": record(MODEL) if model is None else model, RECORD_KEY: asked.to_record()})
    return Message(content, node, "train")


def ask(grid, *, asked=None, nodes=None):
    asked = asked or instruction()
    [reply] = grid.send_and_receive([question(node, asked) for node in nodes or grid.get_node_ids()])
    assert isinstance(reply, AnonymousReply)
    assert reply.token == asked.token
    return reply


def test_a_mixer_that_the_server_forgot_says_so_and_is_asked_once(caplog):
    """The run's stage lacks its key, so nothing but the node's own answer tells it from a client."""
    app = ClientApp(mods=[ShuffleMod(limits=GENEROUS)])
    app.train()(train)
    mixers = [{"shuffle-role": "mixer", "shuffle-mixer-key-file": "right.key", "shuffle-min-batch": 2}]
    inner = InProcessGrid(app, num_nodes=4, node_config=lambda i: (mixers + [{}] * 3)[i])
    grid = ShuffleGrid(inner, stage=stage())
    with caplog.at_level("WARNING", logger="flwr"):
        reply = ask(grid)
    assert reply.errors == {ClientRefusal.SERVICE_NODE: 1}
    assert reply.anonymous.count == 3
    assert "MixNodeStage(mixer_public_key=" in caplog.text
    assert grid.get_node_ids() == inner.get_node_ids()[1:]


def test_replies_come_back_as_one_from_nobody():
    inner = grid_of(clients=6)
    grid = ShuffleGrid(inner, stage=stage())
    reply = ask(grid)
    assert reply.metadata.src_node_id not in inner.get_node_ids()
    assert reply.metadata.reply_to_message_id == ""
    found = reply.anonymous
    assert (found.count, found.answered, found.unreadable, reply.errors.total()) == (6, 6, 0, 0)
    assert len(reply.anonymous.reports) == 6
    assert reply.anonymous.participants == tuple(str(node) for node in inner.get_node_ids())


def test_reasons_that_are_no_constant_of_the_mod_are_not_logged(caplog):
    """Any client, and any other mod, can write what it likes under the mod's error code."""
    app = ClientApp()

    @app.train()
    def _(message, context):
        known = context.node_config["partition-id"] == 0
        reason = str(ClientRefusal.MAX_ROUNDS) if known else "row 17 holds 42\nforged line"
        return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=message)

    with caplog.at_level("WARNING", logger="flwr"):
        ask(ShuffleGrid(InProcessGrid(app, num_nodes=3), stage=stage()))
    logged = [entry.getMessage() for entry in caplog.records]
    assert logged[0] == "3 of 3 clients answered with an error"
    assert f"\t1: {ClientRefusal.MAX_ROUNDS}" in logged
    assert "42" not in "".join(logged)


def test_what_is_no_report_is_dropped_and_counted():
    def payload(message, context):
        good = honest_payload(message, context)
        other = MechanismSpec(name="linf-coordinate", local_epsilon=2.0)
        wrong = plain_payload(
            other.build(dim=DIM).outcomes().narrow(0, 1).to_bytes(), size=other.report_bytes(dim=DIM)
        )
        forgeries = [b"\x02" + good[1:], good[:-1], good + b"\0", good[:9] + b"\xff" + good[10:], wrong, b"x"]
        place = context.node_config["partition-id"]
        return forgeries[place] if place < len(forgeries) else good

    anonymous = ask(ShuffleGrid(grid_of(payload, clients=10), stage=stage())).anonymous
    assert (len(anonymous.reports), anonymous.unreadable, anonymous.answered) == (4, 6, 4)


def test_dummies_answer_and_do_not_report():
    def payload(message, context):
        report = honest_payload(message, context)
        return report if context.node_config["partition-id"] < 4 else bytes(len(report))

    # Where all are asked for a report (participation 1), a dummy is no answer.
    for participation, answered in ((1 - 1e-9, 9), (1.0, 4)):
        asked = instruction(participation=participation)
        anonymous = ask(ShuffleGrid(grid_of(payload, clients=9), stage=stage()), asked=asked).anonymous
        found = (len(anonymous.reports), anonymous.answered, anonymous.unreadable)
        assert found == (4, answered, 0)


def test_rounds_that_are_not_one_round_are_refused():
    grid = ShuffleGrid(grid_of(clients=3), stage=stage())
    first, second, third = grid.get_node_ids()
    asked = instruction()
    bare = Message(RecordDict({"arrays": record(MODEL)}), third, "train")
    other_model = record({"weight": MODEL["weight"]})
    for sent, match in [
        ([question(first, asked), bare], "every message"),
        ([question(first, asked), question(second, instruction())], "same instruction"),
        ([question(first, asked), question(second, asked, other_model)], "different models"),
        ([question(first, asked), question(first, asked)], "twice"),
    ]:
        with pytest.raises(ValueError, match=match):
            grid.send_and_receive(sent)


def test_rounds_are_not_pushed_message_by_message():
    grid = ShuffleGrid(grid_of(clients=2), stage=stage())
    first, second = grid.get_node_ids()
    with pytest.raises(ValueError, match="send_and_receive"):
        grid.push_messages([question(first, instruction()), question(second, instruction())])


def test_other_messages_pass():
    grid = ShuffleGrid(InProcessGrid(plain_app(), num_nodes=3), stage=stage())
    sent = [Message(RecordDict({"arrays": record(MODEL)}), node, "train") for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(sent))
    assert [reply.metadata.src_node_id for reply in replies] == grid.get_node_ids()
    assert len(list(grid.pull_messages(grid.push_messages(sent)))) == 3


class _WithMixer(InMemoryStage):
    def __init__(self, mixer):
        super().__init__(InMemoryShuffler())
        self._mixer = mixer

    @property
    def excluded_nodes(self):
        return frozenset({self._mixer})


def test_nodes_of_the_stage_are_no_clients():
    inner = grid_of(clients=5)
    mixer = inner.get_node_ids()[2]
    grid = ShuffleGrid(inner, stage=_WithMixer(mixer))
    assert mixer not in grid.get_node_ids()
    assert mixer not in [node.node_id for node in grid.get_nodes()]
    assert len(grid.get_node_ids()) == 4
    with pytest.raises(ValueError, match="mix node"):
        grid.send_and_receive([question(mixer, instruction())])
