"""The parts of Opacus that are not its public interface and that the adapter stands on."""

from __future__ import annotations

import inspect

import opacus
import opacus_shuffle
import pytest
import torch
from opacus.data_loader import CollateFnWithEmpty, wrap_collate_with_empty
from opacus.optimizers import DPOptimizer
from opacus_shuffle.engine import OpacusArguments
from torch import nn


def test_the_engine_has_no_state_of_its_own_but_these() -> None:
    with pytest.warns(UserWarning, match="Secure RNG"):
        engine = opacus.PrivacyEngine()
    assert set(vars(engine)) == {"accountant", "secure_mode", "secure_rng", "dataset"}


def test_the_optimizer_has_no_state_of_its_own_but_this() -> None:
    module = nn.Linear(2, 1)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=2,
    )
    assert set(vars(optimizer)) == {
        "original_optimizer",
        "noise_multiplier",
        "max_grad_norm",
        "loss_reduction",
        "expected_batch_size",
        "step_hook",
        "generator",
        "secure_mode",
        "_step_skip_queue",
        "_is_last_step_skipped",
    }


def test_the_collate_wrapper_learns_from_its_first_batch() -> None:
    collate = wrap_collate_with_empty(collate_fn=torch.stack)
    assert isinstance(collate, CollateFnWithEmpty)
    collate([torch.zeros(3)])
    assert collate([]).shape == (0, 3)


def test_our_keywords_are_opacus_own_where_they_mean_the_same() -> None:
    theirs = inspect.signature(opacus.PrivacyEngine.make_private).parameters
    ours = inspect.signature(opacus_shuffle.PrivacyEngine.make_private).parameters
    assert set(theirs) - set(ours) - set(OpacusArguments.__annotations__) == {"kwargs"}
    named = {name: p for name, p in ours.items() if name not in ("self", "opacus_own")}
    assert len(named) < 18
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in named.values())
