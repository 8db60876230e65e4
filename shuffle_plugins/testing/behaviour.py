"""Checks of how a mechanism behaves: seeds, order, pieces of a batch, devices."""

from __future__ import annotations

import torch

from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms import LocalRandomizer
from shuffle_plugins.randomness import SeededRandomness
from shuffle_plugins.testing.case import Broken, Case, Measured, NotApplicable, splits

_CLIENTS = 200
_LOUDEST = 2.0  # above this ε0 two batches may report the same by chance
_ROUNDING = 2e-5  # relative, of float32 sums in another order


def repeats_under_a_seed(case: Case) -> Measured:
    """One seed gives the same reports and sums again, whatever the state of torch's own generator."""
    mechanism = case.mechanism
    batch = case.inside(_CLIENTS)
    seen, sums = set(), set()
    for state in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state)
            seen.add(mechanism.randomize(batch, randomness=case.source(5)).to_bytes())
            sums.add(tuple(mechanism.randomize_sum(batch, randomness=case.source(6)).tolist()))
    if len(seen) > 1:
        raise Broken("two runs under one seed differ: take every random bit from the randomness given")
    if len(sums) > 1:
        raise Broken("randomize_sum differs in two runs under one seed")
    return {}


def differs_without_a_seed(case: Case) -> Measured:
    """Two seeds differ; and so do any two runs without a seed, also after torch's generator is reset."""
    mechanism = case.mechanism
    if mechanism.local_epsilon > _LOUDEST:
        raise NotApplicable("at so large an ε0 reports may agree by themselves")
    batch = case.inside(_CLIENTS)

    def sent(randomness: SeededRandomness | None) -> bytes:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return mechanism.randomize(batch, randomness=randomness).to_bytes()

    if sent(case.source(7)) == sent(case.source(8)):
        raise Broken("two seeds give the same reports: the randomness given is ignored")
    if sent(None) == sent(None):
        raise Broken("two runs without a seed give the same reports: nothing is random by default")
    return {}


def does_not_depend_on_order(case: Case) -> Measured:
    """The sum is the same in any order, and sums of pieces add up; the mean is the sum over n."""
    mechanism = case.mechanism
    if not mechanism.shufflable:
        raise NotApplicable("its reports can be read only in their order")
    reports = mechanism.randomize(case.inside(_CLIENTS), randomness=case.source())
    each = [mechanism.sum(reports.narrow(i, i + 1)).double() for i in range(0, _CLIENTS, 10)]
    scale = _CLIENTS * max(float(value.norm()) for value in each) + 1e-300
    total = mechanism.sum(reports).double()
    if total.shape != (mechanism.dim,):
        raise Broken(f"sum must return ({mechanism.dim},), got {tuple(total.shape)}")
    shuffled = mechanism.sum(reports.permute(case.source(9).permutation(_CLIENTS))).double()
    pieces = [mechanism.sum(reports.narrow(start, stop)).double() for start, stop in splits(_CLIENTS)]
    others = {
        "another order": shuffled,
        "pieces": torch.stack(pieces).sum(dim=0),
        "n times the mean": mechanism.aggregate(reports).double() * _CLIENTS,
    }
    worst = 0.0
    for kind, other in others.items():
        off = float((other - total).norm()) / scale
        if not off <= _ROUNDING:
            raise Broken(f"the sum is not that of {kind}", off_by_a_share_of=off)
        worst = max(worst, off)
    return {"off by a share of": worst}


def leaves_its_input_alone(case: Case) -> Measured:
    """The batch is not changed, and no gradient is followed through."""
    mechanism = case.mechanism
    batch = case.inside(_CLIENTS)
    before = batch.clone()
    mechanism.randomize(batch, randomness=case.source())
    mechanism.randomize_sum(batch, randomness=case.source())
    mechanism.variance(batch)
    if not torch.equal(batch, before):
        raise Broken("the batch is changed in place")
    if isinstance(mechanism, LocalRandomizer):
        batch.requires_grad_()
        released = [
            mechanism.sum(mechanism.randomize(batch, randomness=case.source())),
            mechanism.randomize_sum(batch, randomness=case.source()),
        ]
        if any(value.requires_grad for value in released):
            raise Broken("gradients flow through the reports")
    return {}


def agrees_between_devices(case: Case) -> Measured:
    """Under one seed a batch on a CUDA device gives the reports of the same batch on the CPU."""
    if not torch.cuda.is_available():
        raise NotApplicable("there is no CUDA device")
    mechanism = case.mechanism
    batch = case.inside(_CLIENTS)
    here = mechanism.randomize(batch, randomness=case.source())
    there = mechanism.randomize(batch.cuda(), randomness=case.source())
    if any(field.values.device.type != "cuda" for field in there.fields):
        raise Broken("reports of a batch on a device must stay there")
    off = _mismatch(here, there.to("cpu"))
    if off > 0.01:
        raise Broken("reports differ between devices under one seed", share=off)
    total = mechanism.sum(there)
    if total.device.type != "cuda":
        raise Broken("the sum of reports on a device must stay there")
    scale = float(mechanism.sum(here).norm()) + 1e-300
    return {
        "share of reports that differ": off,
        "sums apart": float((total.cpu() - mechanism.sum(here)).norm()) / scale,
    }


def _mismatch(one: Reports, two: Reports) -> float:
    """Share of reports that differ; floats by more than rounding."""
    same = torch.ones(len(one), dtype=torch.bool)
    for a, b in zip(one.fields, two.fields, strict=True):
        left, right = (field.values.reshape(len(one), -1) for field in (a, b))
        close = (
            torch.isclose(left, right, rtol=1e-4, atol=1e-5) if left.is_floating_point() else left == right
        )
        same &= close.all(dim=1)
    return 1 - float(same.double().mean())
