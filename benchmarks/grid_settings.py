"""The questions of the grid, and what an answer holds: seeded, space-filling, and corners and lines."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from scipy.stats import qmc

SMALLEST_COHORT = 10
POPULATIONS = (1e3, 1e9)
RATES = (1e-4, 1.0)
LOCAL_EPSILONS = (0.1, 8.0)
STEPS = (1.0, 1e6)
DELTAS = (1e-12, 1e-5)

_FULL_SHARE = _SINGLE_SHARE = 0.2
_SEED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """T rounds of k-of-n sampling without replacement and shuffling, ε0-LDP reports, ε asked at δ.

    Attributes:
        kind: which part of the grid it belongs to.
        population: n.
        cohort: k ≤ n.
        local_epsilon: ε0 in nats.
        num_steps: T.
        delta: δ.
    """

    kind: str
    population: int
    cohort: int
    local_epsilon: float
    num_steps: int
    delta: float

    @property
    def sampling_rate(self) -> float:
        """γ = k/n."""
        return self.cohort / self.population


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """A certified interval and the processor time it took, from a cold start."""

    lower: float
    upper: float
    seconds: float
    upper_bound: str
    lower_bound: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A setting and every answer to it.

    Attributes:
        setting: the question.
        own: our interval for every ε0-LDP randomizer.
        published: ε by name; None where a theorem says nothing.
        seconds: processor time of each.
        mechanisms: our intervals for mechanisms with their own law.
        specific: published bounds for those, "mechanism: bound".
        processor_seconds: what all of it took.
    """

    setting: Setting
    own: Own
    published: dict[str, float | None]
    seconds: dict[str, float]
    mechanisms: dict[str, Own]
    specific: dict[str, float | None]
    processor_seconds: float


def space_filling(*, power: int, seed: int = _SEED) -> list[Setting]:
    """2^power settings by a scrambled Sobol sequence over the logarithms of n, γ, ε0, T and δ.

    A fifth of the range of γ stands for full participation and a fifth of that of T for one round: both are
    what the literature treats, and neither would come up by chance.
    """
    found = []
    for a, b, c, d, e in qmc.Sobol(d=5, seed=seed).random_base2(power):
        population = round(_between(POPULATIONS, a))
        rate = 1.0 if b < _FULL_SHARE else _between(RATES, (b - _FULL_SHARE) / (1 - _FULL_SHARE))
        steps = 1 if d < _SINGLE_SHARE else round(_between(STEPS, (d - _SINGLE_SHARE) / (1 - _SINGLE_SHARE)))
        found.append(
            Setting(
                kind="space-filling",
                population=population,
                cohort=min(max(round(rate * population), SMALLEST_COHORT), population),
                local_epsilon=round(_between(LOCAL_EPSILONS, c), 4),
                num_steps=steps,
                delta=float(f"{_between(DELTAS, e):.2e}"),
            )
        )
    return found


def corners() -> list[Setting]:
    """Both ends of every range; the smallest cohort is one report."""
    return [
        Setting(
            kind="corner",
            population=int(population),
            cohort=max(round(rate * population), 1),
            local_epsilon=local_epsilon,
            num_steps=int(steps),
            delta=delta,
        )
        for population, rate, local_epsilon, steps, delta in itertools.product(
            POPULATIONS, RATES, LOCAL_EPSILONS, STEPS, DELTAS
        )
    ]


def lines() -> list[Setting]:
    """ε0 from end to end, through ln 2 where binary and ternary response cross, in three regimes."""
    regimes = {
        "line, T = 1, γ = 1": (10**6, 10**6, 1, 1e-8),
        "line, T = 1e5, γ = 1e-3": (10**6, 1_000, 10**5, 1e-8),
        "line, T = 1e4, k = 10": (10**5, 10, 10**4, 1e-8),
    }
    levels = [0.1, 0.2, 0.35, 0.5, 0.6, math.log(2), 0.8, 1.0, 1.4, 2.0, 3.0, 4.0, 6.0, 8.0]
    return [
        Setting(
            kind=kind,
            population=population,
            cohort=cohort,
            local_epsilon=local_epsilon,
            num_steps=steps,
            delta=delta,
        )
        for kind, (population, cohort, steps, delta) in regimes.items()
        for local_epsilon in levels
    ]


def grid() -> list[Setting]:
    """All of them: 330 settings."""
    return [*lines(), *corners(), *space_filling(power=8)]


def _between(ends: tuple[float, float], fraction: float) -> float:
    low, high = map(math.log, ends)
    return math.exp(low + fraction * (high - low))
