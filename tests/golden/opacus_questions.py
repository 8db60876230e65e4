"""Tiny training runs through the Opacus host."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from answers import Questions, tensor
from mechanism_questions import rows
from opacus_shuffle import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.randomness import SeededRandomness

DELTA = 1e-5
PLD, RDP = "subsampled_shuffle_pld", "subsampled_shuffle_rdp"
LOCAL = {"randomizer": "linf-coordinate", "local_epsilon": 2.0}
SUM = {"randomizer": "vector-sum", "noise_multiplier": 3.0}
BALL = {"randomizer": "multi-message", "noise_multiplier": 3.0}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "coordinate": (RDP, LOCAL),
    "coordinate-poisson": (RDP, LOCAL | {"sampling": "poisson"}),
    "coordinate-pld": (PLD, LOCAL),
    "privunit": (RDP, {"randomizer": "privunit", "local_epsilon": 4.0}),
    "privunit-adaptive": (RDP, {"randomizer": "privunit", "local_epsilon": 4.0, "clipping": "adaptive"}),
    "privunit-layers": (
        RDP,
        {
            "randomizer": "privunit",
            "local_epsilon": 4.0,
            "clipping": "per_layer",
            "max_grad_norm": [0.5, 0.2, 0.5, 0.2],
        },
    ),
    "vector-sum": (RDP, SUM),
    "vector-sum-adaptive": (RDP, SUM | {"clipping": "adaptive"}),
    "ball-sum": (RDP, BALL),
    "budget": (RDP, LOCAL | {"target_epsilon": 9.0, "target_delta": DELTA}),
}


def started(name: str) -> tuple[PrivacyEngine, nn.Module, Any, Any]:
    """An engine and its private objects on fixed data and weights: n = 40, k = 8."""
    accountant, options = RUNS[name]
    x = rows(40, 6, scale=8.0, dtype=torch.float32)
    data = TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 0.5).long())
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            flat = rows(1, parameter.numel(), scale=parameter.numel(), dtype=torch.float32)
            parameter.copy_(flat.reshape(parameter.shape) / 4)
    engine = PrivacyEngine(accountant=accountant)
    arguments = {"max_grad_norm": 0.5, **options}
    private = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5),
        data_loader=DataLoader(data, batch_size=8),
        randomness=SeededRandomness(1),
        **arguments,
    )
    return engine, *private


def train(module: nn.Module, optimizer: Any, loader: Any, *, epochs: int) -> list[int]:
    sizes = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
            sizes.append(len(x))
    return sizes


def state(engine: PrivacyEngine, module: nn.Module) -> dict[str, Any]:
    interval = engine.get_epsilon_interval(DELTA)
    return {
        "parameters": tensor(torch.cat([p.detach().flatten() for p in module.parameters()])),
        "steps": len(engine.accountant),
        "lower": interval.lower,
        "upper": interval.upper,
        "epsilon": engine.get_epsilon(DELTA),
    }


def trained(name: str) -> dict[str, Any]:
    engine, module, optimizer, loader = started(name)
    sizes = train(module, optimizer, loader, epochs=2)
    return state(engine, module) | {"batches": sizes, "radius": float(optimizer.max_grad_norm)}


QUESTIONS = Questions()
for _name in RUNS:
    QUESTIONS.add(_name, partial(trained, _name))
