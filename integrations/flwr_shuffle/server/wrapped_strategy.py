"""What must be known of a strategy that is wrapped: its messages, its weight, its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

# Flower has no public address for the id of the server.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flwr_shuffle.messages import RECORD_KEY
from flwr_shuffle.server.cohort_view import CohortView, check_messages, check_minimums

_WEIGHT_KEY = "num-examples"
_METRICS_KEY = "metrics"


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy, and what it wraps by Flower's own custom."""
    layer: Any = strategy
    while isinstance(layer, Strategy):
        yield layer
        layer = getattr(layer, "strategy", None)


def messages_of(
    strategy: Strategy,
    *,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    cohort: Sequence[int],
) -> list[Message]:
    """What the strategy sends to a cohort.

    Raises:
        WrongRecipients: if it does not send to all of the cohort, once each, or waits for more nodes.
    """
    for layer in layers(strategy):
        check_minimums(layer, cohort=len(cohort))
    view = CohortView(grid, cohort=cohort)
    messages = list(strategy.configure_train(server_round, arrays, config, view))
    check_messages(messages, cohort=cohort)
    return messages


def evaluation_messages(
    strategy: Strategy,
    *,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    cohort: Sequence[int],
) -> list[Message]:
    """The model for a cohort to evaluate, under the names that the strategy gives its records."""
    config["server-round"] = server_round  # as Flower's own strategies do
    key = _named(strategy, "arrayrecord_key", "arrays")
    content = RecordDict({key: arrays, _named(strategy, "configrecord_key", "config"): config})
    return [Message(content, node, MessageType.EVALUATE) for node in cohort]


def model_of(messages: Sequence[Message], *, kind: str = MessageType.TRAIN) -> tuple[str, ArrayRecord]:
    """The model in a round's messages, which must be one and the same, and its key.

    Raises:
        ValueError: if there is no such model, a message is not for training, or has no place for the
            instruction.
    """
    contents = {}
    for message in messages:
        if message.metadata.message_type.split(".")[0] != kind:
            raise ValueError("the inner strategy's messages of a training round must be of type train")
        contents[id(message.content)] = message.content
    models: dict[int, tuple[str, ArrayRecord]] = {}
    for content in contents.values():
        if RECORD_KEY in content:
            raise ValueError(
                f"the record {RECORD_KEY!r} is the instruction's; the inner strategy needs another key"
            )
        records = content.array_records
        if len(records) != 1:
            raise ValueError("the inner strategy must send the model as the one ArrayRecord of each message")
        ((key, arrays),) = records.items()
        models[id(arrays)] = (key, arrays)
    (key, arrays), *others = models.values()
    if any(other != (key, arrays) for other in others):
        raise ValueError(
            "the inner strategy sends different models to different clients: the mean of their updates has "
            "no model to belong to"
        )
    return key, arrays


def _named(strategy: Strategy, attribute: str, otherwise: str) -> str:
    names = (getattr(layer, attribute, None) for layer in layers(strategy))
    return next((name for name in names if name), otherwise)


def weight_key(strategy: Strategy) -> str:
    """Under which the strategy expects a client's weight among its metrics."""
    return _named(strategy, "weighted_by_key", _WEIGHT_KEY)


def synthetic_reply(strategy: Strategy, arrays: ArrayRecord, *, key: str) -> Message:
    """The one reply that stands for a whole round: a model of weight 1, from nobody."""
    weight = weight_key(strategy)
    content = RecordDict({key: arrays, _METRICS_KEY: MetricRecord({weight: 1})})
    return Message(content, dst_node_id=SUPERLINK_NODE_ID, message_type=MessageType.TRAIN)


def typed_alike(arrays: ArrayRecord, before: ArrayRecord) -> ArrayRecord:
    """The arrays in the types they had.

    Averaging makes floats of integers. No client trained those, so they keep the values they had.
    """
    typed = {}
    for name, array in arrays.items():
        old = before.get(name)
        if old is None or tuple(old.shape) != tuple(array.shape) or old.dtype == array.dtype:
            typed[name] = array
        elif old.numpy().dtype.kind == "f":
            typed[name] = Array(array.numpy().astype(old.dtype))
        else:
            typed[name] = old
    return ArrayRecord(typed)
