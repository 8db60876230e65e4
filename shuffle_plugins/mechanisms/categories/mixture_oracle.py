"""What frequency oracles share: exact odds, the blanket of likely reports, checks of what was sent.

Every report has just two likelihoods over the categories, in the ratio e^ε0, so a blanket report weighs 1 or
e^ε0 for each record. Any two categories have the same law, so one pair of records is the worst at every ε.
Masses are derived in ``docs/proofs/accounting.md``; ``ideal_…`` are blankets in real arithmetic.
"""

from __future__ import annotations

import decimal
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from shuffle_plugins.accounting import Blanket, RecordTypes, two_level_atoms
from shuffle_plugins.core import Field, Reports, checks
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.frequency import FrequencyOracle
from shuffle_plugins.randomness import WHOLE, Randomness

_FOLLOWED = 1e-6  # relative; odds further from e^ε0 make the law only a bound


def odds_below(local_epsilon: float | Fraction) -> Fraction:
    """A rational just below e^ε0, closer than 1e-59 of it and never above; ε0 is taken as it is given."""
    exponent = Fraction(local_epsilon)
    with decimal.localcontext(decimal.Context(prec=80, rounding=decimal.ROUND_FLOOR)):
        quotient = decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)
        return Fraction(quotient.exp() * (1 - decimal.Decimal(10) ** -60))


def flip_threshold(local_epsilon: float | Fraction) -> int:
    r"""The smallest p in units of 2**-62 with :math:`(1-p)/p \le e^{ε_0}`."""
    return math.ceil(WHOLE / (odds_below(local_epsilon) + 1))


def any_three(local_epsilon: float, share: Callable[[int, int, int], float]) -> dict[str, Any]:
    """What the others' reports make of a round, from below and above, where any three categories are alike.

    ``share`` of the blanket is likely for each of them, or not. Two of them are x and x'. In an instance
    everybody else holds the third.
    """
    shares = {kinds: share(*kinds) for kinds in itertools.product((0, 1), repeat=3)}
    return {
        "instances": (two_level_atoms(local_epsilon=local_epsilon, shares=shares),),
        "others": RecordTypes.two_level(local_epsilon=local_epsilon, shares=shares),
    }


def as_built(ideal: Blanket, *, categories: int, odds: Fraction) -> Blanket:
    """The blanket of an oracle whose probabilities are rounded to multiples of 2**-62.

    Where these follow ε0 it is that of real arithmetic. Elsewhere the oracle is one of a smaller ε0, a
    post-processing of the one at ε0 (its report is further mixed with a uniform one, its bits are further
    flipped), so the blanket at ε0 holds as a bound.

    Args:
        ideal: in real arithmetic, of three categories or more.
        categories: how many there are: of two, there is no third record to hide nobody.
        odds: the largest odds of a report, as they are rounded.
    """
    if math.log1p(float(odds - 1)) < ideal.local_epsilon * (1 - _FOLLOWED):
        return replace(ideal, exact=False, outside=0.0, instances=())
    return ideal if categories > 2 else replace(ideal, outside=0.0, instances=())


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


class MixtureOracle(FrequencyOracle):
    r"""An oracle whose report is uniform among those likely for x with probability γ, else among all.

    .. math:: P(y|x) = \frac{1}{N} \Bigl(1 - γ + \frac{γ}{share}\,[y \text{ likely for } x]\Bigr)

    for N reports, of which a part ``share`` is likely for each x. See
    :class:`Mixture` for γ, which never exceeds ε0.

    A subclass sets ``_mixture`` when it is built.
    """

    _mixture: Mixture

    @property
    @abstractmethod
    def _log_reports(self) -> float:
        """Logarithm of the number of reports there are."""

    @abstractmethod
    def _likely(self, reports: Reports, category: int) -> Tensor:
        """Which reports are likely for a category, bool (reports,)."""

    def log_likelihood(self, reports: Reports, x: Tensor) -> Tensor:
        """Log-probability of each report, had its client held the category x, with γ as it is rounded."""
        likely = self._likely(reports, int(self.check_categories(x.reshape(1))[0]))
        uniform, more = math.log(self._mixture.noise), math.log1p(float(self._mixture.odds - 1))
        return likely.double().mul_(more).add_(uniform - self._log_reports)

    def _truthful(self, x: Tensor, randomness: Randomness) -> Tensor:
        return randomness.bernoulli(torch.tensor(self._mixture.kept, device=x.device).expand(len(x)))


def whole_numbers(field: Field, *, below: int, width: int | None = None) -> Tensor:
    """A field's values as int64, after a check.

    Args:
        field: part of what was received.
        below: values lie in [0, below).
        width: values per report; None for a field (clients,).

    Raises:
        ValueError: if the field has another shape, holds floats, or a value lies outside: it was forged.
    """
    values = field.values
    shape = (len(values),) if width is None else (len(values), width)
    if values.is_floating_point() or tuple(values.shape) != shape:
        raise ValueError(
            f"a report has {width or 'one'} whole numbers here, got {values.dtype} of {tuple(values.shape)}"
        )
    if values.numel() and not (int(values.min()) >= 0 and int(values.max()) < below):
        raise ValueError(f"a report holds a number outside [0, {below}): it was altered or forged; drop it")
    return values.to(torch.int64)
