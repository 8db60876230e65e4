"""A model's arrays as the one vector that is clipped, randomised and averaged, and back."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

_KEPT_KINDS = "iub"
_STATISTICS = (
    "running_mean",
    "running_var",
    "num_batches_tracked",
)  # as torch names those of BatchNorm and its kin
_NUMPY = "numpy.ndarray"
_LENGTHS = {b"\x93NUMPY\x01\x00": struct.Struct("<H"), b"\x93NUMPY\x02\x00": struct.Struct("<I")}


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    shape: tuple[int, ...]
    dtype: str
    moves: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """Names, shapes and types of a model's arrays, in order: where each is in the vector.

    In the vector are the floating-point entries, also of 0-d arrays, of all arrays that are trained. Other
    arrays never leave a client, and the server keeps its own.

    Build one with :meth:`of`.
    """

    places: tuple[_Place, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Array], *, trained: Collection[str] = ()) -> Self:
        """The layout of these arrays, by what they declare.

        Args:
            arrays: of the model.
            trained: names of the arrays that are trained; all of floating-point numbers if it is empty.

        Raises:
            ValueError: if an array is neither of floating-point numbers nor of integers or bools, none that
                is trained has floating-point entries, or one that is to be trained has none.
        """
        named = frozenset(trained)
        places = []
        for name, array in arrays.items():
            dtype = _dtype(name, array.dtype)
            moves = np.dtype(dtype).kind == "f" and (not named or name in named)
            places.append(_Place(name, tuple(int(length) for length in array.shape), dtype, moves))
        layout = cls(tuple(places))
        if layout.dim == 0:
            raise ValueError("the model has no floating-point entries: there is nothing to train")
        if strange := sorted(named - {place.name for place in places if place.moves}):
            raise ValueError(f"the model has no floating-point array {strange[0]!r} that could be trained")
        return layout

    @property
    def dim(self) -> int:
        """Length of the vector: the number of floating-point entries."""
        return sum(place.size for place in self.places if place.moves)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits, the same for equal layouts only."""
        listed = [[place.name, list(place.shape), place.dtype] for place in self.places]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:32]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the vector: float64 if an array is of float64 or wider, else float32."""
        widest = max(np.dtype(place.dtype).itemsize for place in self.places if place.moves)
        return torch.float64 if widest > 4 else torch.float32

    def flatten(self, arrays: Mapping[str, Array]) -> Tensor:
        """The entries that are trained as one vector (dim,), in the layout's order and its ``dtype``.

        Arrays are found by name; they may have another order and precision. Others are not read, and may be
        missing.

        Raises:
            ValueError: if one is missing, or holds another shape, or no floating-point numbers.
        """
        wide = self.dtype == torch.float64
        vector: NDArray[np.floating] = np.empty(self.dim, dtype=np.float64 if wide else np.float32)
        start = 0
        for place in self.places:
            if place.moves:
                vector[start : start + place.size] = _read(_named(arrays, place.name), place).reshape(-1)
                start += place.size
        return torch.from_numpy(vector)

    def delta(self, new: Mapping[str, Array], old: Mapping[str, Array]) -> Tensor:
        """What training changed, (dim,): new minus old.

        Raises:
            ValueError: as :meth:`flatten`.
        """
        return self.flatten(new).sub_(self.flatten(old))

    def shifted(self, arrays: Mapping[str, Array], mean: Tensor) -> ArrayRecord:
        """The arrays moved by a vector (dim,); those that are not trained as they are.

        Raises:
            ValueError: if the arrays are not of this layout, or the vector has another length.
        """
        if mean.shape != (self.dim,):
            raise ValueError(
                f"this model has {self.dim} floating-point entries to train, got {tuple(mean.shape)}"
            )
        steps = mean.detach().cpu().to(torch.float64).numpy()
        moved: dict[str, Array] = {}
        start = 0
        for place in self.places:
            array = _named(arrays, place.name)
            if place.moves:
                values = _read(array, place)
                step = steps[start : start + place.size].reshape(place.shape)
                with np.errstate(over="ignore"):
                    moved[place.name] = Array(np.asarray(values + step, dtype=place.dtype))
                start += place.size
            else:
                moved[place.name] = array
        return ArrayRecord(moved)


def running_statistics(arrays: Iterable[str]) -> list[str]:
    """Those of the names that are running statistics'; without names, as of NumPy lists, none can be told."""
    return [name for name in arrays if name.endswith(_STATISTICS)]


def trained_names(arrays: Mapping[str, Array], *, wanted: Callable[[str], bool] | None) -> tuple[str, ...]:
    """Names of the arrays that are trained, for :meth:`Layout.of`; empty for all of floating-point numbers.

    They are those of floating-point numbers that are wanted (None for all) and are no running statistics. A
    running variance with noise is soon negative, and then every output of the model is NaN.

    Raises:
        ValueError: if there are none.
    """
    floats = [place.name for place in Layout.of(arrays).places if place.moves]
    left = running_statistics(floats)
    chosen = tuple(name for name in floats if name not in left and (wanted is None or wanted(name)))
    if not chosen:
        raise ValueError(f"trained= is true for no array that could be trained; there are {floats}")
    return chosen if len(chosen) < len(floats) else ()


def _named(arrays: Mapping[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"array {name!r} is missing")
    return arrays[name]


def _dtype(name: str, declared: str) -> str:
    try:
        dtype = np.dtype(declared)
    except TypeError as error:
        raise ValueError(f"array {name!r} has an unknown type, {declared!r}") from error
    if dtype.kind != "f" and dtype.kind not in _KEPT_KINDS:
        raise ValueError(f"array {name!r} is of {declared}: only real numbers and integers can be trained")
    return str(dtype)


def _read(array: Array, place: _Place) -> NDArray[np.floating]:
    """The numbers that an array holds; their shape is checked, as it need not be what the array declares."""
    try:
        values = _loaded(array)
    except Exception as error:  # NumPy's parser raises many kinds
        raise ValueError(f"array {place.name!r} cannot be read") from error
    if values.shape != place.shape or values.dtype.kind != "f":
        raise ValueError(
            f"array {place.name!r} holds {values.dtype}{values.shape}, the model's {place.dtype}{place.shape}"
        )
    return values


def _loaded(array: Array) -> NDArray[Any]:
    """What ``array.numpy()`` returns, read-only and without a copy.

    NumPy parses the header of each array as a Python literal, which takes longer than reading the numbers of
    most layers. The headers of a model recur with every client and round, so parsed headers are kept.
    """
    data = array.data
    if array.stype != _NUMPY or data[:8] not in _LENGTHS:
        return array.numpy()
    length = _LENGTHS[data[:8]]
    if len(data) < 8 + length.size:
        raise ValueError("truncated array")
    start = 8 + length.size + length.unpack_from(data, 8)[0]
    shape, fortran, dtype = _header(data[:start])
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    if len(data) != start + math.prod(shape) * dtype.itemsize:
        raise ValueError("truncated array, or more than one")
    return np.ndarray(shape, dtype, buffer=data, offset=start, order="F" if fortran else "C")


@lru_cache(maxsize=1024)
def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = BytesIO(data)
    major, _ = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, fortran, dtype
