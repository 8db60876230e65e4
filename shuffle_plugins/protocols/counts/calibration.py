"""Choose the bits of a Poisson binomial sum, so that it is as private as a Gaussian of given noise. No torch.

The *gain* of a bit is how much its probability of being one depends on the client's value. A louder bit has a
larger gain: it says more about the value and hides less.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shuffle_plugins.accounting import PoissonBinomialRound
from shuffle_plugins.protocols.errors import TargetUnreachable

MOST_BITS_EACH = (1 << 20) - 1  # of one client in one coordinate
_LOUDEST = 0.97  # largest gain of a bit that is tried; of a louder bit the other clients hide little
_SKEW = 50.0  # times gain/√crowd: what a crowd's skew costs of the variance, roughly; for the choice alone
_PRECISION = 5e-4  # relative, of the noise
_MOST_ATTEMPTS = 25


def fewest_bits(*, size: int, honest: int, distance: float, noise_multiplier: float, overhead: float) -> int:
    """The fewest bits per coordinate, of the form 2^k − 1, whose variance is within the overhead.

    Args:
        size: coordinates.
        honest: number of clients that are assumed to follow the protocol.
        distance: bound on ‖v − v'‖₂ of two clients' values.
        noise_multiplier: of the Gaussian that the sum must be as private as: its standard deviation over the
            replace-one sensitivity.
        overhead: how much larger the variance may be, as a fraction, than in the limit of many quiet bits.

    Raises:
        TargetUnreachable: if no number of bits will do.
    """
    width = 1
    while (bits := (1 << width) - 1) <= MOST_BITS_EACH:
        odds = math.sqrt(honest / bits) / (distance * noise_multiplier)
        gain = odds / math.sqrt(1 + odds**2)
        crowd = max((honest - 1) * bits, 1)
        if (1 + odds**2) * (1 + _SKEW * gain / math.sqrt(crowd)) <= 1 + overhead:
            return bits
        width += 1
    raise TargetUnreachable(
        f"no number of bits protects {honest} clients in {size} coordinates at a noise multiplier of "
        f"{noise_multiplier:.3g}, within an overhead of {overhead:g}: ask for less noise or a larger overhead"
    )


def loudest_gain(
    noise_multiplier: float, *, start: float, round_of: Callable[[float], PoissonBinomialRound]
) -> float:
    """The largest gain of a bit, to a part in a thousand, that is as private as a Gaussian of this noise.

    Args:
        noise_multiplier: standard deviation over replace-one sensitivity.
        start: gain to start the search from.
        round_of: makes the round for a gain.

    Raises:
        TargetUnreachable: if there is no such gain.
    """
    gain, best, worst = min(start, _LOUDEST), 0.0, math.inf
    for _ in range(_MOST_ATTEMPTS):
        try:
            found = round_of(gain).noise_multiplier / noise_multiplier
        except ValueError:  # hardly anybody is hidden
            found = 0.25
        if found >= 1:
            best = max(best, gain)
            if found <= 1 + 2 * _PRECISION or gain == _LOUDEST or worst <= best * (1 + _PRECISION):
                return best
        else:
            worst = min(worst, gain)
        gain = min(gain * found / (1 + _PRECISION), _LOUDEST)
        if best and worst < math.inf and not best * 1.05 < gain < worst / 1.05:
            gain = math.sqrt(best * worst)
    if best:
        return best
    raise TargetUnreachable(
        f"these bits do not protect as a Gaussian of noise multiplier {noise_multiplier:.3g}: send more of "
        "them, or ask for less noise"
    )
