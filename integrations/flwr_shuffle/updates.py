"""What a client reports of training, an update of the model, as a vector, and how it is prepared.

What is randomised is in the ball that the mechanism protects, so nothing here changes ε.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from shuffle_plugins.core.checks import Count, Fraction, Positive, Ranged, whole_number
from shuffle_plugins.core.rows import adapted_norm
from shuffle_plugins.mechanisms import Norm, PrivateSum

_log = logging.getLogger("flwr")

_ORDERS = {Norm.L1: 1.0, Norm.L2: 2.0, Norm.LINF: math.inf}
_BIT_SHARE = 0.3  # of the radius: a clearer bit leaves less of it to the update
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm and its kin
_KEPT = 0.9  # weight of the rounds before, so that about ten rounds count


def text_of(longest: int) -> Callable[[str, object], str]:
    """A check of a field of printable text."""

    def check(name: str, value: object) -> str:
        if type(value) is not str or not 1 <= len(value) <= longest or not value.isprintable():
            raise ValueError(f"{name} is a text of 1 to {longest} printable characters, got {value!r}")
        return value

    return check


def of_kind(kind: type, what: str) -> Callable[[str, object], object]:
    """A check of a field that holds an object of a class; ``what`` says what to give."""

    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be {what}, got {value!r}")
        return value

    return check


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
    """Names, shapes and types of a model's arrays, in order: where each is in the vector of all entries that
    are trained, also of 0-d arrays. Others never leave a client.
    """

    places: tuple[_Place, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, Array], *, trained: Collection[str] = ()) -> Self:
        """The layout of these arrays, by what they declare; all of floating-point numbers are trained if
        ``trained`` is empty. ValueError if there are none, or others than real numbers.
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

    def flatten(self, arrays: Mapping[str, Array]) -> Tensor:
        """The entries that are trained as one vector (dim,), float64 if one of the arrays is as wide, else
        float32. Arrays are found by name; they may have another order and precision.
        """
        widest = max(np.dtype(place.dtype).itemsize for place in self.places if place.moves)
        vector: NDArray[np.floating] = np.empty(self.dim, dtype=np.float64 if widest > 4 else np.float32)
        start = 0
        for place in self.places:
            if place.moves:
                vector[start : start + place.size] = _read(_named(arrays, place.name), place).reshape(-1)
                start += place.size
        return torch.from_numpy(vector)

    def shifted(self, arrays: Mapping[str, Array], mean: Tensor) -> ArrayRecord:
        """The arrays moved by a vector (dim,); those that are not trained as they are."""
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
    """Those of the names that are running statistics'."""
    return [name for name in arrays if name.endswith(_STATISTICS)]


def trained_names(arrays: Mapping[str, Array], *, wanted: Callable[[str], bool] | None) -> tuple[str, ...]:
    """Names, for :meth:`Layout.of`, of the arrays that are wanted (None: all), no running statistics."""
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
    if dtype.kind != "f" and dtype.kind not in "iub":
        raise ValueError(f"array {name!r} is of {declared}: only real numbers and integers can be trained")
    return str(dtype)


def _read(array: Array, place: _Place) -> NDArray[np.floating]:
    """The numbers that an array holds; their shape is checked, as it need not be what the array declares."""
    try:
        values = array.numpy()
    except Exception as error:  # NumPy's parser raises many kinds
        raise ValueError(f"array {place.name!r} cannot be read") from error
    if values.shape != place.shape or values.dtype.kind != "f":
        raise ValueError(
            f"array {place.name!r} holds {values.dtype}{values.shape}, the model's {place.dtype}{place.shape}"
        )
    return values


@dataclass(frozen=True, kw_only=True)
class QuantileClipping(Ranged):
    """A clipping norm that follows a quantile of the clients' updates, at no ε.

    It starts at ``clipping_norm`` (for a sum, at its ``radius``), and moves by exp(-learning_rate · (share of
    the clients whose updates were within it - quantile)) (Andrew, Thakkar, McMahan, Ramaswamy: Differentially
    Private Learning with Adaptive Clipping, 2021). A sum's ``dim`` must be one more than the model's.
    """

    quantile: Fraction = 0.5
    learning_rate: Positive = 0.2

    def moved(self, norm: float, *, share: float) -> float:
        """The next round's norm."""
        return adapted_norm(norm, share=share, quantile=self.quantile, learning_rate=self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class Updates(Ranged):
    """What clients report on, and how they prepare it.

    Args:
        max_examples: weighs each update, before it is clipped, by the client's number of examples divided by
            this public number, at most by 1. The weights stay on the clients. None weighs all alike.
        trained: which of the model's floating-point arrays are trained, by their names; never running
            statistics. Of all others the server's values stay.
        records_per_client: m, how many records each client has, if its reports are to be on single ones, of
            which it draws ``samples_per_client`` in secret in every round (:func:`drawn_record` says which).
            Every ε remains that of all of a client's records; ``accountant.records_epsilon`` has that of one.
        samples_per_client: s. With more than 1 every round is charged for ``minimum_reports`` clients, whose
            reports together are s·ε0-LDP.
    """

    adaptive_clipping: QuantileClipping | None = None
    max_examples: Annotated[int, whole_number(at_most=(1 << 53) - 1)] | None = None
    trained: Annotated[Callable[[str], bool], of_kind(Callable, "a function of an array's name")] | None = (
        None
    )
    records_per_client: Count = 1
    samples_per_client: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_client > self.records_per_client:
            raise ValueError(
                f"samples_per_client must be at most records_per_client, got {self.samples_per_client} of "
                f"{self.records_per_client}: a client reports on a record at most once in a round"
            )


@dataclass(frozen=True, kw_only=True)
class UpdateTerms(Ranged):
    """How every client of a round prepares its update, as of :class:`Updates`; a part of the instruction.

    Attributes:
        clipping_norm: the round's own, with a bit beside the update that says whether the update was within
            it. None clips to the mechanism's radius, without a bit.
        examples_key: key of the number of examples in the app's metrics.
        trained: names of the arrays that are trained; empty for all of floating-point numbers.
    """

    clipping_norm: Positive | None = None
    max_examples: Annotated[int, whole_number(at_most=(1 << 53) - 1)] | None = None  # exact in a float
    examples_key: Annotated[str, text_of(128)] = "num-examples"
    trained: tuple[str, ...] = ()

    @property
    def bits(self) -> int:
        """Numbers in a report beside the update."""
        return int(self.clipping_norm is not None)

    def weight(self, content: RecordDict) -> float:
        """The factor of an update, from what training returned."""
        if self.max_examples is None:
            return 1.0
        found = numbers_in(content, self.examples_key)
        if len(found) != 1 or not 0 <= found[0] < math.inf:
            raise ValueError(f"{self.examples_key!r} is no number of examples: {found}")
        return min(1.0, found[0] / self.max_examples)

    def prepared(self, update: Tensor, mechanism: PrivateSum) -> Tensor:
        """The vector (dim,) in the mechanism's ball for an update (dim - bits,); ValueError if not finite."""
        if not bool(update.isfinite().all()):
            raise ValueError("an update that is not finite")
        if self.clipping_norm is None:
            return update
        norm = mechanism.norm
        length = float(torch.linalg.vector_norm(update.double(), ord=_ORDERS[norm]))
        room, height = _shares(norm)
        within = length <= self.clipping_norm
        most = max(length, self.clipping_norm)
        scaled = update.double() * (room * mechanism.radius / most)
        bit = scaled.new_tensor([height * mechanism.radius * (1 if within else -1)])
        return torch.cat([scaled, bit]).to(update.dtype)

    def mark(self, token: bytes, mechanism: PrivateSum) -> Tensor:
        """What a client whose app failed reports in place of its update: (dim - bits,), in the ball, alike
        for all.

        Its signs are a hash of the round's token, so no training goes that way but by chance: the mean of a
        round goes as far along it as clients failed. Vectors of fewer than 1,000 numbers (a mark would take
        away more than 0.1 %), and those of an l1 ball, whose noise hides it, have zeros, which tell nothing.
        """
        dim, norm = mechanism.dim - self.bits, mechanism.norm
        if dim < 1000 or norm is Norm.L1:
            return torch.zeros(dim)
        drawn = hashlib.shake_256(b"flwr_shuffle mark\n" + token).digest(-(-dim // 8))
        radius = mechanism.radius if self.clipping_norm is None else self.clipping_norm
        # a little inside, so that rounding leaves it within the clipping norm
        height = (1 - 2.0**-20) * radius / (math.sqrt(dim) if norm is Norm.L2 else 1)
        signs = np.unpackbits(np.frombuffer(drawn, np.uint8), count=dim).astype(np.float32)
        signs *= 2 * height
        signs -= height
        return torch.from_numpy(signs)

    def read(self, mean: Tensor, mechanism: PrivateSum) -> tuple[Tensor, float | None]:
        """The clipped updates' mean and the share within an adaptive norm, from the mean of the vectors."""
        if self.clipping_norm is None:
            return mean, None
        room, height = _shares(mechanism.norm)
        bit = float(mean[-1]) / (height * mechanism.radius)
        return mean[:-1] * (self.clipping_norm / (room * mechanism.radius)), min(max((1 + bit) / 2, 0.0), 1.0)


def _shares(norm: Norm) -> tuple[float, float]:
    """Shares of the radius that the update and the bit may fill, so that both together stay in the ball."""
    if norm == Norm.LINF:
        return 1.0, 1.0
    if norm == Norm.L1:
        return 1 - _BIT_SHARE, _BIT_SHARE
    return math.sqrt(1 - _BIT_SHARE**2), _BIT_SHARE


class Failures:
    """Reads from the means of a run's rounds which share of the reports are marks."""

    def __init__(self) -> None:
        self._along = self._most = self._variance = 0.0

    def read(self, mean: Tensor, mark: Tensor) -> tuple[Tensor, float | None]:
        """The mean without the mark, and the share of marks in the last ten rounds or so; None if the mark
        tells nothing. The log warns of a share that noise does not explain.
        """
        if not mark.any():
            return mean, None
        mark = mark.to(torch.float64)
        most = float(mark @ mark)
        along = float(mean.double() @ mark)
        rest = mean.double() - mark * (along / most)
        self._along = _KEPT * self._along + along
        self._most = _KEPT * self._most + most
        self._variance = _KEPT**2 * self._variance + float(rest @ rest) * most / len(mark)
        share, deviation = self._along / self._most, math.sqrt(self._variance) / self._most
        if share > 6 * deviation:  # chance alone goes so far with probability below exp(-18), by Hoeffding
            _log.warning(
                "aggregate_train: about %.0f %% (± %.0f %%) of the reports of the last rounds are of clients "
                "whose app failed: it raised an error, or returned numbers that are not finite, or not all "
                "arrays that are trained (trained=… says which). Their own logs say why",
                100 * share,
                100 * deviation,
            )
        # unbiased over the signs of the mark
        return (rest * (len(mark) / (len(mark) - 1))).to(mean.dtype), share


def numbers_in(content: RecordDict, name: str) -> list[float]:
    """The numbers that an app returned under a name, a single one as a list of it."""
    found = [record[name] for record in content.metric_records.values() if name in record]
    if len(found) != 1:
        names = sorted({each for record in content.metric_records.values() for each in record})
        raise ValueError(
            f"the app returned {len(found)} values as {name!r}; its MetricRecords have {names}. Names that "
            "the server asks for must be among the app's, each once"
        )
    [value] = found
    numbers = [float(each) for each in value] if isinstance(value, list) else [float(value)]
    if any(map(math.isnan, numbers)):
        raise ValueError(f"the app returned NaN as {name!r}")
    return numbers
