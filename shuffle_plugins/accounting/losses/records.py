"""Profiles of rounds in which a client sends several reports, one of them on the changed record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shuffle_plugins.accounting.losses.distribution import PrivacyLossDistribution
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.numerics.profiles import hockey_sticks

_ROUNDOFF = 1e-10  # relative, of sums of up to some ten thousand positive numbers; far more than is lost
_SPLITS = 96  # ways to divide a bound between the changed report and the client's other reports
_MOST_POINTS = 1500  # at which a profile is kept; its chords lie above it
_BEYOND = 1e-25  # of a round's profile, left to outcomes of infinite loss: a shorter range composes faster
_NEGLIGIBLE = 1e-40  # chance that the other reports tell so much; no smaller one is looked for


def profile_of(law: PrivacyLossDistribution) -> tuple[Floats, Floats]:
    """Losses from 0 up, and δ there from above, of a symmetric distribution.

    Raises:
        ArithmeticError: if the distribution is not symmetric, or bounds from below.
    """
    if not law.symmetric or law.kind != "upper":
        raise ArithmeticError("a profile is made of a symmetric distribution that bounds from above")
    positive = law.loss > 0
    losses = np.concatenate([[0.0], law.loss[positive]])
    deltas = hockey_sticks(losses, np.concatenate([[0.0], law.q[positive]]))
    return losses, deltas * (1 + _ROUNDOFF) + law.missing


def bundled_profile(
    laws: Sequence[PrivacyLossDistribution],
    rates: Sequence[float],
    masses: Sequence[float],
    *,
    reports: int,
    lost: float,
) -> tuple[Floats, Floats]:
    """Losses, and δ there from above, where a client that is drawn sends several reports, one changed.

    With x = E − 1 and the rate γ at which the client is drawn, δ(1 + x) is at most

        γ·δ₁(1 + x + (1/γ − 1)·x·t) + (1 − γ)·x·t·δ₂(1/t)     for every t in [0, 1],

    where δ₁ is that of one report changed among all, and δ₂(E) ≤ δ₁(E^(1/s))·(E − 1)/(E^(1/s) − 1) that of
    all s reports of a client changed (``docs/proofs/accounting.md``, section 2b). t = 0 is the bound without
    amplification of ε by the draw of clients.

    Args:
        laws: of one report changed among those of so many clients, symmetric, from above; for each number of
            clients that may take part.
        rates: γ for each number.
        masses: the probability of each number.
        reports: s, at least 2.
        lost: probability of the numbers that are left out.
    """
    profiles = [profile_of(law) for law in laws]
    steps = np.expm1(np.concatenate([losses for losses, _ in profiles]))
    low, high = min(rates), max(rates)
    wanted = np.concatenate([[0.0], steps * low, steps * high, steps * np.sqrt(high), steps])
    x = np.unique(wanted[np.isfinite(wanted)])
    if len(x) > _MOST_POINTS:
        x = np.union1d(x[:: -(-len(x) // _MOST_POINTS)], x[-1:])
    deltas = np.zeros(len(x))
    for (losses, values), rate, mass in zip(profiles, rates, masses, strict=True):
        deltas += mass * _hidden_by_client(losses, values, x, rate=rate, reports=reports)
    deltas = deltas * (1 + _ROUNDOFF) + lost
    kept = min(int((deltas > _BEYOND).sum()) + 1, len(x))
    return np.log1p(x[:kept]), deltas[:kept]


def together_profile(law: PrivacyLossDistribution, *, reports: int) -> tuple[Floats, Floats]:
    """Losses, and δ there from above, if all of a client's reports change: δ₂ of :func:`bundled_profile`.

    Args:
        law: of one report changed among all, symmetric, from above.
        reports: s, at least 1.
    """
    losses, deltas = profile_of(law)
    with np.errstate(invalid="ignore"):
        steps = np.expm1(reports * losses) / np.expm1(losses)
    steps[losses == 0.0] = reports
    kept = np.isfinite(steps)
    return reports * losses[kept], np.minimum(deltas[kept] * steps[kept] * (1 + _ROUNDOFF), 1.0)


def _hidden_by_client(losses: Floats, deltas: Floats, x: Floats, *, rate: float, reports: int) -> Floats:
    """The bound of :func:`bundled_profile` for one number of clients, at E = 1 + x."""
    places = np.expm1(losses)

    def one_changed(excess: Floats) -> Floats:
        return np.interp(excess, places, deltas)

    best = one_changed(x)
    if rate == 1.0:
        return best
    # Losses of one report, s of which make the loss that a client's other reports may have.
    share = np.linspace(0.0, _last_telling(losses, deltas), _SPLITS)[1:]
    told = one_changed(np.expm1(share)) * np.expm1(reports * share) / np.expm1(share)
    t = np.exp(-reports * share)
    for each, chance in zip(t.tolist(), told.tolist(), strict=True):
        amplified = one_changed(x * (1 + (1 / rate - 1) * each))
        best = np.minimum(best, amplified + (1 / rate - 1) * each * x * min(chance, 1.0))
    return rate * best


def _last_telling(losses: Floats, deltas: Floats) -> float:
    """The loss from which on δ is next to nothing."""
    telling = np.nonzero(deltas > _NEGLIGIBLE)[0]
    return float(losses[min(int(telling[-1]) + 1, len(losses) - 1)]) if len(telling) else float(losses[-1])
