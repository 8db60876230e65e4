"""The Poisson binomial mechanism in an ℓ2 ball: what is sent, its law, and what it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from accounted import accounted

from shuffle_plugins.accounting import PrivacyTarget
from shuffle_plugins.compressors.quantization import plus_thresholds
from shuffle_plugins.core import Rows
from shuffle_plugins.protocols import BallSum, PoissonBinomialSum
from shuffle_plugins.protocols import counts as sums
from shuffle_plugins.protocols.sums import least_noise_multiplier
from shuffle_plugins.randomness import WHOLE, SeededRandomness

DELTA = 1e-6


def unit(clients: int, dim: int, *, seed: int = 0) -> torch.Tensor:
    rows = torch.randn(clients, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


def small(**changes: object) -> PoissonBinomialSum:
    fields: dict[str, object] = {"dim": 20, "cohort": 200, "bits": 3, "message_epsilon": 0.3}
    return PoissonBinomialSum(**(fields | changes))  # type: ignore[arg-type]


def values_of(protocol: PoissonBinomialSum, rows: torch.Tensor) -> torch.Tensor:
    """Coefficients in units of their radius, as the bits' chances are taken from them."""
    found, scale = sums._representation(protocol.spread, Rows.of(rows), radius=protocol.radius)
    return found.mul(scale).clamp_(-1, 1)


def spent(one: object, *, num_steps: int = 1) -> float:
    return accounted(one, num_steps=num_steps).epsilon(DELTA).upper


def test_coefficients_stay_in_their_box_and_ball() -> None:
    """Whatever a client holds: the bound on what its values move is what the accountant was told."""
    protocol = small(dim=64, cohort=50, message_epsilon=0.1)
    frame = protocol.spread
    columns = frame.reconstruct(torch.eye(frame.size, dtype=torch.float64))  # the hardest vectors
    rows = torch.cat(
        [columns, unit(50, 64) * 3, torch.zeros(1, 64, dtype=torch.float64), torch.eye(64).double()]
    )
    values = values_of(protocol, rows)
    assert float(values.abs().max()) <= 1
    assert float(values.norm(dim=1).max()) <= protocol.round().distance / 2
    assert not values[len(columns) + 50].any()
    # All but the hardest are represented as they are.
    kept = frame.reconstruct(values[-64:] * protocol.coefficient_radius)
    torch.testing.assert_close(kept, rows[-64:], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_calibrated_for_a_target_it_is_near_the_gaussian_and_far_below_the_coordinates_bound() -> None:
    target = PrivacyTarget(epsilon=1.0, delta=DELTA, num_steps=1)
    gaussian = 100 * least_noise_multiplier(target, sampling_rate=1.0) ** 2
    protocol = PoissonBinomialSum.calibrated(dim=100, cohort=1000, epsilon=1.0, delta=DELTA)
    assert 0.99 < spent(protocol.round()) <= 1.0
    assert protocol.worst_variance < 1.25 * gaussian
    ball = BallSum.calibrated(dim=100, cohort=1000, epsilon=1.0, delta=DELTA)
    assert ball.worst_variance > 3 * protocol.worst_variance


@pytest.mark.slow
def test_calibrated_for_a_secret_share_of_all_clients() -> None:
    options = {"dim": 30, "cohort": 500, "epsilon": 2.0, "delta": DELTA, "num_steps": 2, "bits": 7}
    protocol = PoissonBinomialSum.calibrated(participation=0.1, **options)
    assert 1.95 < spent(protocol.round(participation=0.1), num_steps=2) <= 2.0
    assert protocol.worst_variance < 0.35 * PoissonBinomialSum.calibrated(**options).worst_variance


@pytest.mark.parametrize(("bits", "message_epsilon"), [(1, 1.0), (2, 0.4)])
def test_the_lower_end_is_attained_by_real_vectors(bits: int, message_epsilon: float) -> None:
    """Of three clients: the chances of their bits as the protocol draws them, every outcome enumerated."""
    protocol = PoissonBinomialSum(dim=2, cohort=3, bits=bits, message_epsilon=message_epsilon, radius=2.0)
    angles = torch.arange(16) * (math.pi / 8)
    x = 2.0 * torch.stack([angles.cos(), angles.sin()], dim=1).double()

    def chances(rows: torch.Tensor) -> list[list[float]]:
        values = values_of(protocol, rows)
        return (plus_thresholds(values, thresholds=protocol.thresholds).double() / WHOLE).tolist()

    def view(mine: list[float], others: list[float]) -> np.ndarray:
        joint = np.ones(())
        for own, rest in zip(mine, others, strict=True):
            law = np.ones(1)
            for chance in [own] * bits + [rest] * (2 * bits):
                law = np.convolve(law, [1 - chance, chance])
            joint = np.multiply.outer(joint, law)
        return joint

    plus, minus = chances(x), chances(-x)
    accountant = accounted(protocol.round())
    for epsilon in (0.0, 0.2, 0.5):
        found = accountant.delta(epsilon)
        exact = max(
            float(np.maximum(view(one, other) - math.exp(epsilon) * view(other, other), 0).sum())
            for one, other in zip(plus, minus, strict=True)
        )
        assert 0.7 * exact < found.lower <= exact <= found.upper


@pytest.mark.parametrize("dim", [1, 3, 100, 1000])
def test_the_known_vector_is_nearly_as_long_as_any_can_be(dim: int) -> None:
    known = PoissonBinomialSum(dim=dim, cohort=500, bits=3, message_epsilon=0.3).round()
    assert known.attained is not None
    length = 2 * math.sqrt(sum(count * value**2 for value, count in known.attained))
    assert 0.9 * known.distance < length <= known.distance
    assert len(known.attained) <= 32


@pytest.mark.parametrize(("dim", "bits", "clients"), [(5, 3, 7), (40_000, 2, 9), (200, 70, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_and_torch_draw_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, dim: int, bits: int, clients: int, dtype: torch.dtype
) -> None:
    """In one piece, with rows that are cut, and with more bits than are drawn at once."""
    if sums.compiled_kernels() is None:
        pytest.skip("nothing is compiled here")
    protocol = PoissonBinomialSum(dim=dim, cohort=100, bits=bits, message_epsilon=0.7)
    x = torch.randn(clients, dim, dtype=dtype, generator=torch.Generator().manual_seed(0))
    compiled = protocol.share(x, randomness=SeededRandomness(1))
    each = protocol.randomize(x, randomness=SeededRandomness(1))
    monkeypatch.setattr(sums, "compiled_kernels", lambda: None)
    assert torch.equal(compiled, protocol.share(x, randomness=SeededRandomness(1)))
    assert torch.equal(compiled, protocol.total(each))
