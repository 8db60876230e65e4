"""The parts of Opacus that are not its public interface and that the adapter stands on."""

from __future__ import annotations

import inspect
from typing import Any

import opacus
import opacus_shuffle
import pytest
import torch
from opacus.accountants import IAccountant
from opacus.data_loader import CollateFnWithEmpty, wrap_collate_with_empty
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus_shuffle.engine import OpacusArguments
from torch import nn

SIGNATURES = {
    opacus.PrivacyEngine.__init__: ["self", "accountant", "secure_mode"],
    opacus.PrivacyEngine._prepare_model: [
        "self",
        "module",
        "batch_first",
        "max_grad_norm",
        "loss_reduction",
        "grad_sample_mode",
        "wrap_model",
    ],
    opacus.PrivacyEngine.load_checkpoint: [
        "self",
        "path",
        "module",
        "optimizer",
        "noise_scheduler",
        "grad_clip_scheduler",
        "module_load_dict_kwargs",
        "torch_load_kwargs",
    ],
    DPOptimizer.__init__: [
        "self",
        "optimizer",
        "noise_multiplier",
        "max_grad_norm",
        "expected_batch_size",
        "loss_reduction",
        "generator",
        "secure_mode",
        "kwargs",
    ],
    DPOptimizer.pre_step: ["self", "closure"],
    DPOptimizer._get_flat_grad_sample: ["self", "p"],
    DPOptimizer._check_skip_next_step: ["self", "pop_next"],
    DPOptimizer.attach_step_hook: ["self", "fn"],
    DistributedDPOptimizer.reduce_gradients: ["self"],
    IAccountant.get_optimizer_hook_fn: ["self", "sample_rate"],
    IAccountant.get_epsilon: ["self", "delta", "args", "kwargs"],
    IAccountant.step: ["self", "noise_multiplier", "sample_rate"],
    IAccountant.state_dict: ["self", "destination"],
    wrap_collate_with_empty: [
        "collate_fn",
        "batch_first",
        "rand_on_empty",
        "sample_empty_shapes",
        "dtypes",
    ],
    BatchSplittingSampler.__init__: ["self", "sampler", "max_batch_size", "optimizer"],
}


@pytest.mark.parametrize(
    ("function", "parameters"), SIGNATURES.items(), ids=lambda v: getattr(v, "__qualname__", "")
)
def test_signatures(function: Any, parameters: list[str]) -> None:
    assert list(inspect.signature(function).parameters) == parameters


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
