"""Privacy loss distributions of dp_accounting, there and back; upper stays upper and lower stays lower."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shuffle_plugins.accounting.losses import (
    FINE,
    LOSS_ERROR,
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    merge_to_grid,
    spread_to_grid,
)
from shuffle_plugins.core import checks
from shuffle_plugins.core.extras import advised

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution as TheirDistribution

_LARGEST_LOSS = 700.0  # e to this power is a float; more counts as infinite from above, and not from below


def to_dp_accounting(
    losses: PrivacyLossDistribution, *, added: PrivacyLossDistribution | None = None, interval: float = 1e-4
) -> TheirDistribution:
    """One round's losses for dp_accounting: pessimistic if they bound from above, else optimistic.

    The errors that our composition charges are charged here at once, and what was left out has infinite loss
    from above, none from below. dp_accounting's composition adds 1e-15 to δ, and bounds no roundoff.

    Args:
        losses: such as a round's ``upper_losses(FINE)``, with P as dp_accounting's "remove".
        added: those of the other direction, its "add"; by default ``losses.reversed()``.
        interval: of losses, ``value_discretization_interval`` there; equal in all that is composed. A
            thirtieth of ``losses.deviation`` costs 100 steps 0.01 % of ε from above and 0.03 % from below.
    """
    interval = checks.number("interval", interval, above=0)
    with advised():
        from dp_accounting.pld import privacy_loss_distribution as theirs
    if added is None and not losses.symmetric:
        added = losses.reversed()
    if added is not None and added.kind != losses.kind:
        raise ValueError("both directions are to be bounded from the same side")
    removed, infinite = _on_grid(losses, interval)
    options: dict[str, Any] = {"symmetric": added is None}
    if added is not None:
        masses, beyond = _on_grid(added, interval)
        options |= {"rounded_probability_mass_function_add": masses, "infinity_mass_add": beyond}
    return theirs.PrivacyLossDistribution.create_from_rounded_probability(
        removed, infinite, interval, pessimistic_estimate=losses.kind == "upper", **options
    )


def from_dp_accounting(
    distribution: TheirDistribution, *, resolution: Resolution = FINE
) -> tuple[PrivacyLossDistribution, PrivacyLossDistribution]:
    """Losses of dp_accounting's distribution, "remove" and "add": from above if it is pessimistic.

    The two are rounded each for itself: take the larger ε of both, and the second in place of ``reversed()``.
    Bring single steps and compose them here: what dp_accounting's own composition lost to roundoff is not
    known. Infinite loss is ``missing`` from above; from below it counts as the largest finite one.
    """
    removed = _from_grid(distribution._pmf_remove, resolution, symmetric=distribution._symmetric)
    if distribution._symmetric:
        return removed, removed
    return removed, _from_grid(distribution._pmf_add, resolution, symmetric=False)


def _on_grid(law: PrivacyLossDistribution, interval: float) -> tuple[dict[int, float], float]:
    """P masses by number of intervals, and that of infinite loss."""
    upper = law.kind == "upper"
    finite = np.abs(law.loss) < _LARGEST_LOSS
    loss, p, q = law.loss[finite], law.p[finite], law.q[finite]
    if not len(loss) or (loss[-1] - loss[0]) / interval > 1 << 22:
        raise ValueError(
            f"losses from {law.loss[0]:.3g} to {law.loss[-1]:.3g} need a wider interval than {interval:g}"
        )
    if upper:
        first, q = spread_to_grid(loss + law.loss_error, q * (1 + law.mass_error), cell=interval)
        p = q * np.exp(interval * (first + np.arange(len(q))))
        infinite = min(1.0, law.missing + float(law.p[~finite].sum()) * (1 + law.mass_error))
    else:
        loss, p = loss - law.loss_error, p * (1 - law.mass_error)
        first, p = merge_to_grid(loss, p, p * np.exp(-loss), cell=interval)
        infinite = 0.0
    at = np.flatnonzero(p)
    return dict(zip((first + at).tolist(), p[at].tolist(), strict=True)), infinite


def _from_grid(masses: Any, resolution: Resolution, *, symmetric: bool) -> PrivacyLossDistribution:
    if not masses.size:
        raise ArithmeticError("no finite loss is left in the distribution of dp_accounting")
    dense = masses.to_dense_pmf()
    upper, infinite = dense._pessimistic_estimate, float(dense._infinity_mass)
    loss = dense._discretization * (dense._lower_loss + np.arange(dense.size, dtype=np.float64))
    p = np.maximum(np.asarray(dense._probs, dtype=np.float64), 0.0)  # negative ones are its roundoff
    finite = (np.abs(loss) < _LARGEST_LOSS) & (p > 0)
    infinite += float(p[~finite].sum()) if upper else 0.0
    loss, p = loss[finite], p[finite]
    if not upper and len(p):
        p[-1] += infinite
    return finite_losses(
        loss,
        p,
        p * np.exp(-loss),
        missing=infinite if upper else 0.0,
        kind="upper" if upper else "lower",
        resolution=resolution,
        symmetric=symmetric,
        loss_error=LOSS_ERROR * float(np.abs(loss).max(initial=1.0)),
    )
