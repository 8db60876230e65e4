"""What one report of each built-in mechanism of vectors costs, from its parameters alone. Torch-free.

Mechanisms are taken with their defaults, on the unit ball; variances grow with the square of the radius. Each
form is the mechanism's own ``worst_variance`` and ``bits_per_report``, to which a test holds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.compressors import public_random_bytes
from shuffle_plugins.mechanisms.noise.discrete_gaussian_law import gaussian_grid
from shuffle_plugins.mechanisms.noise.discrete_laplace_law import COARSE_BITS, FINE_BITS, laplace_grid
from shuffle_plugins.mechanisms.noise.gaussian_law import noise_ratio
from shuffle_plugins.mechanisms.privunit import (
    blanket_mixed_law,
    half_spaces_law,
    privunit_g_law,
    privunit_law,
)
from shuffle_plugins.mechanisms.privunit.projunit_law import (
    DEFAULT_SLACK,
    along_square,
    check_projected_dim,
    inflation,
)
from shuffle_plugins.mechanisms.signs.bit_planes_law import (
    SampledPlan,
    best_plan,
    budgets,
    plane_weights,
    worst_excess,
)
from shuffle_plugins.mechanisms.signs.coefficients_law import sound_level
from shuffle_plugins.mechanisms.signs.linf_block_law import best_block, block_count, report_bits
from shuffle_plugins.mechanisms.signs.randomized_response_law import Constants, SignThresholds, split_budget
from shuffle_plugins.mechanisms.signs.sign_patterns_law import cap_parameters
from shuffle_plugins.mechanisms.signs.sqkr_law import best_signs

NormName = Literal["l1", "l2", "linf"]

# The mechanisms' defaults, which their modules cannot give here because they import torch:
_MIXED = 1024  # largest block that ProjUnit's Hadamard transform mixes
_KASHIN_MARGIN = 1e-3  # by which a Kashin representation's level stays above the vector's own
_CLIENTS, _FAILURE = 10_000, 1e-6  # l2-bit-planes: among so many clients, how probably one is clipped
_LOCAL_DELTA = 1e-6  # δ0 of the Gaussian mechanisms
_GAUSSIAN_BITS, _GAUSSIAN_TAIL = 20, 10.0  # bits of a coordinate; standard deviations that they reach

_CHUNK_ENTRIES = 1 << 20  # matrix entries whose eigenvalues are taken at once

Cost = Callable[[float, int], tuple[float, int]]


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """What one report of a mechanism costs, in closed form.

    Attributes:
        norm: of the ball that it takes vectors from.
        cost: from ε0 and the dimension, the largest variance in the unit ball and the bits of a report.
        local_delta: δ0 of a report.
    """

    norm: NormName
    cost: Cost
    local_delta: float = 0.0


def _padded(dim: int) -> int:
    return 1 << (dim - 1).bit_length()


def _binary_rr(local_epsilon: float, dim: int) -> tuple[float, int]:
    if dim != 1:
        raise ValueError(f"binary-rr takes one number per client (dim=1), got dim={dim}")
    return SignThresholds.of(local_epsilon).gain ** -2, 1


def _linf_coordinate(local_epsilon: float, dim: int) -> tuple[float, int]:
    return (dim / SignThresholds.of(local_epsilon).gain) ** 2, (dim - 1).bit_length() + 1


def _l1_hadamard(local_epsilon: float, dim: int) -> tuple[float, int]:
    return dim * SignThresholds.of(local_epsilon).gain ** -2, _padded(dim).bit_length()


def _linf_block(local_epsilon: float, dim: int) -> tuple[float, int]:
    signs = best_block(local_epsilon=local_epsilon, dim=dim)
    gain = cap_parameters(local_epsilon=local_epsilon, signs=signs).gain
    return dim * block_count(dim=dim, signs=signs) / gain**2, report_bits(dim=dim, signs=signs)


def _privunit(local_epsilon: float, dim: int) -> tuple[float, int]:
    return privunit_law.optimal_privunit(local_epsilon=local_epsilon, dim=dim).mean ** -2, 32 * dim


def _half_spaces(choose: Callable[..., half_spaces_law.HalfSpaceParameters]) -> Cost:
    def cost(local_epsilon: float, dim: int) -> tuple[float, int]:
        found = choose(local_epsilon=local_epsilon, dim=dim)
        return found.mean_square / found.mean**2, 32 * dim

    return cost


def _projunit(local_epsilon: float, dim: int) -> tuple[float, int]:
    size = check_projected_dim(None, dim=dim)
    grown = inflation(projected_dim=size, dim=dim, slack=DEFAULT_SLACK)
    mean = privunit_law.optimal_privunit(local_epsilon=local_epsilon, dim=size).mean
    block = 1 if size == dim else min(_padded(dim), _MIXED)
    folds = -(-(-(-dim // block) * block) // size)
    excess = along_square(local_epsilon=local_epsilon, dim=size)
    leaning = (size * excess - 1) / (size - 1) if size > 1 else 0.0
    spread = (1 - leaning) * dim / size + leaning * folds
    return (grown / mean) ** 2 * spread, 32 * size + (_padded(folds) - 1).bit_length()


def _laplace(bits: int) -> Cost:
    def cost(local_epsilon: float, dim: int) -> tuple[float, int]:
        grid = laplace_grid(local_epsilon=local_epsilon, dim=dim, bits=bits)
        rounding = min(dim / 4, grid.radius_in_steps)
        return (dim * grid.noise_variance + rounding) / grid.radius_in_steps**2, bits * dim

    return cost


def _gaussian(local_epsilon: float, dim: int) -> tuple[float, int]:
    sigma = 2 * noise_ratio(local_epsilon=local_epsilon, local_delta=_LOCAL_DELTA)
    step = (1 + _GAUSSIAN_TAIL * sigma) / ((1 << (_GAUSSIAN_BITS - 1)) - 1)
    return dim * (sigma**2 + step**2 / 12), _GAUSSIAN_BITS * dim


def _discrete_gaussian(local_epsilon: float, dim: int) -> tuple[float, int]:
    grid = gaussian_grid(local_epsilon=local_epsilon, local_delta=_LOCAL_DELTA, dim=dim, bits=None)
    rounding = min(dim / 4, math.sqrt(dim) * grid.radius_in_steps)
    return (dim * grid.sigma**2 + rounding) / grid.radius_in_steps**2, grid.bits * dim


def _planes(local_epsilon: float, dim: int, plan: SampledPlan) -> tuple[float, float, int]:
    """Largest variance on [-1, 1]^dim, largest second moment, bits."""
    levels, samples = plan.levels, plan.samples
    shares = budgets(levels, per_place=local_epsilon / samples, constants=Constants.EXACT).tolist()
    thresholds = split_budget(local_epsilon, shares=shares, repeats=samples, constants=Constants.EXACT)
    short, longer = divmod(dim, samples)
    lengths = np.array([short + 1] * longer + [short] * (samples - longer))
    variance = moment = 0.0
    for level, (weight, sign) in enumerate(zip(plane_weights(levels), thresholds, strict=True)):
        noise = 4 * sign.low * sign.high / (sign.high - sign.low) ** 2
        excess = worst_excess(lengths, last=level == levels - 1, constants=Constants.EXACT)
        variance += weight**2 * float(np.sum(lengths * (lengths * noise + excess)))
        moment += weight**2 * (noise + 1.0) * float(np.sum(lengths**2))
    longest = short + (longer > 0)
    return variance, moment, levels * samples * ((longest - 1).bit_length() + 1)


def _linf_bit_planes(local_epsilon: float, dim: int) -> tuple[float, int]:
    variance, _, bits = _planes(local_epsilon, dim, best_plan(local_epsilon=local_epsilon, dim=dim))
    return variance, bits


def _sampled_bits(local_epsilon: float, dim: int) -> tuple[float, int]:
    variance, _, bits = _planes(local_epsilon, dim, best_plan(local_epsilon=local_epsilon, dim=dim, levels=1))
    return variance, bits


def _l2_bit_planes(local_epsilon: float, dim: int) -> tuple[float, int]:
    size = _padded(dim)
    variance, moment, bits = _planes(local_epsilon, size, best_plan(local_epsilon=local_epsilon, dim=size))
    radius = sound_level(size=size, clients=_CLIENTS, failure=_FAILURE) / math.sqrt(size)
    spread = variance if size == dim else moment * dim / size
    return radius**2 * spread + max(0.0, 1 - radius) ** 2, bits


def _kashin_level(dim: int) -> float:
    """Level of a Kashin representation in the frame of twice the padded dimension."""
    hardest = math.sqrt(math.pi / 2 / (1 - dim / (2 * _padded(dim))))
    return min(1.25 * hardest, math.sqrt(dim) / (1 - _KASHIN_MARGIN))


def _sqkr(local_epsilon: float, dim: int) -> tuple[float, int]:
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    size = 2 * _padded(dim)
    short, longer = divmod(size, signs)
    squares = longer * (short + 1) ** 2 + (signs - longer) * short**2
    pairs = max(0.0, cap.pair_moment / cap.gain**2 - 1)
    places = (short + (longer > 0) - 1).bit_length()
    second_moment = _kashin_level(dim) ** 2 * dim / size**2 * squares / cap.gain**2
    return second_moment + pairs, signs * (places + 1)


def _l2_block(local_epsilon: float, dim: int) -> tuple[float, int]:
    signs = best_signs(local_epsilon=local_epsilon, dim=dim)
    cap = cap_parameters(local_epsilon=local_epsilon, signs=signs)
    size = 2 * _padded(dim)
    coordinate = block_count(dim=size, signs=signs) / cap.gain**2
    pairs = coordinate * cap.pair_moment * size * max(0.0, _largest_eigenvalue(dim, signs))
    second_moment = coordinate * dim
    return _kashin_level(dim) ** 2 / size * (second_moment + pairs), report_bits(dim=size, signs=signs)


@lru_cache(maxsize=256)
def _largest_eigenvalue(dim: int, signs: int) -> float:
    """Largest eigenvalue of any block's inner products of frame columns, with zeros on the diagonal."""
    overlaps = _frame_overlaps(dim)
    size = len(overlaps)
    blocks = block_count(dim=size, signs=signs)
    largest = -math.inf
    step = max(1, _CHUNK_ENTRIES // signs**2)
    for start in range(0, blocks, step):
        first = np.arange(start, min(start + step, blocks)) * signs
        columns = first[:, None] + np.arange(signs)
        beyond = columns >= size
        both = columns[:, :, None] ^ columns[:, None, :]
        alone = beyond[:, :, None] | beyond[:, None, :] | (both == 0)
        part = np.where(alone, 0.0, overlaps[np.where(alone, 0, both)])
        largest = max(largest, float(np.linalg.eigvalsh(part).max()))
    return largest


@lru_cache(maxsize=4)
def _frame_overlaps(dim: int) -> NDArray[np.float64]:
    """Inner products of columns i and j of the Kashin frame of seed 0, by i XOR j."""
    size = 2 * _padded(dim)
    drawn = np.frombuffer(public_random_bytes("kashin rows", seed=0, count=8 * size), dtype="<u8")
    found = np.zeros(size)
    found[np.argsort(drawn, kind="stable")[:dim]] = 1.0
    width = 1
    while width < size:  # the fast Walsh-Hadamard transform
        halves = found.reshape(-1, 2, width)
        found = np.stack([halves[:, 0] + halves[:, 1], halves[:, 0] - halves[:, 1]], axis=1).ravel()
        width *= 2
    return found / size


CLOSED_FORMS = {
    "binary-rr": ClosedForm("linf", _binary_rr),
    "blanket-mixed-gaussian": ClosedForm("l2", _half_spaces(blanket_mixed_law.mixed_half_spaces)),
    "discrete-gaussian": ClosedForm("l2", _discrete_gaussian, _LOCAL_DELTA),
    "discrete-laplace": ClosedForm("l1", _laplace(COARSE_BITS)),
    "gaussian": ClosedForm("l2", _gaussian, _LOCAL_DELTA),
    "l1-hadamard": ClosedForm("l1", _l1_hadamard),
    "l2-bit-planes": ClosedForm("l2", _l2_bit_planes),
    "l2-block": ClosedForm("l2", _l2_block),
    "laplace": ClosedForm("l1", _laplace(FINE_BITS)),
    "linf-bit-planes": ClosedForm("linf", _linf_bit_planes),
    "linf-block": ClosedForm("linf", _linf_block),
    "linf-coordinate": ClosedForm("linf", _linf_coordinate),
    "privunit": ClosedForm("l2", _privunit),
    "privunit-g": ClosedForm("l2", _half_spaces(privunit_g_law.optimal_privunit_g)),
    "projunit": ClosedForm("l2", _projunit),
    "sampled-bits": ClosedForm("linf", _sampled_bits),
    "sqkr": ClosedForm("l2", _sqkr),
}
"""The built-in mechanisms of vectors, by name."""
