"""What a client does to its update before it is randomised: weigh it by examples, clip it to a moving norm.

The result is in the ball that the mechanism protects, so neither changes ε or has to be accounted for.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Self

import torch
from flwr.app import RecordDict
from torch import Tensor

from flwr_shuffle.failures import mark_of
from shuffle_plugins.core import adapted_norm, checks
from shuffle_plugins.mechanisms import Norm, PrivateSum

_ORDERS = {Norm.L1: 1.0, Norm.L2: 2.0, Norm.LINF: math.inf}
_BIT_SHARE = 0.3  # of the radius: a clearer bit leaves less of it to the update
_MOST_EXAMPLES = (1 << 53) - 1  # a float holds every whole number up to this one


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileClipping:
    """A clipping norm that follows the clients' updates, as in Flower's own adaptive clipping.

    It starts at ``clipping_norm`` (for a sum, at its ``radius``). Each client sends, as one more number of
    its report, whether its update was within the round's norm; the mean of these bits estimates the share of
    such clients, and the norm moves by exp(-learning_rate · (share - quantile)) (Andrew, Thakkar, McMahan,
    Ramaswamy: Differentially Private Learning with Adaptive Clipping, 2021).

    **What it costs.** No ε: the bit is one more coordinate of the vector that the mechanism randomises, and
    the vector with the bit is in the same ball as vectors without. It costs signal. In an ℓ2 ball the bit
    takes 0.3 of the radius and leaves √(1 - 0.3²) = 95 % of it to the update; in an ℓ1 ball it leaves 70 %;
    in the ℓ∞ cube it leaves all, as it is a coordinate like the others. The share has the noise of one
    coordinate of the mean, and is clipped to [0, 1]: a round changes the norm by exp(±learning_rate) at most.

    Args:
        quantile: share of the clients whose updates the norm should not clip, in [0, 1].
        learning_rate: how fast the norm moves, positive.

    Raises:
        ValueError: if an argument is out of range.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        checks.fraction("quantile", self.quantile)
        checks.number("learning_rate", self.learning_rate, above=0)

    def moved(self, norm: float, *, share: float) -> float:
        """The next round's norm, if this share of the clients was within this one's."""
        return adapted_norm(norm, share=share, quantile=self.quantile, learning_rate=self.learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTerms:
    """How every client of a round prepares its update; a part of the instruction.

    Attributes:
        clipping_norm: the round's own clipping norm, in the mechanism's norm, with a bit beside the update
            that says whether the update was within it. None clips to the mechanism's radius, without a bit.
        max_examples: an update is multiplied by the client's number of examples divided by this, or by 1 if
            the client has more examples. None weighs all clients alike.
        examples_key: key of the number of examples in the app's metrics.
        trained: names of the model's arrays that are trained; empty for all of floating-point numbers.

    Raises:
        ValueError: if a field is out of range or of another type.
    """

    clipping_norm: float | None = None
    max_examples: int | None = None
    examples_key: str = "num-examples"
    trained: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        norm, most = self.clipping_norm, self.max_examples
        if norm is not None:
            checks.number("clipping_norm", norm, above=0)
        if most is not None:
            checks.whole("max_examples", most, at_most=_MOST_EXAMPLES)
        if type(self.examples_key) is not str or not 1 <= len(self.examples_key) <= 128:
            raise ValueError("examples_key is a name of 1 to 128 characters")
        object.__setattr__(self, "trained", tuple(self.trained))
        if not all(type(name) is str for name in self.trained):
            raise ValueError("trained are names of arrays")

    @property
    def bits(self) -> int:
        """Numbers in a report beside the update: 1 with a clipping norm that adapts, 0 without."""
        return int(self.clipping_norm is not None)

    def weight(self, content: RecordDict) -> float:
        """The factor by which an update is multiplied, from what the app's training returned.

        Raises:
            ValueError: if the metrics have no number of examples where one is needed.
        """
        if self.max_examples is None:
            return 1.0
        key = self.examples_key
        found = [record[key] for record in content.metric_records.values() if key in record]
        if len(found) != 1 or isinstance(found[0], list) or not 0 <= found[0] < math.inf:
            raise ValueError(f"training returned no single number as {key!r}, and max_examples needs it")
        return min(1.0, float(found[0]) / self.max_examples)

    def prepared(self, update: Tensor, mechanism: PrivateSum) -> Tensor:
        """The vector (dim,) that the mechanism randomises, within its ball, for an update (dim - bits,).

        Raises:
            ValueError: if the update is not finite.
        """
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
        """What is reported in place of the update (dim - bits,) where the app failed; see :func:`mark_of`."""
        radius = mechanism.radius if self.clipping_norm is None else self.clipping_norm
        return mark_of(token, dim=mechanism.dim - self.bits, radius=radius, norm=mechanism.norm)

    def read(self, mean: Tensor, mechanism: PrivateSum) -> tuple[Tensor, float | None]:
        """The mean of the clipped updates, and the share of clients within the clipping norm if it adapts.

        Args:
            mean: mean of the vectors that :meth:`prepared` made, (dim,).
            mechanism: the mechanism that randomised these vectors.
        """
        if self.clipping_norm is None:
            return mean, None
        room, height = _shares(mechanism.norm)
        bit = float(mean[-1]) / (height * mechanism.radius)
        return mean[:-1] * (self.clipping_norm / (room * mechanism.radius)), min(max((1 + bit) / 2, 0.0), 1.0)

    def to_json(self) -> str:
        """The terms as text; empty if they change nothing."""
        told = {key: value for key, value in asdict(self).items() if value != ()}
        return "" if self == UpdateTerms(examples_key=self.examples_key) else json.dumps(told)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: if it is anything else.
        """
        if not text:
            return cls()
        try:
            return cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError("not the terms of an update") from error

    def at(self, norm: float) -> UpdateTerms:
        """The same terms with another clipping norm."""
        return replace(self, clipping_norm=norm)


PLAIN = UpdateTerms()
"""Updates as they are, clipped to the mechanism's radius alone."""


def _shares(norm: Norm) -> tuple[float, float]:
    """Shares of the radius that the update and the bit may fill, so that both together stay in the ball."""
    if norm == Norm.LINF:
        return 1.0, 1.0
    if norm == Norm.L1:
        return 1 - _BIT_SHARE, _BIT_SHARE
    return math.sqrt(1 - _BIT_SHARE**2), _BIT_SHARE
