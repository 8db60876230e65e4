"""Losses of linear models, with everything the optimisers want to know of them, and torch modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shuffle_plugins.core import checks
from shuffle_plugins.mechanisms import Norm
from shuffle_plugins.optim.domains import Ball, Box, ConvexSet, L1Ball
from shuffle_plugins.optim.problems import Examples, Problem


def logistic_regression(
    *,
    features: int,
    radius: float = 1.0,
    feature_bound: float = 1.0,
    regularisation: float = 0.0,
    norm: Norm | str = Norm.L2,
) -> Problem:
    """log(1 + exp(−y⟨θ, x⟩)) for examples (x, y), y in {−1, 1}, over a ball of parameters.

    Args:
        features: d, length of an example.
        radius: of the ball of parameters, which is that of the dual norm: a :class:`Ball` for ℓ2; for ℓ∞ an
            :class:`L1Ball`, which makes parameters sparse; for ℓ1, as of sparse features, a :class:`Box`.
        feature_bound: largest norm of x; examples beyond have their gradients clipped.
        regularisation: λ of λ/2·‖θ‖² that is added.
        norm: of the features and so of gradients, ``"l1"``, ``"l2"`` or ``"linf"``.
    """
    geometry = checks.choice(Norm, "norm", norm)
    problem = _of_margins(
        lambda margins: nn.functional.softplus(-margins),
        slope=lambda margins: -torch.sigmoid(-margins),
        features=features,
        radius=radius,
        feature_bound=feature_bound,
        norm=geometry,
    )
    smoothness = problem.lipschitz**2 * (features if geometry is Norm.LINF else 1) / 4
    problem = replace(problem, smoothness=smoothness)
    return problem.regularised(regularisation) if regularisation else problem


def support_vector_machine(
    *,
    features: int,
    radius: float = 1.0,
    feature_bound: float = 1.0,
    regularisation: float = 0.0,
    norm: Norm | str = Norm.L2,
) -> Problem:
    """max(0, 1 − y⟨θ, x⟩), which is not smooth; arguments as of :func:`logistic_regression`."""

    def proximal(parameters: Tensor, examples: Examples, beta: float) -> Tensor:
        # The minimiser is θ + s·y·x with the s in [0, 1/β] that takes the margin nearest to 1.
        squares = examples[0].to(parameters.dtype).square().sum(-1)
        wanted = (1 - _margins(parameters, examples)) / squares.clamp(min=torch.finfo(squares.dtype).tiny)
        return parameters + _along(examples, wanted.clamp(0, 1 / beta))

    problem = _of_margins(
        lambda margins: (1 - margins).clamp(min=0),
        slope=lambda margins: -(margins < 1).to(margins.dtype),
        features=features,
        radius=radius,
        feature_bound=feature_bound,
        norm=checks.choice(Norm, "norm", norm),
    )
    problem = replace(problem, proximal=proximal)
    return problem.regularised(regularisation) if regularisation else problem


def _of_margins(
    loss: Callable[[Tensor], Tensor],
    *,
    slope: Callable[[Tensor], Tensor],
    features: int,
    radius: float,
    feature_bound: float,
    norm: Norm,
) -> Problem:
    """A loss of the margins y⟨θ, x⟩ and its derivative, on labelled examples."""
    return Problem(
        dim=features,
        domain=_dual_ball(norm, radius, features),
        gradients=lambda theta, examples: _along(examples, slope(_margins(theta, examples))),
        losses=lambda theta, examples: loss(_margins(theta, examples)),
        lipschitz=feature_bound,
        norm=norm,
        accepts=lambda examples: _check_labelled(examples, features),
    )


def _dual_ball(norm: Norm, radius: float, features: int) -> ConvexSet:
    """The ball of the norm in which a loss of gradients bounded in this one is Lipschitz."""
    if norm is Norm.LINF:
        return L1Ball(radius=radius)
    return Ball(radius=radius) if norm is Norm.L2 else Box(bound=radius, dim=features)


def _check_labelled(examples: Examples, features: int) -> None:
    if len(examples) != 2:
        raise ValueError(f"data must be two tensors, examples and labels: (x, y), got {len(examples)}")
    x, y = examples
    if x.shape[1:] != (features,) or y.dim() != 1:
        raise ValueError(
            f"x must be (clients, {features}) and y (clients,), got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    strange = y[(y != 1) & (y != -1)]
    if len(strange):
        raise ValueError(f"labels must be -1 or 1, got {strange[0].item():g}: of 0 and 1 make 2 * y - 1")


def _margins(parameters: Tensor, examples: Examples) -> Tensor:
    x, y = examples
    return (parameters * x).sum(-1) * y if parameters.dim() > 1 else (x.to(parameters.dtype) @ parameters) * y


def _along(examples: Examples, factors: Tensor) -> Tensor:
    x, y = examples
    return x.to(factors.dtype) * (factors * y).unsqueeze(-1)


def from_module(
    module: nn.Module,
    loss: Callable[..., Tensor],
    *,
    lipschitz: float,
    radius: float | None = None,
    domain: ConvexSet | None = None,
    smoothness: float = math.inf,
    strong_convexity: float = 0.0,
    norm: Norm | str = Norm.L2,
) -> Problem:
    """A torch module and a loss as a problem; parameters are one flat vector (:func:`assign` puts it back).

    Args:
        module: called with the first tensor of the examples. No state may be shared between examples, so no
            batch normalisation; it must be convex in its parameters for the theorems to hold.
        loss: of the module's output and the other tensors of the examples, for a batch of one.
        lipschitz: clipping norm of one example's gradient.
        radius: of the ball of parameters, around the origin; or give a ``domain``.
        domain: Θ.
        smoothness: β, if known.
        strong_convexity: λ, if known.
        norm: in which ``lipschitz`` bounds a gradient, ``"l1"``, ``"l2"`` or ``"linf"``.
    """
    if (radius is None) == (domain is None):
        raise ValueError("give either a radius or a domain")
    shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
    if not shapes:
        raise ValueError("the module has no parameters to train")
    sizes = [shape.numel() for shape in shapes.values()]
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    held = {**frozen, **dict(module.named_buffers())}
    kind = next(p.dtype for p in module.parameters() if p.requires_grad)

    def one(flat: Tensor, *example: Tensor) -> Tensor:
        parts = {
            name: part.reshape(shape)
            for (name, shape), part in zip(shapes.items(), torch.split(flat.to(kind), sizes), strict=True)
        }
        output = functional_call(module, {**held, **parts}, (example[0].unsqueeze(0),))
        return loss(output, *(t.unsqueeze(0) for t in example[1:])).reshape(())

    def batched(function: Callable[..., Tensor]) -> Callable[[Tensor, Examples], Tensor]:
        def call(parameters: Tensor, examples: Examples) -> Tensor:
            each = 0 if parameters.dim() > 1 else None
            mapped = vmap(function, in_dims=(each, *(0 for _ in examples)), randomness="different")
            return mapped(parameters, *examples).detach()

        return call

    return Problem(
        dim=sum(sizes),
        domain=Ball(radius=radius) if domain is None and radius is not None else domain,  # type: ignore[arg-type]
        gradients=batched(grad(one)),
        losses=batched(one),
        lipschitz=lipschitz,
        smoothness=smoothness,
        strong_convexity=strong_convexity,
        norm=checks.choice(Norm, "norm", norm),
    )


def assign(module: nn.Module, parameters: Tensor) -> None:
    """Write a flat vector of parameters into the module it came from."""
    trained = [p for p in module.parameters() if p.requires_grad]
    if parameters.numel() != sum(p.numel() for p in trained):
        raise ValueError(
            f"{parameters.numel()} values for {sum(p.numel() for p in trained)} parameters of the module"
        )
    with torch.no_grad():
        for p, part in zip(trained, torch.split(parameters, [p.numel() for p in trained]), strict=True):
            p.copy_(part.reshape(p.shape))
