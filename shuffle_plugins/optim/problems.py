"""What is minimised: a convex loss of one example, its gradient, and what is known of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from shuffle_plugins.core import Dim, NotNegative, Radius, Ranged, checks, one_of
from shuffle_plugins.mechanisms import Norm
from shuffle_plugins.optim.domains import ConvexSet

Examples = tuple[Tensor, ...]
"""One or more tensors with a row for each client."""

PerExample = Callable[[Tensor, Examples], Tensor]
"""Called with parameters, (dim,) or one row per client (clients, dim), and the clients' examples."""

Proximal = Callable[[Tensor, Examples, float], Tensor]
"""Called with parameters (dim,), examples and β: the minimiser of ℓ(·, x) + β/2·‖· − θ‖², (clients, dim)."""

PROXIMAL_STEPS = 200


@dataclass(frozen=True, kw_only=True)
class Problem(Ranged):
    """A convex loss ℓ(θ, x) over θ in Θ.

    A gradient longer than ``lipschitz``, in the norm, is clipped to that length, so a wrong bound costs
    accuracy, never privacy.

    Attributes:
        dim: d, number of parameters.
        domain: Θ.
        gradients: (sub)gradients ∇ℓ(θ, x_i), (clients, dim).
        losses: ℓ(θ, x_i), (clients,); only for reports of progress.
        lipschitz: L, bound on the length of a gradient in the norm: the loss is L-Lipschitz in its dual.
        norm: ℓ1, ℓ2 or ℓ∞, given as :class:`Norm` or its value, such as ``"linf"``. Smoothness and strong
            convexity are of the ℓ2 norm, whichever this is.
        smoothness: β, Lipschitz constant of the gradient; infinite for a loss that is not smooth.
        strong_convexity: λ, zero if there is none.
        proximal: proximal points in closed form, for smoothing; by default they are searched for.
        accepts: raises ValueError if the loss is not for these examples; called with all of them.
    """

    dim: Dim
    domain: ConvexSet
    gradients: PerExample
    lipschitz: Radius
    losses: PerExample | None = None
    smoothness: float = math.inf
    strong_convexity: NotNegative = 0.0
    proximal: Proximal | None = None
    accepts: Callable[[Examples], None] | None = None
    norm: Annotated[Norm, one_of(Norm)] = Norm.L2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.smoothness > 0:
            raise ValueError(f"smoothness must be positive, got {self.smoothness!r}")
        if self.strong_convexity > self.smoothness * (1 + 1e-9):
            raise ValueError("no loss is more strongly convex than it is smooth")

    @property
    def gradient_length(self) -> float:
        """Bound on the ℓ2 length of a gradient: L, or √d·L where L bounds every coordinate.

        Its square is max{d^(1−2/p), 1}·L², the first part of G² in Theorem 5.4.3 of the thesis.
        """
        return self.lipschitz * (math.sqrt(self.dim) if self.norm is Norm.LINF else 1.0)

    def check(self, examples: Examples) -> None:
        """Look at all examples once, before anything is released; ValueError if the loss is not for them."""
        if self.accepts is not None:
            self.accepts(examples)

    def mean_loss(self, parameters: Tensor, examples: Tensor | Examples) -> float:
        """Mean loss over examples."""
        if self.losses is None:
            raise ValueError("this problem does not tell its losses")
        found = as_examples(examples)
        self.check(found)
        return float(self.losses(parameters, found).double().mean())

    def regularised(self, strength: float) -> Problem:
        """The problem with strength/2·‖θ‖² added to every loss, which makes it strongly convex."""
        strength = checks.number("strength", strength, above=0)
        gradients, losses, proximal = self.gradients, self.losses, self.proximal

        def regularised_gradients(parameters: Tensor, examples: Examples) -> Tensor:
            return gradients(parameters, examples) + strength * parameters

        def regularised_losses(parameters: Tensor, examples: Examples) -> Tensor:
            assert losses is not None
            return losses(parameters, examples) + strength / 2 * parameters.square().sum(-1)

        def regularised_proximal(parameters: Tensor, examples: Examples, beta: float) -> Tensor:
            assert proximal is not None
            return proximal(parameters * (beta / (beta + strength)), examples, beta + strength)

        origin = self.domain.start(self.dim).zero_()
        return replace(
            self,
            gradients=regularised_gradients,
            losses=None if losses is None else regularised_losses,
            proximal=None if proximal is None else regularised_proximal,
            lipschitz=self.lipschitz + strength * self._longest(self.domain.reach(origin)),
            smoothness=self.smoothness + strength,
            strong_convexity=self.strong_convexity + strength,
        )

    def _longest(self, length: float) -> float:
        """The largest norm, in this problem's, of a vector of this ℓ2 length."""
        return length * (math.sqrt(self.dim) if self.norm is Norm.L1 else 1.0)

    def smoothed(self, smoothness: float) -> Problem:
        r"""The Moreau envelopes :math:`ℓ_β(θ, x) = \min_u ℓ(u, x) + β/2·‖u − θ‖²` in place of the losses.

        :math:`∇ℓ_β(θ) = β(θ − prox(θ))`, a subgradient of ℓ at the proximal point; so the envelope of a loss
        that is convex and L-Lipschitz everywhere is L-Lipschitz (2L where u is kept in Θ, as in the paper's
        Definition 4.5: here it is not), β-smooth, and ℓ − L²/(2β) ≤ ℓ_β ≤ ℓ (Lemma 4.6).
        """
        smoothness = checks.number("smoothness", smoothness, above=0)
        proximal = self.proximal or self._searched_proximal

        def gradients(parameters: Tensor, examples: Examples) -> Tensor:
            return smoothness * (parameters - proximal(parameters, examples, smoothness))

        convexity = self.strong_convexity
        return replace(
            self,
            gradients=gradients,
            proximal=None,
            smoothness=smoothness,
            strong_convexity=convexity * smoothness / (convexity + smoothness),
        )

    def _searched_proximal(self, parameters: Tensor, examples: Examples, beta: float) -> Tensor:
        """Subgradient descent with steps 2/(β(k + 1)); after K of them the gradient is off by 2L/√(K + 1)."""
        points = parameters.expand(examples[0].shape[0], self.dim).clone()
        averages = points.clone()
        for k in range(1, PROXIMAL_STEPS + 1):
            slopes = self.gradients(points, examples) + beta * (points - parameters)
            points = points - slopes * (2 / (beta * (k + 1)))
            averages += (points - averages) * (2 / (k + 2))
        return averages


def as_examples(data: Tensor | Sequence[Tensor]) -> Examples:
    """Data as a tuple of tensors, with as many rows each."""
    examples = (data,) if isinstance(data, Tensor) else tuple(data)
    if not examples or not all(isinstance(t, Tensor) and t.dim() > 0 for t in examples):
        raise ValueError("data must be a tensor, or several, with one row per client")
    if len({t.shape[0] for t in examples}) != 1:
        raise ValueError("tensors of data have different numbers of rows")
    return examples


def flattened(examples: Examples, records_per_client: int) -> Examples:
    """Clients' records one after another, of tensors (clients, …), or (clients, m, …) of several records."""
    if records_per_client == 1:
        return examples
    for tensor in examples:
        if tensor.dim() < 2 or tensor.shape[1] != records_per_client:
            raise ValueError(
                f"data of clients with {records_per_client} records must be (clients, {records_per_client}, "
                f"…), got {tuple(tensor.shape)}"
            )
    return tuple(tensor.flatten(0, 1) for tensor in examples)


def at(examples: Examples, which: Tensor | slice) -> Examples:
    """Some clients' examples."""
    return tuple(t[which] for t in examples)


def check_gradients(gradients: Tensor, *, clients: int, dim: int) -> Tensor:
    """Gradients as the driver needs them, (clients, dim) float64."""
    if gradients.shape != (clients, dim) or not gradients.dtype.is_floating_point:
        raise ValueError(
            f"gradients must be floating ({clients}, {dim}), got {gradients.dtype} {tuple(gradients.shape)}"
        )
    return gradients.detach().to(torch.float64)
