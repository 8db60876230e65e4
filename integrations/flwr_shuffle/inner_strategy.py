"""The inner strategy: whether it can be wrapped, its messages, its one reply, its state and ``start``."""

from __future__ import annotations

import inspect
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

# Flower exports this constant only from a private module.
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray
from typing_extensions import override

from flwr_shuffle.grids import WrappedGrid

# strategies that one reply does not serve, and what to do instead
_REFUSED: dict[tuple[type[Strategy], ...], str] = {
    (flowers.Krum, flowers.MultiKrum, flowers.Bulyan, flowers.FedMedian, flowers.FedTrimmedAvg): (
        "compares the clients' single updates, and in a shuffled round the server has only their noisy mean: "
        "nothing would be left out or outvoted. Use FedAvg, FedAvgM, FedAdam or FedYogi. What bounds a "
        "dishonest client here is clipping_norm, which no report exceeds by more than the mechanism's noise"
    ),
    (flowers.QFedAvg,): (
        "weighs every update by that client's own loss, and no loss leaves a client in a shuffled round. Use "
        "FedAvg or FedAdam; Updates(max_examples=…) weighs updates on the clients"
    ),
    (flowers.FedXgbBagging, flowers.FedXgbCyclic): (
        "collects the trees that clients grew, and trees have no mean that could be randomised. Train a "
        "model of floating-point parameters, with FedAvg or FedAdam"
    ),
    (
        flowers.DifferentialPrivacyClientSideAdaptiveClipping,
        flowers.DifferentialPrivacyClientSideFixedClipping,
        flowers.DifferentialPrivacyServerSideAdaptiveClipping,
        flowers.DifferentialPrivacyServerSideFixedClipping,
    ): (
        "clips or adds noise a second time, to reports that clients have clipped and randomised already, and "
        "its own accounting would be of something else. Give the strategy that it wraps; a clipping norm "
        "that moves by itself is Updates(adaptive_clipping=…)"
    ),
}
_START = ("grid", "initial_arrays", "num_rounds", "timeout", "train_config", "evaluate_config", "evaluate_fn")
_REDIRECTED = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
_OF_ONE_REPLY = {"FedAvg", "FedAvgM", "FedProx", "FedAdagrad", "FedAdam", "FedYogi"}
_ARRAY_KEY = "\x00array"


class WrongRecipients(ValueError):
    """The inner strategy does not send to exactly the cohort that was drawn and is accounted for."""


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy and those that it wraps, as Flower's own wrappers do, in an attribute ``strategy``."""
    layer: Any = strategy
    while isinstance(layer, Strategy):
        yield layer
        layer = getattr(layer, "strategy", None)


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy that one reply a round does not serve, or whose own ``start`` cannot be run."""
    for layer in layers(strategy):
        for kinds, why in _REFUSED.items():
            if isinstance(layer, kinds):
                raise ValueError(f"{type(layer).__name__} {why}")
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


def needs_one_reply(strategy: Strategy) -> bool:
    """Whether a strategy, and all that it wraps, aggregate in a way known to work with a single reply."""
    known = {getattr(flowers, name).aggregate_train for name in _OF_ONE_REPLY}
    return all(type(layer).aggregate_train in known for layer in layers(strategy))


def own_start(strategy: Strategy) -> bool:
    """Whether a strategy has a ``start`` of its own."""
    return type(strategy).start is not Strategy.start


def starting(strategy: Strategy, *, host: Strategy) -> Callable[..., Any]:
    """The strategy's own ``start``, with its own attributes and the rounds of ``host``."""
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
    """The messages of a round that a strategy sends: one to each of a cohort, to nobody else."""
    advice = (
        f"the cohort of {len(cohort)} is drawn by ShuffleStrategy, and the inner strategy must send to all "
        "of it: give it fraction_train=1.0, and min_train_nodes and min_available_nodes of at most the cohort"
    )
    for layer in layers(strategy):
        for name in ("min_train_nodes", "min_available_nodes"):
            least = getattr(layer, name, 0)
            if isinstance(least, int) and least > len(cohort):
                raise WrongRecipients(f"the inner strategy has {name}={least}; {advice}")
    view = CohortView(grid, cohort=cohort, advice=advice)
    messages = list(strategy.configure_train(server_round, arrays, config, view))
    if sorted(message.metadata.dst_node_id for message in messages) != sorted(cohort):
        raise WrongRecipients(f"the inner strategy sends {len(messages)} messages; {advice}")
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


def weight_key(strategy: Strategy) -> str:
    """The key under which the strategy expects a client's weight among the metrics."""
    return _named(strategy, "weighted_by_key", "num-examples")


def synthetic_reply(strategy: Strategy, arrays: ArrayRecord, *, key: str) -> Message:
    """The one reply that stands for all replies of a round: a model of weight 1, without a sender."""
    content = RecordDict({key: arrays, "metrics": MetricRecord({weight_key(strategy): 1})})
    return Message(content, dst_node_id=SUPERLINK_NODE_ID, message_type=MessageType.TRAIN)


def typed_alike(arrays: ArrayRecord, before: ArrayRecord) -> ArrayRecord:
    """The arrays in the types that they had before; integers, which no client trained, as they were."""
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


class CohortView(WrappedGrid):
    """Another grid as if only the cohort were connected; a strategy that waits for more is stopped."""

    def __init__(self, grid: Grid, *, cohort: Sequence[int], advice: str) -> None:
        super().__init__(grid)
        self._cohort = list(cohort)
        self._advice = advice
        self._reads = 0

    @override
    def get_node_ids(self) -> list[int]:
        self._reads += 1
        if self._reads > 10:
            raise WrongRecipients(f"the inner strategy waits for more nodes; {self._advice}")
        return list(self._cohort)


@dataclass(frozen=True)
class ModelState:
    """What a run is resumed from: the model, :func:`strategy_state`, and a clipping norm that adapts."""

    arrays: ArrayRecord
    strategy: Any = None
    clipping_norm: float | None = None

    def to_bytes(self) -> bytes:
        """The arrays as an npz archive, the rest as JSON within it."""
        held: dict[str, NDArray[Any]] = {
            f"model-{place}": array.numpy() for place, array in enumerate(self.arrays.values())
        }
        header = {
            "names": list(self.arrays.keys()),
            "strategy": _packed(self.strategy, held),
            "clipping_norm": self.clipping_norm,
        }
        held["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **held)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ModelState:
        """Read what :meth:`to_bytes` wrote."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:

                def held(value: dict[str, Any]) -> Any:
                    return archive[value[_ARRAY_KEY]] if value.keys() == {_ARRAY_KEY} else value

                header = json.loads(archive["header"].tobytes(), object_hook=held)
                arrays = {name: Array(archive[f"model-{i}"]) for i, name in enumerate(header["names"])}
                return cls(ArrayRecord(arrays), header["strategy"], header["clipping_norm"])
        except (KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, json.JSONDecodeError) as error:
            raise ValueError("these bytes are not a checkpoint") from error


def strategy_state(strategy: object) -> Any:
    """What a strategy keeps between rounds: its ``state_dict()``, or the moments of Flower's optimisers."""
    if _has_state_dict(strategy):
        return cast(Any, strategy).state_dict()
    moments = {name: getattr(strategy, name, None) for name in ("m_t", "v_t", "momentum_vector")}
    return {name: value for name, value in moments.items() if value is not None} or None


def restore_strategy(strategy: object, state: Any) -> None:
    """Give a strategy back what :func:`strategy_state` took from one of its kind."""
    if state is None:
        return
    if _has_state_dict(strategy):
        cast(Any, strategy).load_state_dict(state)
        return
    if not isinstance(state, Mapping) or not all(hasattr(strategy, name) for name in state):
        raise ValueError(
            f"the checkpoint was written under another strategy than {type(strategy).__name__}: go on with "
            "the same one, or start another model"
        )
    for name, value in state.items():
        setattr(strategy, name, value)


def _has_state_dict(strategy: object) -> bool:
    return hasattr(strategy, "state_dict") and hasattr(strategy, "load_state_dict")


def _packed(value: Any, held: dict[str, NDArray[Any]]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        name = f"state-{len(held)}"
        held[name] = np.asarray(value)
        if held[name].dtype.hasobject:
            raise ValueError("a strategy's state holds an array of Python objects; it cannot be saved")
        return {_ARRAY_KEY: name}
    if isinstance(value, list | tuple):
        return [_packed(entry, held) for entry in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != _ARRAY_KEY for key in value):
        return {key: _packed(entry, held) for key, entry in value.items()}
    raise ValueError(
        f"a strategy's state holds a {type(value).__name__}; it may hold mappings with string keys, lists, "
        "NumPy arrays, numbers, strings, bools and None"
    )
