"""What is minimised: convex losses of one example, over closed convex sets of parameters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from typing_extensions import override

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Dim, NotNegative, Radius, Ranged, one_of
from shuffle_plugins.mechanisms.base import Norm


class ConvexSet(ABC):
    """A closed convex set of parameters."""

    @property
    @abstractmethod
    def diameter(self) -> float:
        """D, the largest distance of two of its points."""

    @abstractmethod
    def project(self, point: Tensor) -> Tensor:
        """The nearest point of the set, (dim,); of several points, (…, dim), each on its own."""

    @abstractmethod
    def reach(self, point: Tensor) -> float:
        """The largest distance from a point of the set to another."""

    def start(self, dim: int) -> Tensor:
        """Where an optimiser starts by default, float64 (dim,): the origin, unless a set says otherwise."""
        return torch.zeros(dim, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Ball(Ranged, ConvexSet):
    """The ℓ2 ball of a radius around the origin."""

    radius: Radius = 1.0

    @property
    @override
    def diameter(self) -> float:
        return 2 * self.radius

    @override
    def project(self, point: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(point, dim=-1, keepdim=True)
        projected: Tensor = point * (self.radius / norms.clamp(min=self.radius))
        return projected

    @override
    def reach(self, point: Tensor) -> float:
        return self.radius + min(self.radius, float(torch.linalg.vector_norm(point)))


@dataclass(frozen=True, kw_only=True)
class Box(Ranged, ConvexSet):
    """Every one of ``dim`` coordinates in [-bound, bound]; its diameter grows with the dimension."""

    bound: Radius = 1.0
    dim: Dim

    @property
    @override
    def diameter(self) -> float:
        return 2 * self.bound * math.sqrt(self.dim)

    @override
    def project(self, point: Tensor) -> Tensor:
        return point.clamp(-self.bound, self.bound)

    @override
    def reach(self, point: Tensor) -> float:
        return float(torch.linalg.vector_norm(self.project(point).abs() + self.bound))


@dataclass(frozen=True, kw_only=True)
class L1Ball(Ball):
    """The ℓ1 ball around the origin, for sparse parameters: it goes with gradients of an ℓ∞ bound."""

    @override
    def project(self, point: Tensor) -> Tensor:
        # By so much as is needed towards zero, found by sorting (Duchi, Shalev-Shwartz, Singer, Chandra 2008,
        # Figure 1).
        sizes = point.abs()
        falling = sizes.sort(dim=-1, descending=True).values
        counts = torch.arange(1, point.shape[-1] + 1, dtype=point.dtype, device=point.device)
        excess = (falling.cumsum(dim=-1) - self.radius) / counts
        kept = (falling > excess).sum(dim=-1, keepdim=True).clamp(min=1)
        shift = excess.gather(-1, kept - 1)
        shrunk = point.sign() * (sizes - shift).clamp(min=0)
        inside = sizes.sum(dim=-1, keepdim=True) <= self.radius
        projected: Tensor = torch.where(inside, point, shrunk)
        return projected

    @override
    def reach(self, point: Tensor) -> float:
        inside = self.project(point)
        square = float(inside.square().sum() + 2 * self.radius * inside.abs().max()) + self.radius**2
        return math.sqrt(square)


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

    Attributes:
        gradients: (sub)gradients ∇ℓ(θ, x_i), (clients, dim).
        losses: ℓ(θ, x_i), (clients,); only for reports of progress.
        lipschitz: L, in the norm; a longer gradient is clipped, so a wrong bound costs accuracy, not privacy.
        norm: ℓ1, ℓ2 or ℓ∞. Smoothness and strong convexity are of the ℓ2 norm, whichever this is.
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
    accepts: Callable[[Examples], object] = lambda _: None
    norm: Annotated[Norm, one_of(Norm)] = Norm.L2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.smoothness > 0:
            raise ValueError(f"smoothness must be positive, got {self.smoothness!r}")
        if self.strong_convexity > self.smoothness * (1 + 1e-9):
            raise ValueError("no loss is more strongly convex than it is smooth")

    @property
    def gradient_length(self) -> float:
        """Bound on the ℓ2 length of a gradient: L, or √d·L where L bounds every coordinate."""
        return self.lipschitz * (math.sqrt(self.dim) if self.norm is Norm.LINF else 1.0)

    def mean_loss(self, parameters: Tensor, examples: Tensor | Examples) -> float:
        """Mean loss over examples."""
        if self.losses is None:
            raise ValueError("this problem does not tell its losses")
        found = as_examples(examples)
        self.accepts(found)
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

        longest = self.domain.reach(torch.zeros(self.dim, dtype=torch.float64))  # of a point, in this norm
        longest *= math.sqrt(self.dim) if self.norm is Norm.L1 else 1.0
        return replace(
            self,
            gradients=regularised_gradients,
            losses=None if losses is None else regularised_losses,
            proximal=None if proximal is None else regularised_proximal,
            lipschitz=self.lipschitz + strength * longest,
            smoothness=self.smoothness + strength,
            strong_convexity=self.strong_convexity + strength,
        )

    def smoothed(self, smoothness: float) -> Problem:
        """The Moreau envelopes ℓ_β(θ, x) = min_u ℓ(u, x) + β/2·‖u − θ‖² in place of the losses.

        ∇ℓ_β(θ) = β(θ − prox(θ)), a subgradient of ℓ at the proximal point, as u is not kept in Θ; so ℓ_β is
        L-Lipschitz, β-smooth, and ℓ − L²/(2β) ≤ ℓ_β ≤ ℓ (Lemma 4.6).
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
        radius: of the ball of the dual norm that holds parameters: a :class:`Ball` for ℓ2; for ℓ∞ an
            :class:`L1Ball`, which makes them sparse; for ℓ1, as of sparse features, a :class:`Box`.
        feature_bound: largest norm of x; examples beyond have their gradients clipped.
        norm: of the features and so of gradients.
    """
    problem = _of_margins(
        lambda margins: nn.functional.softplus(-margins),
        slope=lambda margins: -torch.sigmoid(-margins),
        features=features,
        radius=radius,
        feature_bound=feature_bound,
        norm=norm,
    )
    problem = replace(problem, smoothness=problem.gradient_length**2 / 4)
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
        norm=norm,
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
    norm: Norm | str,
) -> Problem:
    """A loss of the margins y⟨θ, x⟩ and its derivative, on labelled examples."""
    geometry = checks.choice(Norm, "norm", norm)
    domain: ConvexSet = Box(bound=radius, dim=features)
    if geometry is not Norm.L1:
        domain = L1Ball(radius=radius) if geometry is Norm.LINF else Ball(radius=radius)
    return Problem(
        dim=features,
        domain=domain,
        gradients=lambda theta, examples: _along(examples, slope(_margins(theta, examples))),
        losses=lambda theta, examples: loss(_margins(theta, examples)),
        lipschitz=feature_bound,
        norm=geometry,
        accepts=lambda examples: _check_labelled(examples, features),
    )


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
        module: called with the first tensor of the examples; convex in its parameters, for the theorems to
            hold, and without batch normalisation.
        loss: of the module's output and the other tensors of the examples, for a batch of one.
        radius: of the ball of parameters, around the origin; or give a ``domain``.
        domain, smoothness, strong_convexity, norm: as of :class:`Problem`.
    """
    if (radius is None) == (domain is None):
        raise ValueError("give either a radius or a domain")
    shapes = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
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
    with torch.no_grad():
        for p, part in zip(trained, torch.split(parameters, [p.numel() for p in trained]), strict=True):
            p.copy_(part.reshape(p.shape))
