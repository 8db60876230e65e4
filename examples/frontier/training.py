"""Trains a linear model (softmax regression) from private sums of clipped gradients.

The gradient of the loss at one record is the outer product of its errors (the model's probability of each
class less 1 for the true class and 0 for others) and its features, so no automatic differentiation is
needed. The sums are made by the package: by ``randomize_sum`` of a mechanism with one report per client, or
by ``share``, ``common_noise`` and ``estimate`` of a multi-message sum, as in ``opacus_shuffle``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from data import Task
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.protocols import WindowedSum, Windows, WindowSolver

# ℓ2 norm to which the rows of the first look (`standardized`) are clipped. Features have norm 1. With their
# stretched squares half of the rows of MNIST and Fashion-MNIST, and most of the census, are a little longer
# than this and are scaled down.
LOOK_RADIUS = 1.25
_ROWS_AT_ONCE = 64  # gradients written out at a time, few enough to stay in the processor's cache
_LEAST_SCALE = 0.1  # smaller deviations, over the average one, are raised to this: some features are constant
_LOOKS_AT_ONCE = 4000  # rows handled at a time, to limit memory
# Standard deviation that the noise of all rounds gives each weight. Rows have norm one, so it is also that
# of the noise in each output, in logits. Chosen on MNIST.
WEIGHT_NOISE = 2.4


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a model is trained by stochastic gradient descent.

    Attributes:
        cohort: k, the number of records drawn for each round.
        rounds: number of rounds.
        clip: C; gradients of larger ℓ2 norm are scaled down to norm C.
        momentum: factor in [0, 1) by which the running sum of mean gradients is multiplied in each round
            before that round's mean is added.
        pace: learning rate of the first round times C. Without noise and momentum one round moves the weights
            by at most so much (ℓ2). The learning rate falls linearly towards zero. With noise,
            :meth:`suited` sets it.
        averaged: in [0, 1]; the final model is the average of the models after the last rounds, this share
            of all of them, and at least of the last one.
    """

    cohort: int
    rounds: int
    clip: float
    momentum: float = 0.9
    averaged: float = 0.1
    pace: float = 0.0

    def suited(self, deviation: float) -> Schedule:
        """The same schedule with the learning rate that gives each weight noise of ``WEIGHT_NOISE``.

        T rounds whose learning rate falls linearly from η move a weight at random by about
        η·deviation·√(T/3)/(1 - momentum). ``planning.training_recipe`` has this rule, with a noise of 2, for
        a constant rate.

        Args:
            deviation: standard deviation of the noise in each number of a round's mean gradient, over C.
        """
        drift = deviation * math.sqrt(self.rounds / 3) / (1 - self.momentum)
        return replace(self, pace=WEIGHT_NOISE / drift)


class OuterProducts(Rows):
    """A batch of gradients, one a row, that are kept as factors: row i is errors[i] ⊗ features[i], flattened.

    It has the methods of :class:`Rows` that the mechanisms used here need. Norms, inner products and weighted
    sums are computed from the factors, which is faster than to write out rows of classes·features numbers.

    Args:
        errors: (records, classes) float32.
        features: (records, features) float32.
    """

    def __init__(self, errors: Tensor, features: Tensor) -> None:
        self.errors, self.features = errors, features
        self.num_rows, self.dim = len(errors), errors.shape[1] * features.shape[1]
        self.dtype, self.device = features.dtype, features.device

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """All rows written out as one block, for mechanisms that read every entry: see :meth:`dense`."""
        return (self.dense(),)

    def narrow(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` (not included), kept as factors."""
        return OuterProducts(self.errors[start:stop], self.features[start:stop])

    def l2_norm(self) -> Tensor:
        """ℓ2 norm of each row, (records,): the product of its factors' norms.

        Errors may be so small that their squares vanish in float32, so they are squared in float64. Features
        are of ordinary size.
        """
        return (self.errors.double().norm(dim=1) * self.features.norm(dim=1)).to(self.dtype)

    def gram(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """Inner products between all rows, (records, records) in ``dtype``, by default float32."""
        return ((self.errors @ self.errors.T) * (self.features @ self.features.T)).to(dtype or torch.float32)

    def dot(self, vector: Tensor) -> Tensor:
        """Inner product of each row with one vector of length classes·features, (records,)."""
        folded = vector.view(self.errors.shape[1], -1)
        return ((self.features @ folded.T) * self.errors).sum(dim=1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum of weights[i] · row i, (classes·features,)."""
        return ((self.errors * weights.to(torch.float32)[:, None]).T @ self.features).flatten()

    def directions(self, norms: Tensor) -> Rows:
        """Each row divided by its norm in ``norms``, (records,), written out in float64."""
        return Rows(self.dense()).directions(norms)

    def dense(self) -> Tensor:
        """All rows written out, (records, classes·features)."""
        return (self.errors[:, :, None] * self.features[:, None, :]).flatten(1)


Noisy = Callable[[OuterProducts], Tensor]
"""A function from the gradients of a cohort to the sum of the clipped gradients with noise, (dim,)."""


def through(mechanism: PrivateSum) -> Noisy:
    """A function that adds up gradients by a mechanism of the package, with its clipping and its noise.

    Args:
        mechanism: for vectors of length classes·features; its radius is the clipping norm. If it has a
            ``cohort``, it is a multi-message sum, and every batch should have exactly so many rows. Of a
            ``WindowedSum`` the function is for one series: each batch is a round of it.
    """
    if isinstance(mechanism, WindowedSum):
        windows, solver = Windows(mechanism), WindowSolver(mechanism)

    def estimated(total: Tensor, *, reports: int) -> Tensor:
        if isinstance(mechanism, WindowedSum):
            return solver.solve(windows.open(total, reports=reports), reports=reports)
        return mechanism.estimate(total, reports=reports)

    def total_of(gradients: OuterProducts) -> Tensor:
        if mechanism.cohort is None:
            return mechanism.randomize_sum(gradients)
        parts = range(0, gradients.num_rows, _ROWS_AT_ONCE)
        total = sum(
            mechanism.share(gradients.narrow(start, start + _ROWS_AT_ONCE).dense()) for start in parts
        )
        noise = mechanism.common_noise()
        return estimated(total if noise is None else total + noise, reports=gradients.num_rows)

    return total_of


def with_gaussian(deviation: float, *, clip: float, coins: torch.Generator) -> Noisy:
    """A function that clips and adds up gradients exactly and adds Gaussian noise, as a trusted server would.

    Args:
        deviation: standard deviation of the noise in each number of the sum; 0 for none.
        clip: C, largest ℓ2 norm of a gradient; above 0.
        coins: random generator of the noise.
    """

    def total_of(gradients: OuterProducts) -> Tensor:
        total = gradients.weighted_sum(clip / gradients.l2_norm().clamp(min=clip))
        return total + deviation * torch.randn(total.shape, generator=coins)

    return total_of


def standardized(task: Task, noisy: Noisy, *, deviation: float) -> Task:
    """The first look: the same task with features that have mean about zero and more equal deviations.

    A noisy sum over all training records gives every feature's mean and mean square. This costs privacy,
    which the caller has to account for. As the noise's size is known, means are shrunk towards 0 and mean
    squares towards 1/features, their average for rows of norm one. Each feature's mean is subtracted, and the
    result is divided by the square root of its standard deviation over the average one of all features. Then
    rows are scaled to norm one again. Test records are changed in the same way.

    Args:
        task: rows of ℓ2 norm about one.
        noisy: adds up one row of 2·features numbers for each record, clipped to norm ``LOOK_RADIUS``.
        deviation: standard deviation of the noise in each number of that sum.
    """
    features, labels = task.train
    stretch = math.sqrt(task.features) / 4  # so that a row's squares have norm about ½, and its features 1

    def looks() -> Tensor:
        rows = torch.empty(len(labels), 2 * task.features)
        for start in range(0, len(labels), _LOOKS_AT_ONCE):
            part = features[start : start + _LOOKS_AT_ONCE].float()
            rows[start : start + _LOOKS_AT_ONCE] = torch.cat([part, stretch * part.square()], dim=1)
        return rows

    total = noisy(OuterProducts(torch.ones(len(labels), 1), looks())).float() / task.population
    unsure = (deviation / task.population) ** 2
    means = _shrunk(total[: task.features], towards=0.0, noise_variance=unsure)
    squares = total[task.features :] / stretch
    squares = _shrunk(squares, towards=1 / task.features, noise_variance=unsure / stretch**2)
    variances = squares - means.square()
    deviations = variances.clamp(min=0).sqrt()
    scales = (deviations / deviations.mean().clamp(min=1e-6)).clamp(min=_LEAST_SCALE).sqrt()

    def of(rows: Tensor) -> Tensor:
        parts = (part.float().sub(means).div(scales) for part in rows.split(_LOOKS_AT_ONCE))
        return torch.cat([functional.normalize(part).half() for part in parts])

    return Task(
        name=task.name,
        train=(of(features), labels),
        test=(of(task.test[0]), task.test[1]),
        classes=task.classes,
    )


def _shrunk(values: Tensor, *, towards: float, noise_variance: float) -> Tensor:
    """The values moved towards one number, to reduce the error that noise makes (James and Stein 1961).

    Each distance from that number is multiplied by 1 − noise_variance/(mean squared distance), or by 0 if
    that is negative.
    """
    seen = float((values - towards).square().mean().clamp(min=1e-30))
    return towards + max(0.0, 1 - noise_variance / seen) * (values - towards)


def train(task: Task, schedule: Schedule, noisy: Noisy, *, seed: int, in_turn: bool = False) -> float:
    """Train a linear model from weights of zero, and give its accuracy on the test set, in [0, 1].

    Args:
        task: training and test records.
        schedule: number of rounds, cohort size and learning rate.
        noisy: clips and adds up a cohort's gradients, with noise.
        seed: fixes which k of the n training records each round draws, without replacement.
        in_turn: if True cohorts are disjoint until no whole one is left, and then come again in this order.
    """
    coins = torch.Generator().manual_seed(seed)
    features, labels = task.train
    targets = functional.one_hot(labels, task.classes).float()
    weights = torch.zeros(task.classes, task.features)
    velocity, average = torch.zeros_like(weights), torch.zeros_like(weights)
    first = min(schedule.rounds - 1, round(schedule.rounds * (1 - schedule.averaged)))
    order = torch.randperm(len(labels), generator=coins)
    for step in tqdm(range(schedule.rounds), unit="round", leave=False, mininterval=5):
        if in_turn:
            place = step % (len(labels) // schedule.cohort)
            drawn = order[place * schedule.cohort : (place + 1) * schedule.cohort]
        else:
            drawn = torch.randperm(len(labels), generator=coins)[: schedule.cohort]
        rows = features[drawn].float()
        errors = torch.softmax(rows @ weights.T, dim=1) - targets[drawn]
        mean = noisy(OuterProducts(errors, rows)).float().view_as(weights) / schedule.cohort
        velocity = schedule.momentum * velocity + mean
        weights = weights - schedule.pace / schedule.clip * (1 - step / schedule.rounds) * velocity
        if step >= first:
            average += weights / (schedule.rounds - first)
    return accuracy(average, task)


def accuracy(weights: Tensor, task: Task) -> float:
    """Share of the test records for which the model's largest output is that of their class, in [0, 1].

    Args:
        weights: (classes, features).
        task: whose test records are used.
    """
    rows, labels = task.test
    found = torch.cat([(part.float() @ weights.T).argmax(dim=1) for part in rows.split(2000)])
    return float((found == labels).float().mean())
