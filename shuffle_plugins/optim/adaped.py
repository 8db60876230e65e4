"""AdaPeD, personalised federated learning by adaptive distillation: a client's loss and its local steps.

``docs/guides/personalized.md`` says what the symbols are. Girgis's thesis, section 4.5, Algorithm 4.4.1,
which adds noise in every local step; its bound on the cost of that does not hold
(:mod:`shuffle_plugins.accounting.published.thesis`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Positive, Ranged

DISSIMILARITY = "dissimilarity"
"""Name of ψ among the arrays that are sent; no parameter of a model may have this name."""

Parameters = Mapping[str, Tensor]
"""Parameters of a model, by name."""

# what torch.func.vjp returns: takes a gradient in a model's outputs to the gradient in its parameters
_Pullback = Callable[[Tensor], tuple[dict[str, Tensor]]]


def distillation_loss(personal_scores: Tensor, global_scores: Tensor) -> Tensor:
    """KD: the mean of KL(softmax of personal ‖ softmax of global scores), (examples, classes), in nats."""
    ours, theirs = personal_scores.log_softmax(-1), global_scores.log_softmax(-1)
    return (ours.exp() * (ours - theirs)).sum(-1).mean()  # vmap would run torch's own kl_div once per client


def prior_loss(
    personal_model: Parameters,
    global_model: Parameters,
    *,
    prior: Literal["gaussian", "laplace"],
    spread: float,
) -> Tensor:
    """−log p(θ) of a personal model drawn around the global one: section 4.5's two other regularizers.

    With d numbers, d/2·log(2πσ²) + ‖θ − μ‖²/(2σ²) for the Gaussian and d·log(2b) + ‖θ − μ‖₁/b for the Laplace
    prior; ``spread`` is σ or b. Added to f, it makes the thesis's (4.15). :class:`AdaPeD` has KD instead.
    """
    checks.number("spread", spread, above=0)
    apart = torch.cat([(personal_model[name] - global_model[name]).flatten() for name in global_model])
    if prior == "gaussian":
        return apart.numel() / 2 * math.log(2 * math.pi * spread**2) + apart.square().sum() / (2 * spread**2)
    if prior == "laplace":
        return apart.numel() * math.log(2 * spread) + apart.abs().sum() / spread
    raise ValueError(f"prior must be 'gaussian' or 'laplace', got {prior!r}")


class ClientModels(NamedTuple):
    """θ, which never leaves the client, its copy of μ, with the same names and shapes, and ψ > 0, a scalar.

    A tuple of tensors, so that ``torch.func.vmap`` can train many clients at once.
    """

    personal_model: dict[str, Tensor]
    global_model: dict[str, Tensor]
    dissimilarity: Tensor


def _cut(name: str, value: object) -> float:
    return math.inf if value == math.inf else checks.number(name, value, above=0)


@dataclass(frozen=True, kw_only=True)
class AdaPeD(Ranged):
    """A client's side of AdaPeD; all of it is deterministic, and none of it is private by itself.

    Attributes:
        predict: maps parameters and inputs to scores (examples, classes), for instance
            ``functools.partial(torch.func.functional_call, network)``.
        personal_rate: η1, the learning rate of the personal model θ.
        global_rate: η2, the learning rate of the client's copy of the global model μ.
        dissimilarity_rate: η3, the learning rate of ψ.
        least_dissimilarity: ψ_min. Steps and noise can make ψ negative, which the thesis does not treat; here
            ψ is raised to ψ_min after each step, and when it is received.
        dissimilarity_scale: s. A client sends s·ψ, in one vector with μ. With a larger s the noise disturbs ψ
            less, but the change of ψ takes up more of the clipping norm.
        global_clip: C1, the largest norm of a step's gradient of μ.
        dissimilarity_clip: C2, the largest absolute value of a step's derivative in ψ. Neither clip has
            to do with privacy here.
    """

    predict: Callable[[Parameters, Tensor], Tensor]
    personal_rate: Positive
    global_rate: Positive
    dissimilarity_rate: Positive
    least_dissimilarity: Positive = 0.5
    dissimilarity_scale: Positive = 1.0
    global_clip: Annotated[float, _cut] = math.inf
    dissimilarity_clip: Annotated[float, _cut] = math.inf
    task_loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy

    def loss(self, models: ClientModels, inputs: Tensor, labels: Tensor) -> Tensor:
        """f(θ) + ½ log(2ψ) + KD(θ, μ)/(2ψ) on a batch (equation 4.16)."""
        scores = self.predict(models.personal_model, inputs)
        distance = distillation_loss(scores, self.predict(models.global_model, inputs))
        twice = 2 * models.dissimilarity
        return self.task_loss(scores, labels) + twice.log() / 2 + distance / twice

    def step(self, models: ClientModels, inputs: Tensor, labels: Tensor) -> ClientModels:
        """One local step: it changes θ, then μ given the new θ, then ψ given both."""
        global_model = self._outputs(models, inputs)
        models = self.personal_step(models, inputs, labels, global_scores=global_model[0])
        scores = self.predict(models.personal_model, inputs)
        models = self.global_step(models, inputs, scores=scores, global_model=global_model)
        return self.dissimilarity_step(models, inputs, scores=scores)

    def train(self, models: ClientModels, batches: Iterable[tuple[Tensor, Tensor]]) -> ClientModels:
        """One step on each batch (inputs, labels): the τ steps of a round."""
        for inputs, labels in batches:
            models = self.step(models, inputs, labels)
        return models

    def personal_step(
        self, models: ClientModels, inputs: Tensor, labels: Tensor, *, global_scores: Tensor | None = None
    ) -> ClientModels:
        """θ ← θ − η1·∇_θ(f(θ) + KD(θ, μ)/(2ψ)); ``global_scores``: the outputs of μ, if they are known."""
        known = self.predict(models.global_model, inputs) if global_scores is None else global_scores
        wanted = known.detach()

        def loss(personal_model: Parameters) -> Tensor:
            scores = self.predict(personal_model, inputs)
            distance = distillation_loss(scores, wanted)
            return self.task_loss(scores, labels) + distance / (2 * models.dissimilarity)

        gradient = torch.func.grad(loss)(models.personal_model)
        return models._replace(personal_model=_moved(models.personal_model, gradient, self.personal_rate))

    def global_step(
        self,
        models: ClientModels,
        inputs: Tensor,
        *,
        scores: Tensor | None = None,
        global_model: tuple[Tensor, _Pullback] | None = None,
    ) -> ClientModels:
        """μ ← μ − η2·h, h = ∇_μ KD(θ, μ)/(2ψ) cut to norm C1; ``scores``: the outputs of θ, if known."""
        own = self.predict(models.personal_model, inputs) if scores is None else scores
        global_scores, back = global_model or self._outputs(models, inputs)

        def loss(theirs: Tensor) -> Tensor:
            return distillation_loss(own, theirs) / (2 * models.dissimilarity)

        (gradient,) = back(torch.func.grad(loss)(global_scores))
        if self.global_clip < math.inf:
            length = sum((part.square().sum() for part in gradient.values()), torch.zeros(())).sqrt()
            cut = (self.global_clip / length).clamp(max=1.0)  # 1 for a gradient of zeros
            gradient = {name: part * cut for name, part in gradient.items()}
        return models._replace(global_model=_moved(models.global_model, gradient, self.global_rate))

    def dissimilarity_step(
        self, models: ClientModels, inputs: Tensor, *, scores: Tensor | None = None
    ) -> ClientModels:
        """ψ ← ψ − η3·k, k = 1/(2ψ) − KD(θ, μ)/(2ψ²) cut to [−C2, C2]; then onto [ψ_min, ∞)."""
        psi = models.dissimilarity
        own = self.predict(models.personal_model, inputs) if scores is None else scores
        distance = distillation_loss(own, self.predict(models.global_model, inputs))
        slope = 1 / (2 * psi) - distance / (2 * psi.square())
        slope = slope.clamp(-self.dissimilarity_clip, self.dissimilarity_clip)
        return models._replace(dissimilarity=self.projected(psi - self.dissimilarity_rate * slope))

    def _outputs(self, models: ClientModels, inputs: Tensor) -> tuple[Tensor, _Pullback]:
        scores, back, *_ = torch.func.vjp(lambda own: self.predict(own, inputs), models.global_model)
        return scores, back

    def projected(self, dissimilarity: Tensor) -> Tensor:
        """ψ, or ψ_min if ψ is smaller than that or not a number (NaN)."""
        return dissimilarity.nan_to_num(nan=self.least_dissimilarity).clamp(min=self.least_dissimilarity)

    def arrays(self, models: ClientModels) -> dict[str, Tensor]:
        """What server and client send each other: μ by parameter name, and s·ψ as :data:`DISSIMILARITY`."""
        if DISSIMILARITY in models.global_model:
            raise ValueError(f"a parameter of the model is called {DISSIMILARITY!r}: rename it")
        return {**models.global_model, DISSIMILARITY: models.dissimilarity * self.dissimilarity_scale}

    def received(self, arrays: Parameters, *, personal_model: Parameters | None = None) -> ClientModels:
        """A client's models at the start of a round, from the arrays that the server sent.

        ``personal_model`` is the θ that the client kept; None in its first round, when it is a copy of μ.
        """
        if DISSIMILARITY not in arrays:
            raise ValueError(f"the arrays have no {DISSIMILARITY!r}: they are not of AdaPeD")
        global_model = {name: value.detach() for name, value in arrays.items() if name != DISSIMILARITY}
        if not all(bool(value.isfinite().all()) for value in global_model.values()):
            raise ValueError("the global model that came is not finite: the personal model is left as it was")
        kept = global_model if personal_model is None else dict(personal_model)
        if {name: value.shape for name, value in kept.items()} != {
            name: value.shape for name, value in global_model.items()
        }:
            raise ValueError("the personal model that was kept has other parameters than the global model")
        return ClientModels(
            personal_model={name: kept[name].detach().clone() for name in global_model},
            global_model=global_model,
            dissimilarity=self.projected(arrays[DISSIMILARITY].detach() / self.dissimilarity_scale),
        )


def _moved(parameters: Parameters, gradient: Parameters, rate: float) -> dict[str, Tensor]:
    return {name: value - rate * gradient[name] for name, value in parameters.items()}
