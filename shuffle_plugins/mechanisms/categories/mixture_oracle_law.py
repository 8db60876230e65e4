r"""Exact numbers behind randomizers that answer truthfully now and then: integers out of 2**62.

Nothing here imports torch.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from fractions import Fraction

from shuffle_plugins.core import checks
from shuffle_plugins.randomness import WHOLE

_FOLLOWED = 1e-6  # relative; odds further from e^ε0 make the law only a bound


def odds_below(local_epsilon: float | Fraction) -> Fraction:
    """A rational just below e^ε0, closer than 1e-59 of it and never above; ε0 is taken as it is given."""
    exponent = Fraction(local_epsilon)
    with decimal.localcontext(decimal.Context(prec=80, rounding=decimal.ROUND_FLOOR)):
        quotient = decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)
        return Fraction(quotient.exp() * (1 - decimal.Decimal(10) ** -60))


def follows(odds: Fraction, local_epsilon: float) -> bool:
    """Whether rounded odds still spend ε0, to one in a million.

    They do not where a probability is a few units of 2**-62: then the guarantee holds with room to spare, and
    a law at ε0 itself is only a bound.
    """
    return math.log1p(float(odds - 1)) >= local_epsilon * (1 - _FOLLOWED)


@dataclass(frozen=True, slots=True)
class Mixture:
    r"""With probability γ a report is uniform among those likely for x, otherwise uniform among all.

    A likely report is :math:`1 + γ/((1-γ)\,share)` times as probable as another one. γ is rounded down to a
    multiple of 2**-62, so these odds never exceed e^ε0, and no report becomes the less probable for it.

    Attributes:
        kept: γ as a multiple of 2**-62, in [1, 2**62 - 1].
        share: the part of all reports that is likely for x, the same for every x.
    """

    kept: int
    share: Fraction

    @classmethod
    def of(cls, local_epsilon: float, *, share: Fraction) -> Mixture:
        r"""The largest γ within ε0, :math:`γ \le (e^{ε_0}-1)\,share / (1 + (e^{ε_0}-1)\,share)`.

        Raises:
            ValueError: if ε0 is out of range, or so small that a γ of 2**-62 exceeds it.
        """
        weight = (odds_below(checks.local_epsilon(local_epsilon)) - 1) * share
        kept = math.floor(WHOLE * weight / (1 + weight))
        if kept < 1:
            raise ValueError(
                f"local_epsilon={local_epsilon!r} leaves a true report a probability below 2**-62 when only "
                f"{float(share):.3g} of the reports are likely: raise it, or use fewer categories"
            )
        return cls(kept=kept, share=share)

    @property
    def truth(self) -> float:
        """γ, the probability of a report drawn from those likely for the category."""
        return self.kept / WHOLE

    @property
    def noise(self) -> float:
        """1 - γ, without cancellation."""
        return (WHOLE - self.kept) / WHOLE

    @property
    def odds(self) -> Fraction:
        """How much more probable a likely report is than another one, at most e^ε0."""
        return 1 + Fraction(self.kept, WHOLE - self.kept) / self.share
