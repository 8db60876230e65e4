"""Adaptive clipping: what a report of gradient and bit costs, and where the radius goes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus_shuffle import AdaptiveClipping, PrivacyEngine
from opacus_shuffle.sums import RoundSum, SumSetting
from thinning import first_fast
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shuffle_plugins.accounting import Sampling, ShuffleRound, calibrate_local_epsilon
from shuffle_plugins.core import Rows
from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.randomness import SeededRandomness

N, K = 400, 100


class Linear(nn.Module):
    """The gradient of a sample's loss is the sample."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def vectors(norms: Tensor) -> TensorDataset:
    directions = torch.randn(len(norms), 3, generator=torch.Generator().manual_seed(11))
    return TensorDataset(directions / directions.norm(dim=1, keepdim=True) * norms.unsqueeze(1))


def spread(count: int) -> Tensor:
    """Norms of a log-normal law with median 1."""
    return torch.randn(count, generator=torch.Generator().manual_seed(12)).exp()


def private(
    norms: Tensor | None = None, *, cohort: int = K, engine: PrivacyEngine | None = None, **options: Any
) -> Any:
    engine = PrivacyEngine(accountant="subsampled_shuffle_rdp") if engine is None else engine
    module = Linear(3)
    noise = (
        {}
        if {"local_epsilon", "noise_multiplier", "target_epsilon"} & set(options)
        else {"local_epsilon": 4.0}
    )
    arguments = {
        "max_grad_norm": 1.0,
        "clipping": "adaptive",
        "randomness": SeededRandomness(1),
        **noise,
        **options,
    }
    make = engine.make_private_with_epsilon if "target_epsilon" in options else engine.make_private
    return engine, *make(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        data_loader=DataLoader(vectors(spread(N) if norms is None else norms), batch_size=cohort),
        **arguments,
    )


def train(module: nn.Module, optimizer: Any, loader: Any, *, steps: int) -> list[float]:
    """The radius after every step."""
    radii = []
    while len(radii) < steps:
        for (x,) in loader:
            optimizer.zero_grad()
            module(x).mean().backward()
            optimizer.step()
            radii.append(optimizer.max_grad_norm)
    return radii


def pair(local_epsilon: float, **adaptive: Any) -> RoundSum:
    chosen = SumSetting.of("binary-rr", AdaptiveClipping(**adaptive), 2.0, sizes=[1], cohort=100)
    chosen = chosen.with_privacy(local_epsilon=local_epsilon, noise_multiplier=None)
    return chosen.build(dim=1, population=1000, cohort=100, sampling=Sampling.WITHOUT_REPLACEMENT)


# ---- what a report costs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("local_epsilon", [0.3, 1.0, 4.0, 11.7])
def test_a_pair_of_reports_costs_local_epsilon_and_no_more(local_epsilon: float) -> None:
    built = pair(local_epsilon)
    signs, bits = built.mechanism.outcomes(), built.bit.outcomes()
    assert signs is not None
    assert bits is not None
    laws = []
    for value in (-3.0, -2.0, -1.0, 0.0, 1.5, 2.0, 2.1):
        within = torch.tensor([1.0 if abs(value) <= 2 else -1.0])
        of_sign = built.mechanism.log_likelihood(signs, torch.tensor([max(min(value, 2.0), -2.0)]))
        of_bit = built.bit.log_likelihood(bits, within)
        laws.append((of_sign.unsqueeze(1) + of_bit.unsqueeze(0)).flatten())
    worst = max(float((p - q).max()) for p, q in itertools.permutations(laws, 2))
    assert worst <= local_epsilon + 1e-12
    assert worst == pytest.approx(local_epsilon, rel=1e-6)
    parts = Fraction(built.mechanism.local_epsilon) + Fraction(built.bit.local_epsilon)
    assert parts <= Fraction(local_epsilon)
    assert built.round == ShuffleRound(
        local_epsilon=local_epsilon, population=1000, cohort=100, channel_fixed=True
    )
    assert built.round.mechanism == "generic"


@first_fast("value", [0.5, -2.5])
def test_a_pair_is_drawn_by_the_law_that_is_accounted_for(value: float) -> None:
    built, coins, draws = pair(2.0, unclipped_num_std=10.0), SeededRandomness(3), 1500
    seen = Counter(
        tuple((built.share(Rows(torch.tensor([[value]])), randomness=coins) > 0).tolist())
        for _ in range(draws)
    )
    of_sign = built.mechanism.log_likelihood(
        built.mechanism.outcomes(), torch.tensor([max(value, -2.0)])
    ).exp()
    of_bit = built.bit.log_likelihood(
        built.bit.outcomes(), torch.tensor([1.0 if abs(value) <= 2 else -1.0])
    ).exp()
    for sign, bit in itertools.product((0, 1), (0, 1)):
        expected = float(of_sign[sign] * of_bit[bit])
        deviation = math.sqrt(expected * (1 - expected) / draws)
        assert abs(seen[(bool(sign), bool(bit))] / draws - expected) < 5 * deviation


def test_the_bit_has_the_noise_that_was_asked_for() -> None:
    built = pair(4.0, unclipped_num_std=25.0)
    signs = torch.ones(1, 1)
    assert math.sqrt(100 * float(built.bit.variance(signs)[0])) / 2 == pytest.approx(25.0, rel=1e-6)
    assert pair(4.0).bit.local_epsilon == pytest.approx(0.4)  # a tenth of ε0: k/10 would take 0.91


# ---- sums --------------------------------------------------------------------------------------------------


def longer(noise_multiplier: float, radius: float, **adaptive: Any) -> RoundSum:
    clipping = AdaptiveClipping(**adaptive)
    chosen = SumSetting.of(VectorSum.with_noise, clipping, radius, sizes=[3], cohort=100)
    chosen = chosen.with_privacy(local_epsilon=None, noise_multiplier=noise_multiplier)
    return chosen.build(dim=3, population=1000, cohort=100, sampling=Sampling.WITHOUT_REPLACEMENT)


def test_rows_of_a_sum_stay_in_the_ball_that_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    built, taken = longer(3.0, 2.0, unclipped_num_std=4.0), []
    original = VectorSum.share

    def spy(self: VectorSum, rows: Rows, **options: Any) -> Tensor:
        taken.append(rows)
        return original(self, rows, **options)

    monkeypatch.setattr(VectorSum, "share", spy)
    x = vectors(torch.tensor([0.0, 1.0, 1.999, 2.001, 50.0])).tensors[0].double()
    built.share(Rows(x), randomness=SeededRandomness(0))
    (rows,) = taken
    assert rows.l2_norm().max() <= built.mechanism.radius * (1 + 1e-12)
    assert torch.equal(rows.dense()[:, 3].sign(), torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]).double())
    assert torch.allclose(rows.dense()[:3, :3], x[:3])
    assert rows.dense()[3:, :3].norm(dim=1).tolist() == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize("radius", [1.0, 0.137, 1e-7, 31.4159])
def test_a_longer_sum_costs_what_the_same_noise_costs_at_any_radius(radius: float) -> None:
    plain = VectorSum.with_noise(dim=4, cohort=100, noise_multiplier=3.0)
    expected = plain.round(population=1000, sampling=Sampling.WITHOUT_REPLACEMENT)
    assert longer(3.0, radius).round == expected


def test_noise_of_a_longer_sum_is_that_of_theorem_1_of_andrew_et_al() -> None:
    built = longer(3.0, 2.0, unclipped_num_std=4.0)
    per_coordinate = math.sqrt(built.mechanism.worst_variance / 4)
    assert per_coordinate / 2 / built.height == pytest.approx(4.0, rel=0.03)  # in gradients
    assert per_coordinate / 2.0 == pytest.approx((3.0**-2 - 8.0**-2) ** -0.5, rel=0.03)


# ---- where the radius goes ---------------------------------------------------------------------------------


@first_fast(
    ("options", "quantile", "start"),
    [
        ({"randomizer": "privunit", "local_epsilon": 4.0}, 0.5, 0.1),
        ({"randomizer": "linf-coordinate", "local_epsilon": 4.0}, 0.5, 10.0),
        ({"randomizer": "vector-sum", "noise_multiplier": 4.0}, 0.5, 0.1),
    ],
)
def test_the_radius_comes_to_leave_the_target_share_unclipped(
    options: dict[str, Any], quantile: float, start: float
) -> None:
    norms, cohort = spread(4000), 2000
    _, module, optimizer, loader = private(
        norms,
        cohort=cohort,
        max_grad_norm=start,
        target_unclipped_quantile=quantile,
        clipbound_learning_rate=0.5,
        **options,
    )
    radii = train(module, optimizer, loader, steps=60)
    x = vectors(norms).tensors[0]
    lengths = x.abs().amax(dim=1) if options["randomizer"] == "linf-coordinate" else x.norm(dim=1)
    last = math.exp(sum(map(math.log, radii[-30:])) / 30)
    # The estimated share has deviation 0.1; log C then has one of 0.1·√(0.5/0.8) = 0.08, its mean over 30
    # steps, which are correlated over 5, one of 0.03, and the share at C one of 0.015.
    assert float((lengths <= last).double().mean()) == pytest.approx(quantile, abs=0.06)
    assert float((lengths <= start).double().mean()) != pytest.approx(quantile, abs=0.2)


@pytest.mark.parametrize(("norm", "bound"), [(0.0, 0.5), (1e9, 1.5)])
@pytest.mark.parametrize(
    "options",
    [{"randomizer": "privunit"}, {"randomizer": "vector-sum", "noise_multiplier": 4.0}],
)
def test_the_radius_never_leaves_its_bounds(norm: float, bound: float, options: dict[str, Any]) -> None:
    norms = torch.full((N,), norm)
    _, module, optimizer, loader = private(
        norms, min_clipbound=0.5, max_clipbound=1.5, clipbound_learning_rate=1.0, **options
    )
    radii = train(module, optimizer, loader, steps=12)
    assert all(0.5 <= radius <= 1.5 for radius in radii)
    assert bound in radii


@pytest.mark.parametrize("physical", [K, 30])
def test_one_step_moves_the_radius_by_the_released_share(
    monkeypatch: pytest.MonkeyPatch, physical: int
) -> None:
    """Also of a cohort in four parts: one bit for each record, and one move."""
    released = []
    original = RoundSum.estimate

    def spy(self: RoundSum, total: Tensor, *, reports: int) -> Tensor:
        released.append(float(original(self, total, reports=reports)[-1]))
        return original(self, total, reports=reports)

    monkeypatch.setattr(RoundSum, "estimate", spy)
    _, module, optimizer, loader = private(clipbound_learning_rate=0.3, target_unclipped_quantile=0.7)
    parts, expected = math.ceil(K / physical), 1.0
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer
    ) as split:
        radii = train(module, optimizer, split, steps=4 * parts)
    assert len(set(radii)) == len(released) + (parts > 1) == 4 + (parts > 1)
    for difference, radius in zip(released, radii[parts - 1 :: parts], strict=True):
        bits = difference / optimizer._sum.bit.report_value
        assert round(bits) % 2 == K % 2
        assert bits == pytest.approx(round(bits), abs=1e-3)
        expected *= math.exp(-0.3 * ((1 + difference / K) / 2 - 0.7))
        assert radius == pytest.approx(expected, rel=1e-5)


def test_an_empty_poisson_round_leaves_the_radius_alone() -> None:
    _, module, optimizer, loader = private(
        spread(20), cohort=1, sampling="poisson", target_unclipped_quantile=0.6
    )
    sizes, radii = [], [1.0]
    for (x,) in loader:
        optimizer.zero_grad()
        module(x).sum().backward()
        optimizer.step()
        sizes.append(len(x))
        radii.append(optimizer.max_grad_norm)
    assert 0 in sizes
    assert max(sizes) > 0
    assert [a == b for a, b in itertools.pairwise(radii)] == [size == 0 for size in sizes]


# ---- the engine --------------------------------------------------------------------------------------------


def test_calibration_counts_the_pair_as_any_randomizer_at_its_epsilon() -> None:
    engine, module, optimizer, loader = private(
        randomizer="privunit", target_epsilon=1.0, target_delta=1e-5, num_steps=8
    )
    assert optimizer.local_epsilon == calibrate_local_epsilon(
        target_epsilon=1.0, delta=1e-5, population=N, cohort=K, num_steps=8, method="rdp", channel_fixed=True
    )
    train(module, optimizer, loader, steps=8)
    assert 0.99 < engine.get_epsilon(1e-5) <= 1.0


@pytest.mark.parametrize(
    "options", [{"randomizer": "privunit"}, {"randomizer": "vector-sum", "noise_multiplier": 4.0}]
)
def test_a_resumed_run_goes_on_with_the_radius_it_had(tmp_path: Path, options: dict[str, Any]) -> None:
    engine, module, optimizer, loader = private(**options)
    train(module, optimizer, loader, steps=8)
    engine.save_checkpoint(path=tmp_path / "run.pt", module=module, optimizer=optimizer)
    later, module, resumed, _ = private(**options)
    later.load_checkpoint(path=tmp_path / "run.pt", module=module, optimizer=resumed)
    assert resumed.max_grad_norm == optimizer.max_grad_norm != 1.0
    flat, module, fixed, _ = private(**{**options, "clipping": "flat"})
    with pytest.warns(UserWarning, match="does not go on as the checkpoint's did"):
        flat.load_checkpoint(path=tmp_path / "run.pt", module=module, optimizer=fixed)
    assert fixed.max_grad_norm == 1.0
