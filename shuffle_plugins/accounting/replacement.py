"""What it costs that rounds are accounted through others that they are close to.

Reports that are (ε0, δ0)-LDP are replaced by pure ones, sums with noise of coins by Gaussian mechanisms
(``docs/proofs/accounting.md`` and ``docs/proofs/sums.md``). A total variation between the two is charged to
δ, 1 + e^ε times. Where ε is large that is too much; of rounds whose likelihoods are within e^η of each
other, η is charged to ε instead, twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.composition.renyi import RenyiComposition
from shuffle_plugins.accounting.rounds.round import Round

ROUNDOFF = 1e-9
"""Relative error of a computed δ, which is moved to the safe side by it: small ε0 leave few digits."""

_MOST_ITERATIONS = 200  # of ε against a charge that rises with ε; each raises ε, so few are needed
_SMALL_CHARGE = 1e-2  # share of δ below which the distance is charged to δ alone: less is not to be gained
_TAIL_SHARE = 1e-3  # share of δ that may be spent on tails where η is charged to ε
_LARGEST_EXPONENT = 700.0  # e to this power is a float
_STEP = 1 + 1e-6  # by which an ε that is too small is raised past the answer
_LEAST_TAIL = 1e-250


@dataclass(frozen=True, slots=True)
class Replacement:
    """What the rounds of a history are replaced by, taken together.

    Attributes:
        history: rounds that have a stand-in, each with its number of steps.
        distance: total variation between the history and what is composed in its place.
    """

    history: tuple[tuple[Round, int], ...]
    distance: float

    def charge(self, epsilon: float) -> float:
        """What the distance adds to δ at ε."""
        return (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * self.distance if self.distance else 0.0

    def epsilon(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """The least ε at ``delta`` of the history, from what is composed in its place; rounded up."""
        delta *= 1 - ROUNDOFF
        if not self.distance:
            return composition.epsilon(delta)
        charged = self._charged_to_delta(composition, delta)
        if self.charge(charged) <= _SMALL_CHARGE * delta:
            return charged
        return min(charged, self._charged_to_epsilon(composition, delta))

    def delta(self, composed: Callable[[float], float], epsilon: float) -> float:
        """δ at ε of the history, from δ of what is composed in its place, a function of ε; rounded up."""
        own = composed(epsilon) * (1 + ROUNDOFF)
        charge = self.charge(epsilon)
        if charge <= _SMALL_CHARGE * own:
            return own + charge
        tail = max(_TAIL_SHARE * own, _LEAST_TAIL)
        ratio, distance = self._closeness(epsilon, tail=tail)
        if not 2 * ratio <= epsilon < _LARGEST_EXPONENT:
            return own + charge
        replaced = composed(epsilon - 2 * ratio) * (1 + ROUNDOFF)
        replaced = math.exp(ratio) * (replaced + tail + (1 + math.exp(epsilon)) * distance)
        return min(own + charge, replaced * (1 + ROUNDOFF))

    def _charged_to_delta(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """The least ε with composed δ plus the distance's charge at that very ε within ``delta``."""
        epsilon = 0.0
        for _ in range(_MOST_ITERATIONS):
            target = delta - self.charge(epsilon)
            if target <= 0:
                return math.inf
            needed = composition.epsilon(target)
            if needed <= epsilon or needed == math.inf:
                return max(needed, epsilon)
            epsilon = needed * _STEP
        return math.inf

    def _charged_to_epsilon(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """ε of what is composed instead, and twice the η within whose e^η it is of the history.

        What the η does not cover is a tail, so small that e^ε times it is a thousandth of ``delta``
        (docs/proofs/sums.md, "Large ε").
        """
        epsilon = composition.epsilon(delta / 2)
        for _ in range(_MOST_ITERATIONS):
            tail = _TAIL_SHARE * delta
            ratio, distance = self._closeness(epsilon, tail=tail)
            if not max(ratio, epsilon) < _LARGEST_EXPONENT:
                return math.inf
            target = delta * math.exp(-ratio) - tail - (1 + math.exp(epsilon)) * distance
            if target <= 0:
                return math.inf
            needed = composition.epsilon(target)
            if needed <= epsilon:
                return (needed + 2 * ratio) * (1 + ROUNDOFF)
            epsilon = needed * _STEP
        return math.inf

    def _closeness(self, epsilon: float, *, tail: float) -> tuple[float, float]:
        """η of the rounds that have one together, and the distance of those that have only a distance.

        Args:
            epsilon: at which a tail is charged 1 + e^ε times.
            tail: what all tails together may be charged.
        """
        close = [(r, steps) for r, steps in self.history if r.CHARGED_BY_RATIO]
        others = [(r, steps) for r, steps in self.history if not r.CHARGED_BY_RATIO]
        if not close:
            return math.inf, 0.0
        log_tail = math.log(tail) - float(np.logaddexp(0.0, epsilon))
        log_tail -= math.log(sum(steps for _, steps in close))
        ratio = math.fsum(r.replacement_ratio(log_tail) * steps for r, steps in close)
        return ratio, math.fsum(r.replacement_distance * steps for r, steps in others)
