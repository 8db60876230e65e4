"""A model, and what a strategy keeps beside it, as bytes and back; reading them executes no code."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

_VERSION = 1
_HEADER = "header"
_MODEL, _STATE = "model-", "state-"
_ARRAY_KEY = "\x00array"
_NORM, _INNER = "clipping-norm", "inner-strategy"
_MOMENTS = ("m_t", "v_t", "momentum_vector")


@dataclass(frozen=True, slots=True)
class ModelState:
    """What a run is resumed from.

    Attributes:
        arrays: the model.
        strategy: what is kept between rounds, by :func:`strategy_state`; None if that is nothing.
    """

    arrays: ArrayRecord
    strategy: Any = None

    def to_bytes(self) -> bytes:
        """The arrays as an npz archive, the rest as JSON within it.

        Raises:
            ValueError: if the strategy's state holds anything but mappings with string keys, lists, tuples,
                NumPy arrays, numbers, strings, bools and None.
        """
        held: dict[str, NDArray[Any]] = {}
        for place, array in enumerate(self.arrays.values()):
            held[f"{_MODEL}{place}"] = array.numpy()
        header = {
            "version": _VERSION,
            "names": list(self.arrays.keys()),
            "strategy": _packed(self.strategy, held),
        }
        held[_HEADER] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **held)
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ModelState:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            ValueError: if it is not that, or of another version.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                header = json.loads(archive[_HEADER].tobytes())
                if header["version"] != _VERSION:
                    raise ValueError(f"a checkpoint of version {header['version']}, not {_VERSION}")
                arrays = {
                    name: Array(archive[f"{_MODEL}{place}"]) for place, name in enumerate(header["names"])
                }
                return cls(ArrayRecord(arrays), _unpacked(header["strategy"], archive))
        except (KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, json.JSONDecodeError) as error:
            raise ValueError("these bytes are not a checkpoint") from error


def strategy_state(strategy: object, *, clipping_norm: float | None = None) -> Any:
    """What a run keeps between rounds beside the model, for :class:`ModelState`.

    Args:
        strategy: the inner strategy. Kept is its ``state_dict()``, or the moments of Flower's own optimisers;
            None if it has neither, and then it starts afresh when a run is resumed.
        clipping_norm: a clipping norm that adapts; None keeps nothing of it.
    """
    kept: Any
    if _has_state_dict(strategy):
        kept = cast(Any, strategy).state_dict()
    else:
        moments = {name: getattr(strategy, name, None) for name in _MOMENTS}
        kept = {name: value for name, value in moments.items() if value is not None} or None
    return kept if clipping_norm is None else {_NORM: clipping_norm, _INNER: kept}


def restore_strategy(strategy: object, state: Any) -> float | None:
    """Give a strategy back what :func:`strategy_state` took from one of its kind; returns the clipping norm.

    Raises:
        ValueError: if the strategy is of another kind.
    """
    norm = None
    if isinstance(state, dict) and state.keys() == {_NORM, _INNER}:
        norm, state = float(state[_NORM]), state[_INNER]
    if state is None:
        return norm
    if _has_state_dict(strategy):
        cast(Any, strategy).load_state_dict(state)
        return norm
    if not isinstance(state, Mapping) or not all(hasattr(strategy, name) for name in state):
        raise ValueError(
            f"the checkpoint was written under another strategy than {type(strategy).__name__}: go on with "
            "the same one, or start another model"
        )
    for name, value in state.items():
        setattr(strategy, name, value)
    return norm


def _has_state_dict(strategy: object) -> bool:
    return hasattr(strategy, "state_dict") and hasattr(strategy, "load_state_dict")


def _packed(value: Any, held: dict[str, NDArray[Any]]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        name = f"{_STATE}{len(held)}"
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


def _unpacked(value: Any, archive: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_unpacked(entry, archive) for entry in value]
    if isinstance(value, dict):
        if value.keys() == {_ARRAY_KEY}:
            return archive[value[_ARRAY_KEY]]
        return {key: _unpacked(entry, archive) for key, entry in value.items()}
    return value
