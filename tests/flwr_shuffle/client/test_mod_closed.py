"""What a client does not answer: everything that would leave it without protection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from flwr_shuffle import InProcessGrid, register_mix_node
from flwr_shuffle.client import ShuffleMod
from flwr_shuffle.messages import ClientRefusal, Role, refusal_in
from mod_harness import GENEROUS, app, instruction, question, record

from shuffle_plugins.mechanisms import MechanismSpec
from shuffle_plugins.shuffler import Refusal

SPEC = MechanismSpec(name="linf-block", local_epsilon=4.0)
SECRET = np.linspace(-1, 1, 793).astype(np.float32)
RAW = ["evaluate", "evaluate.more", "query", "query.more", "get_parameters", "get_properties", "reconnect"]


def _context(config: dict[str, Any] | None = None) -> Context:
    return Context(1, 2, config or {}, RecordDict(), {})


def _dot(message: Message, context: Context) -> Message:
    """Evaluation of a linear model: its loss is the model's product with the client's data."""
    weight = message.content["arrays"]["w"].numpy()  # type: ignore[union-attr]
    told = MetricRecord({"loss": float(weight @ SECRET)})
    return Message(RecordDict({"metrics": told}), reply_to=message)


@pytest.mark.parametrize("kind", RAW)
def test_what_is_not_allowed_is_not_even_computed(kind: str) -> None:
    InProcessGrid(app(_dot), num_nodes=1)
    asked: list[str] = []

    def answering(message: Message, context: Context) -> Message:
        asked.append(kind)
        return _dot(message, context)

    message = question({"w": SECRET}, None, node=2, kind=kind)
    answer = ShuffleMod(limits=GENEROUS)(message, _context(), answering)
    assert answer.error.reason == ClientRefusal.NOT_ALLOWED
    assert not asked


@pytest.mark.parametrize("kind", ["evaluate", "query", "evaluate.more", "get_parameters", "get_properties"])
def test_what_the_operator_allows_passes_as_it_is(kind: str) -> None:
    InProcessGrid(app(_dot), num_nodes=1)
    content = RecordDict({"metrics": MetricRecord({"accuracy": 0.75})})
    message = question({"w": SECRET}, None, node=2, kind=kind)
    key = f"shuffle-allow-{kind.partition('.')[0].replace('_', '-')}"

    def answering(asked: Message, context: Context) -> Message:
        return Message(content, reply_to=asked)

    allowed = ShuffleMod()(message, _context({key: True, "partition-id": 1}), answering)
    assert allowed.content is content
    for config in ({key: False}, {"shuffle-max-rounds": 3}):
        assert ShuffleMod()(message, _context(config), answering).has_error()


def test_the_app_cannot_open_what_an_operator_left_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app's code comes with the run, so it may be the server's."""
    InProcessGrid(app(_dot), num_nodes=1)
    mod = ShuffleMod(allow="evaluate")
    message = question({"w": SECRET}, None, node=2, kind="evaluate")
    assert not mod(message, _context({"partition-id": 1}), _dot).has_error()
    answer = mod(message, _context({"shuffle-max-local-epsilon": 4.0}), _dot)
    assert answer.error.reason == ClientRefusal.NOT_ALLOWED
    monkeypatch.setattr(TaskIdentity, "_node_id", 4711)  # as on a SuperNode, whose operator set nothing
    assert mod(message, _context({"partition-id": 1}), _dot).error.reason == ClientRefusal.NOT_ALLOWED


@pytest.mark.parametrize("query", [Role.MIXER.question, Role.MIXER.work])
@pytest.mark.parametrize("registered", [True, False])
def test_a_client_says_no_more_than_that_it_is_not_the_mixer(query: str, registered: bool) -> None:
    client_app = ClientApp(mods=[ShuffleMod(limits=GENEROUS)])
    if registered:
        register_mix_node(client_app)
    else:
        client_app.query(query.partition(".")[2])(_dot)
    grid = InProcessGrid(client_app, num_nodes=1)
    asked = Message(RecordDict({"arrays": record({"w": SECRET})}), grid.get_node_ids()[0], query)
    [answer] = grid.send_and_receive([asked])
    assert refusal_in(answer.content) is Refusal.NOT_THIS_ROLE


@pytest.mark.parametrize("kind", ["train", "evaluate", "query", "query.more", "get_properties"])
def test_a_service_node_answers_its_own_queries_alone(kind: str) -> None:
    """What an app answers to others would leave the node without protection; nor does it train."""
    InProcessGrid(app(_dot), num_nodes=1)
    message = question({"w": SECRET}, instruction(SPEC), node=2, kind=kind)
    answer = ShuffleMod(limits=GENEROUS)(message, _context({"shuffle-role": "mixer"}), _dot)
    assert answer.error.reason == ClientRefusal.SERVICE_NODE


def test_every_refusal_is_documented_where_it_sends_people() -> None:
    """The keys that refusals name are in the guide."""
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "flower.md").read_text()
    for code in ClientRefusal:
        for word in code.replace("=", " ").replace(",", " ").replace(";", " ").split():
            if word.startswith("shuffle-"):
                assert word in guide, word
