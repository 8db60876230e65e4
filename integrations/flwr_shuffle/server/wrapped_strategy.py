"""Checks whether a strategy can be wrapped; builds its messages and its one reply; runs its own ``start``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

# Flower exports this constant only from a private module.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from flwr_shuffle.messages import RECORD_KEY
from flwr_shuffle.server.cohort import CohortView, check_messages, check_minimums

_ROBUST = (Krum, MultiKrum, Bulyan, FedMedian, FedTrimmedAvg)
_TREES = (FedXgbBagging, FedXgbCyclic)
_PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
_START = ("grid", "initial_arrays", "num_rounds", "timeout", "train_config", "evaluate_config", "evaluate_fn")
_REDIRECTED = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
# implementations of aggregate_train that are known to work with a single reply
_OF_ONE_REPLY = frozenset(
    kind.aggregate_train for kind in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)
)  # FedProx has FedAvg's
_WEIGHT_KEY = "num-examples"
_METRICS_KEY = "metrics"


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy and those that it wraps, as Flower's own wrappers do, in an attribute ``strategy``."""
    layer: Any = strategy
    while isinstance(layer, Strategy):
        yield layer
        layer = getattr(layer, "strategy", None)


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy that a shuffled round cannot serve, whatever wraps it.

    A round gives the inner strategy one reply, the mean of all reports. FedAvg, FedAvgM, FedProx, FedAdam,
    FedAdagrad and FedYogi need no more. A strategy that compares replies, or weighs them by what clients say
    of themselves, would run on that one reply and do nothing of what it is for.

    Raises:
        ValueError: if it needs single replies, trains trees, adds noise of its own, or has a ``start`` that
            cannot be called as Flower's. The text says what to use instead.
    """
    for layer in layers(strategy):
        name = type(layer).__name__
        if isinstance(layer, _ROBUST):
            raise ValueError(
                f"{name} compares the clients' single updates, and in a shuffled round the server has only "
                "their noisy mean: nothing would be left out or outvoted. Use FedAvg, FedAvgM, FedAdam or "
                "FedYogi. What bounds a dishonest client here is clipping_norm, which no report exceeds by "
                "more than the mechanism's noise"
            )
        if isinstance(layer, QFedAvg):
            raise ValueError(
                f"{name} weighs every update by that client's own loss, and no loss leaves a client in a "
                "shuffled round. Use FedAvg or FedAdam; max_examples=… weighs updates on the clients"
            )
        if isinstance(layer, _TREES):
            raise ValueError(
                f"{name} collects the trees that clients grew, and trees have no mean that could be "
                "randomised. Train a model of floating-point parameters, with FedAvg or FedAdam"
            )
        if isinstance(layer, _PRIVATE):
            raise ValueError(
                f"{name} clips or adds noise a second time, to reports that clients have clipped and "
                "randomised already, and its own accounting would be of something else. Give the strategy "
                "that it wraps; a clipping norm that moves by itself is adaptive_clipping=…"
            )
    _check_start(strategy)


def needs_one_reply(strategy: Strategy) -> bool:
    """True if every layer aggregates by a method in ``_OF_ONE_REPLY``; False for any custom aggregation."""
    return all(type(layer).aggregate_train in _OF_ONE_REPLY for layer in layers(strategy))


def own_start(strategy: Strategy) -> bool:
    """Whether a strategy has a ``start`` of its own, not Flower's."""
    return type(strategy).start is not Strategy.start


def starting(strategy: Strategy, *, host: Strategy) -> Callable[..., Any]:
    """The strategy's own ``start``, bound to a stand-in object whose rounds are run by ``host``.

    The stand-in shares the strategy's ``__dict__``, so ``start`` sets and reads the strategy's own
    attributes. Its ``configure_train``, ``aggregate_train``, ``configure_evaluate``, ``aggregate_evaluate``
    and ``summary`` are the host's, also when ``start`` calls ``super().start``.
    """
    inner = type(strategy)
    methods = {name: staticmethod(getattr(host, name)) for name in _REDIRECTED}
    stand_in = type(inner.__name__, (inner,), {"__module__": inner.__module__, **methods})
    acting: Strategy = object.__new__(stand_in)
    acting.__dict__ = strategy.__dict__  # one state, seen from both
    return acting.start


def messages_of(
    strategy: Strategy,
    *,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    cohort: Sequence[int],
) -> list[Message]:
    """The messages that a strategy sends to a cohort in a round of training.

    Raises:
        WrongRecipients: unless it sends one message to each client of the cohort, or if it waits for more.
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
    """Messages that ask a cohort to evaluate a model; its records have the names that the strategy uses."""
    config["server-round"] = server_round  # as Flower's own strategies do
    key = _named(strategy, "arrayrecord_key", "arrays")
    content = RecordDict({key: arrays, _named(strategy, "configrecord_key", "config"): config})
    return [Message(content, node, MessageType.EVALUATE) for node in cohort]


def model_of(messages: Sequence[Message], *, kind: str = MessageType.TRAIN) -> tuple[str, ArrayRecord]:
    """The model in a round's messages, the same in all of them, and the key of its record.

    Raises:
        ValueError: unless all messages carry the same single model; or if a message is not of this kind, or
            the key of the instruction is taken.
    """
    contents = {}
    for message in messages:
        if message.metadata.message_type.split(".")[0] != kind:
            raise ValueError(f"the inner strategy's messages of this round must be of type {kind}")
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


def weight_key(strategy: Strategy) -> str:
    """The key under which the strategy expects a client's weight among the metrics."""
    return _named(strategy, "weighted_by_key", _WEIGHT_KEY)


def synthetic_reply(strategy: Strategy, arrays: ArrayRecord, *, key: str) -> Message:
    """The one reply that stands for all replies of a round: a model of weight 1, without a sender."""
    content = RecordDict({key: arrays, _METRICS_KEY: MetricRecord({weight_key(strategy): 1})})
    return Message(content, dst_node_id=SUPERLINK_NODE_ID, message_type=MessageType.TRAIN)


def typed_alike(arrays: ArrayRecord, before: ArrayRecord) -> ArrayRecord:
    """The arrays in the types that they had before.

    Averaging makes integers floats. No client trained the integers, so they keep the values they had.
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


def _named(strategy: Strategy, attribute: str, otherwise: str) -> str:
    names = (getattr(layer, attribute, None) for layer in layers(strategy))
    return next((name for name in names if name), otherwise)


def _check_start(strategy: Strategy) -> None:
    name = type(strategy).__name__
    where = (
        "Move what it does into evaluate_fn, which is called after every round, or into a subclass of "
        "ShuffleStrategy with its own start"
    )
    if "start" in getattr(strategy, "__dict__", {}):
        raise ValueError(f"{name} had start() assigned on the object, which would not be run. {where}")
    if not own_start(strategy):
        return
    try:
        inspect.signature(strategy.start).bind(**dict.fromkeys(_START))
    except TypeError as error:
        raise ValueError(
            f"{name} has its own start(), and it does not take the arguments of Flower's ({error}). {where}"
        ) from error
    if any("__slots__" in vars(kind) and vars(kind)["__slots__"] for kind in type(strategy).__mro__):
        raise ValueError(f"{name} has its own start() and __slots__, which cannot be shared. {where}")
