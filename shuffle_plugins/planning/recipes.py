"""Every setting of a training run, recommended from what is public, each with the rule it comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, EpsilonInterval
from shuffle_plugins.core import checks, rounded
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning.errors import ExpectedNoise, mechanism_norm
from shuffle_plugins.planning.plans import DrawnBy, PlanRow, SumRow
from shuffle_plugins.planning.search import BEST_MECHANISM, plan
from shuffle_plugins.planning.sums import SUMS, plan_sums

_ONE_IN = 10  # a cohort takes one record in so many
_MOMENTUM = 0.9
_MAX_GRAD_NORM = 0.1  # ℓ2 norm, C


class ModelKind(StrEnum):
    """What is trained, as far as its learning rate depends on it."""

    LINEAR = "linear"
    """A linear classifier whose weights start from zero, on rows of length one, trained by cross-entropy."""

    NETWORK = "network"
    """A network that starts from PyTorch's random weights."""


_WEIGHT_NOISE = {ModelKind.LINEAR: 2.0, ModelKind.NETWORK: 0.1}
"""Standard deviation that the noise of all steps together may give each weight.

Chosen on MNIST by ``benchmarks/learning_rate.py`` (``docs/guides/opacus.md``). With rows of length one it is
also the noise of each output of a linear model, in logits.
"""


@dataclass(frozen=True, kw_only=True)
class TrainingRecipe:
    """Settings of a training run by stochastic gradient descent, none computed from its data; ``print`` it.

    ``local_epsilon`` is of one report per record, ``noise_multiplier`` (over ``max_grad_norm``) of a sum; the
    other is None. ``epsilon`` is certified for all steps, against somebody who sees the model after each.
    ``coefficients`` are those of windows of sums, (1,) without. ``windows_leave`` is the share of a sum's
    noise that windows would leave in the model, if less than all; else None.
    """

    model: ModelKind
    population: int
    dim: int
    target_epsilon: float
    delta: float
    mechanism: str
    local_epsilon: float | None
    noise_multiplier: float | None
    epsilon: EpsilonInterval
    cohort: int
    num_steps: int
    max_grad_norm: float
    learning_rate: float
    momentum: float
    expected_noise: ExpectedNoise
    coefficients: tuple[int, ...] = (1,)
    windows_leave: float | None = None

    def warning(self) -> str | None:
        """What would help if the whole run's signal-to-noise ratio is too small to learn from; else None."""
        return self.expected_noise.warning(num_steps=self.num_steps)

    def settings(self) -> tuple[tuple[str, str, str], ...]:
        """Name, value and reason of each setting, as they are printed: values are rounded."""
        epochs = self.num_steps * self.cohort / self.population
        ratio = self.expected_noise.signal_to_noise_ratio
        if self.local_epsilon is None:
            assert self.noise_multiplier is not None
            kind = (
                "a sum of clipped gradients, to which each client adds a few random bits; all bits together "
                "are as noisy as what a trusted server would add"
            )
            noise = "noise_multiplier", rounded(self.noise_multiplier, up=True), "the least"
        else:
            kind = (
                "every record sends one noisy report; by default the randomizer with the least noise here. "
                f"If nobody sees more than a sum of messages, {SUMS[0]} has less noise, far less with many "
                "records"
            )
            noise = "local_epsilon", rounded(self.local_epsilon, up=False), "the largest"
        windows: tuple[tuple[str, str, str], ...] = ()
        if self.windows_leave is not None:
            left = rounded(self.windows_leave, up=True, digits=2)
            kind += f". {SUMS[2]} would leave {left} of its noise in the model"
        if (band := len(self.coefficients)) > 1:
            kind += ", and sums over windows of steps alone are seen, so that later noise takes earlier back"
            windows = (
                (
                    "coefficients",
                    ", ".join(map(str, self.coefficients)),
                    f"of windows, for {self.num_steps:,} steps with this momentum: a record is in one of any "
                    f"{band} steps at most, and epsilon holds against a server that knows in which",
                ),
            )
        what, rows = "each weight", ""
        if self.model is ModelKind.LINEAR:
            what = "each output of the model on a row of length one"
            rows = ". Divide each row of the data by its l2 norm: others lose accuracy"
        return (
            ("mechanism", self.mechanism, kind),
            ("cohort", f"{self.cohort:,}", f"{self.cohort / self.population:.3g} of the data set a step"),
            (
                "num_steps",
                f"{self.num_steps:,}",
                f"{epochs:.3g} epochs; more reduce the noise of the run a little and take longer",
            ),
            (
                *noise[:2],
                f"{noise[2]} with which all steps together stay within epsilon={self.target_epsilon:g} at "
                f"delta={self.delta:g} ({NEIGHBOURING_RELATION}): certified "
                f"{rounded(self.epsilon.upper, up=True)}",
            ),
            *windows,
            (
                "max_grad_norm",
                f"{self.max_grad_norm:g}",
                "so small that nearly every gradient is clipped: all records weigh alike, and no statistic "
                "of the data is needed. Only learning_rate * max_grad_norm matters",
            ),
            (
                "momentum",
                f"{self.momentum:g}",
                f"averages the noise of some {1 / (1 - self.momentum):.0f} steps",
            ),
            (
                "learning_rate",
                f"{self.learning_rate:g}",
                f"with which the noise of all steps moves {what} by {_WEIGHT_NOISE[self.model]:g} (standard "
                "deviation). The signal-to-noise ratio of a step is at most "
                f"{rounded(ratio, up=True, digits=3)}{rows}",
            ),
        )

    @property
    def title(self) -> str:
        """What the recipe is for, in one line."""
        return (
            f"{self.model} model with {self.dim:,} parameters, {self.population:,} records, "
            f"epsilon={self.target_epsilon:g} at delta={self.delta:g}"
        )

    def __str__(self) -> str:
        said = [f"{name}={value}: {why}" for name, value, why in self.settings()]
        warning = self.warning()
        return "\n".join([self.title, *said, *([] if warning is None else [f"Warning: {warning}"])])


def _mechanisms_of_l2_balls(dim: int) -> tuple[str, ...]:
    found = []
    for name in registry.available(registry.Kind.VECTORS):
        with suppress(ValueError):  # of other dimensions, or with a δ0
            found += [name] * (mechanism_norm(name, dim=dim) == "l2")
    return tuple(found)


def training_recipe(
    *,
    target_epsilon: float,
    delta: float,
    population: int,
    dim: int,
    model: ModelKind | str = ModelKind.LINEAR,
    mechanism: str | Sequence[str] = BEST_MECHANISM,
    cohort: int | None = None,
    num_steps: int | None = None,
) -> TrainingRecipe:
    """Recommend mechanism, cohort, steps, noise, clipping and learning rate of a run, without any tuning.

    The noise is the least that keeps all steps within (ε, δ). Gradients are clipped to C = 0.1, so small that
    nearly all of them become equally long (as normalised ones, Bu et al. 2023, *Automatic Clipping*). With
    momentum m, and noise of standard deviation σ in every coordinate of a step's mean gradient, T steps move
    each weight at random by η·σ·√T/(1 - m); the learning rate η makes this 2 for a linear model and 0.1 for a
    network (``docs/guides/opacus.md``).

    Args:
        target_epsilon: of the whole run, replace-one, against an observer of the model.
        population: records of the data set, at least 20.
        mechanism: for one report per record, registered randomizers of vectors in an ℓ2 ball, or ``"best"``;
            for a sum, one of those that :func:`plan_sums` plans.
        cohort: records of a step; by default a tenth of all.
    """
    kind = checks.choice(ModelKind, "model", model)
    checks.whole("population", population, at_least=2 * _ONE_IN)
    k = population // _ONE_IN if cohort is None else checks.whole("cohort", cohort, at_most=population)
    steps = 200 if num_steps is None else checks.num_steps(num_steps)
    asked: dict[str, Any] = {
        "target_epsilon": target_epsilon,
        "delta": delta,
        "population": population,
        "dim": dim,
        "num_steps": steps,
        "cohorts": [k],
        "norm": "l2",
    }
    row: PlanRow | SumRow
    leave: list[float] = []
    if isinstance(mechanism, str) and mechanism in SUMS:
        # Cohorts are drawn without replacement here; clients who join by coins of their own are not.
        ways = plan_sums(**asked, mechanism=mechanism, momentum=_MOMENTUM).rows
        hosts = (DrawnBy.SERVER, DrawnBy.NOBODY) if mechanism in SUMS[:2] else (DrawnBy.IN_TURN,)
        drawn = [each for each in ways if each.drawn_by in hosts]
        if not drawn:
            raise ValueError(
                f"no noise keeps these sums within ε={target_epsilon:g}, δ={delta:g}: use fewer steps, or a "
                "larger ε or δ"
            )
        row, name, local_epsilon, noise_multiplier = drawn[0], mechanism, None, drawn[0].noise_multiplier
        leave = [each.model_noise / row.model_noise for each in ways if each.drawn_by is DrawnBy.IN_TURN]
    else:
        known = _mechanisms_of_l2_balls(dim)
        names = known if mechanism == BEST_MECHANISM else mechanism
        for each in (names,) if isinstance(names, str) else names:
            if each not in known:
                raise ValueError(
                    f"no recipe for {each!r}: give one of {', '.join((*known, *SUMS))}, or "
                    f"{BEST_MECHANISM!r} for the best with one report per record"
                )
        best = plan(**asked, mechanism=names).best
        row, name, local_epsilon, noise_multiplier = best, best.mechanism, best.local_epsilon, None
    # noise_mse is the squared ℓ2 error of one step's mean, of vectors in the ball of radius one.
    noise = ExpectedNoise(
        noise=_MAX_GRAD_NORM * math.sqrt(row.noise_mse),
        largest_signal=_MAX_GRAD_NORM,
        dim=dim,
        cohort=k,
        local_epsilon=local_epsilon,
    )
    deviation = noise.noise / math.sqrt(dim)  # σ of the docstring
    rate = _WEIGHT_NOISE[kind] * (1 - _MOMENTUM) / (deviation * math.sqrt(steps))
    return TrainingRecipe(
        model=kind,
        population=population,
        dim=dim,
        target_epsilon=target_epsilon,
        delta=delta,
        mechanism=name,
        local_epsilon=local_epsilon,
        noise_multiplier=noise_multiplier,
        epsilon=row.epsilon,
        cohort=k,
        num_steps=steps,
        max_grad_norm=_MAX_GRAD_NORM,
        learning_rate=float(f"{rate:.2g}"),
        momentum=_MOMENTUM,
        expected_noise=noise,
        coefficients=row.coefficients if isinstance(row, SumRow) else (1,),
        windows_leave=leave[0] if leave and mechanism != SUMS[2] else None,
    )
