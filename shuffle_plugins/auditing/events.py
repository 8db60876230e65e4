"""The event on which an audit is decided, chosen where scores of the two datasets differ most. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.auditing.simulation import Dataset
from shuffle_plugins.core import epsilon_lower_bound

Side = Literal["at least", "below"]

SELECTION_SHARE = 4
"""One trial is spent on choosing the event for so many that are judged."""

LEAST_TRIALS = 100
"""Fewer trials prove hardly anything: 100 clean hits show an ε of 2.9 at 99 % confidence."""

_MOST_THRESHOLDS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """That a trial's score is ``side`` a threshold; with what the trials on which it was chosen promise.

    Attributes:
        threshold: the score at which the event begins or ends.
        side: on which side of it the event is.
        suspect: the dataset on which it is the more likely.
        promise: the bound it would have proved there and, where that is 0, the standardised difference of the
            two counts. The full confidence keeps rare events that were merely lucky from being chosen.
    """

    threshold: float
    side: Side
    suspect: Dataset
    promise: tuple[float, float]

    @property
    def innocent(self) -> Dataset:
        """The dataset on which the event is the less likely."""
        return Dataset.REPLACEMENT if self.suspect is Dataset.ORIGINAL else Dataset.ORIGINAL

    @classmethod
    def best(cls, scores: dict[Dataset, NDArray[np.float64]], *, delta: float, confidence: float) -> Self:
        """The best threshold and direction for these scores of as many trials on each dataset."""
        ordered = {dataset: np.sort(values) for dataset, values in scores.items()}
        thresholds = _thresholds(np.concatenate(list(scores.values())))
        trials = len(scores[Dataset.ORIGINAL])
        below = {dataset: np.searchsorted(values, thresholds) for dataset, values in ordered.items()}
        counts: dict[Side, dict[Dataset, NDArray[np.int64]]] = {
            "at least": {dataset: trials - count for dataset, count in below.items()},
            "below": below,
        }
        found = []
        for side, happened in counts.items():
            for suspect, innocent in ((Dataset.ORIGINAL, Dataset.REPLACEMENT), tuple(Dataset)[::-1]):
                bounds = epsilon_lower_bound(
                    happened[suspect], happened[innocent], trials=trials, delta=delta, confidence=confidence
                )
                apart = (happened[suspect] - happened[innocent]) / np.sqrt(
                    happened[suspect] + happened[innocent] + 1.0
                )
                place = int(np.lexsort((apart, bounds))[-1])
                promise = float(bounds[place]), float(apart[place])
                found.append(
                    cls(threshold=float(thresholds[place]), side=side, suspect=suspect, promise=promise)
                )
        return max(found, key=lambda event: event.promise)

    def happens(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether the event happens in each trial."""
        below: NDArray[np.bool_] = scores < self.threshold
        return below if self.side == "below" else ~below


def _thresholds(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Lines between neighbouring scores, at quantiles and close to both ends."""
    values = np.unique(scores)
    if len(values) == 1:
        return values
    ordered = np.sort(scores)
    ends = np.unique(np.geomspace(1, len(ordered), _MOST_THRESHOLDS // 4).astype(np.int64)) - 1
    spread = np.linspace(0, len(ordered) - 1, _MOST_THRESHOLDS // 2).astype(np.int64)
    chosen = np.unique(np.concatenate([ordered[ends], ordered[len(ordered) - 1 - ends], ordered[spread]]))
    place = np.searchsorted(values, chosen)
    upper = values[np.minimum(place + 1, len(values) - 1)]
    lines: NDArray[np.float64] = np.unique((chosen + upper) / 2)
    return lines
