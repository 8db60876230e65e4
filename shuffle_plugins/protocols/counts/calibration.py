"""How many bits, and how loud, make a sum protect as a Gaussian of given noise. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Callable

from shuffle_plugins.accounting import PoissonBinomialRound
from shuffle_plugins.protocols.errors import TargetUnreachable

MOST_BITS_EACH = (1 << 20) - 1  # of one client in one coordinate
_LOUDEST = 0.97  # gain of a bit, of which the crowd hides little
_SKEW = 50.0  # times gain/√crowd: what a crowd's skew costs of the variance, roughly; for the choice alone
_PRECISION = 5e-4  # relative, of the noise
_MOST_ATTEMPTS = 25


def fewest_bits(*, size: int, honest: int, distance: float, noise_multiplier: float, overhead: float) -> int:
    """The fewest bits, one less than a power of two, with which variance is within the overhead.

    Args:
        size: coordinates.
        honest: clients counted on.
        distance: bound on ‖v − v'‖₂ of two clients' values.
        noise_multiplier: deviation over replace-one sensitivity of the Gaussian that is to be covered.
        overhead: share of variance beyond that of ever more and quieter bits.

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
    """The largest gain of a bit, to a part in a thousand, that protects as a Gaussian of this noise.

    Args:
        noise_multiplier: deviation over replace-one sensitivity.
        start: a guess.
        round_of: the round, from the gain.

    Raises:
        TargetUnreachable: if there is none.
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
