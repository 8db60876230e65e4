"""A linear model trained by what a mechanism makes of each client's clipped gradient.

The gradient of one record is the outer product of its errors and its features, so no automatic
differentiation is needed. What happens to it is the package's own: ``randomize_sum`` of a local randomizer;
``share``, ``common_noise`` and ``estimate`` of a sum. That is what ``opacus_shuffle`` calls too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from data import Task
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm

from shuffle_plugins.core import Rows
from shuffle_plugins.mechanisms import PrivateSum

LOOK_RADIUS = 1.25  # longest row of the first look: the features are 1 of it, their scaled squares the rest
_ROWS_AT_ONCE = 64  # outer products that are written out together, which stay in the processor's cache
_LEAST_SCALE = 0.1  # of the average deviation, so that a feature which is always the same does not explode
_LOOKS_AT_ONCE = 4000


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How a model is trained; fixed on MNIST for all data sets.

    Attributes:
        cohort: k, records of a round.
        rounds: how many.
        clip: C, ℓ2 norm to which a gradient is clipped.
        pace: learning rate times C: how far a round without momentum moves the weights at most. It falls
            linearly to zero.
        momentum: of stochastic gradient descent.
        averaged: share of the rounds, the last ones, over whose models the final one is the average.
    """

    cohort: int
    rounds: int
    clip: float
    pace: float
    momentum: float = 0.9
    averaged: float = 0.1


class OuterProducts(Rows):
    """The gradients errors_i ⊗ features_i of a batch as rows, of which a mechanism needs only inner products.

    What :class:`Rows` answers for vectors that are written out, this one answers from their factors.

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
        """Written out, for mechanisms that read every entry."""
        return (self.dense(),)

    def narrow(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop`` (not included)."""
        return OuterProducts(self.errors[start:stop], self.features[start:stop])

    def l2_norm(self) -> Tensor:
        """Norm of each row: the product of its factors' norms."""
        return self.errors.norm(dim=1) * self.features.norm(dim=1)

    def gram(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """Inner products between all rows: products of the factors' inner products."""
        return ((self.errors @ self.errors.T) * (self.features @ self.features.T)).to(dtype or torch.float32)

    def dot(self, vector: Tensor) -> Tensor:
        """Inner product of each row with one vector."""
        folded = vector.view(self.errors.shape[1], -1)
        return ((self.features @ folded.T) * self.errors).sum(dim=1)

    def add_weighted_sum(self, weights: Tensor, *, out: Tensor) -> None:
        """Add the sum of weights[i] · row i to ``out``."""
        out += ((self.errors * weights.to(torch.float32)[:, None]).T @ self.features).flatten()

    def directions(self, norms: Tensor) -> Rows:
        """Rows over their norms, written out."""
        return Rows(self.dense()).directions(norms)

    def dense(self) -> Tensor:
        """Written out, (records, classes·features)."""
        return (self.errors[:, :, None] * self.features[:, None, :]).flatten(1)


Noisy = Callable[[OuterProducts], Tensor]
"""Takes the gradients of a cohort, and gives the (noisy) sum of them all, each clipped, (dim,)."""


def through(mechanism: PrivateSum) -> Noisy:
    """The sum as the mechanism's users get it."""

    def total_of(gradients: OuterProducts) -> Tensor:
        if mechanism.cohort is None:
            return mechanism.randomize_sum(gradients)
        parts = range(0, gradients.num_rows, _ROWS_AT_ONCE)
        total = sum(
            mechanism.share(gradients.narrow(start, start + _ROWS_AT_ONCE).dense()) for start in parts
        )
        noise = mechanism.common_noise()
        return mechanism.estimate(total if noise is None else total + noise, reports=gradients.num_rows)

    return total_of


def with_gaussian(deviation: float, *, clip: float, coins: torch.Generator) -> Noisy:
    """The exact sum of the clipped gradients, with Gaussian noise of a trusted server."""

    def total_of(gradients: OuterProducts) -> Tensor:
        total = torch.zeros(gradients.dim)
        gradients.add_weighted_sum(clip / gradients.l2_norm().clamp(min=clip), out=total)
        return total + deviation * torch.randn(total.shape, generator=coins)

    return total_of


def standardized(task: Task, noisy: Noisy, *, deviation: float) -> Task:
    """The task with features less their mean over the records, and of more equal size.

    A first look at the data, to be paid for: a noisy sum of every record's features and of their squares
    gives means and deviations. Noise of a known size is taken out again by shrinking: the means towards 0,
    and the squares towards what rows of length one have on average. Features are divided by the square root
    of their deviation, and rows get length one again.

    Args:
        task: rows of length about one.
        noisy: adds up rows of 2·features numbers of all records, each clipped to ``LOOK_RADIUS``.
        deviation: of the noise in each number of that sum.
    """
    features, labels = task.train
    stretch = math.sqrt(task.features) / 4  # squares have length about half of the features' then

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
    """Nearer to one number, by the part of the distance that noise explains (James and Stein 1961)."""
    seen = float((values - towards).square().mean().clamp(min=1e-30))
    return towards + max(0.0, 1 - noise_variance / seen) * (values - towards)


def train(task: Task, schedule: Schedule, noisy: Noisy, *, seed: int, once: bool = False) -> float:
    """Accuracy on the test set.

    Args:
        task: what is learnt.
        schedule: how.
        noisy: adds up a cohort's gradients.
        seed: of the cohorts, k of n without replacement.
        once: whether each record is in at most one cohort.
    """
    coins = torch.Generator().manual_seed(seed)
    features, labels = task.train
    targets = functional.one_hot(labels, task.classes).float()
    weights = torch.zeros(task.classes, task.features)
    velocity, average = torch.zeros_like(weights), torch.zeros_like(weights)
    first = min(schedule.rounds - 1, round(schedule.rounds * (1 - schedule.averaged)))
    order = torch.randperm(len(labels), generator=coins)
    for step in tqdm(range(schedule.rounds), unit="round", leave=False, mininterval=5):
        if once:
            drawn = order[step * schedule.cohort : (step + 1) * schedule.cohort]
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
    """Share of the test set whose class has the largest output."""
    rows, labels = task.test
    found = torch.cat([(part.float() @ weights.T).argmax(dim=1) for part in rows.split(2000)])
    return float((found == labels).float().mean())
