"""What frequency oracles share whose report is likely, or uniform: law, counts, checks of what was sent."""

from __future__ import annotations

import math
from abc import abstractmethod

from shuffle_plugins.core import Field, Reports
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms.categories.mixture_oracle_law import Mixture
from shuffle_plugins.mechanisms.frequency import FrequencyOracle
from shuffle_plugins.randomness import Randomness

MOST_OUTCOMES = 1 << 16


class MixtureOracle(FrequencyOracle):
    r"""An oracle whose report is uniform among those likely for x with probability γ, else among all.

    .. math:: P(y|x) = \frac{1}{N} \Bigl(1 - γ + \frac{γ}{share}\,[y \text{ likely for } x]\Bigr)

    for N reports, of which a part ``share`` is likely for each x. See
    :class:`~shuffle_plugins.mechanisms.categories.mixture_oracle_law.Mixture` for γ, which never exceeds ε0.

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
