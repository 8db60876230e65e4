"""Mean estimation under user-level privacy: a client's whole history of samples counts as one datum.

Clients first find a small box that holds all their means, then report within it (Girgis's thesis, Section
3.7): ``docs/proofs/mechanisms.md``, section 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Annotated, cast

from shuffle_plugins.compressors.frames import Rotation
from shuffle_plugins.compressors.hadamard import hadamard_signs, hadamard_transform, padded_dim
from shuffle_plugins.compressors.quantization import SignThresholds, random_signs
from shuffle_plugins.core import FieldLayout, ReportLayout, Reports
from shuffle_plugins.core.checks import Count, Dim, LocalEpsilon, Radius, Ranged, in_range, one_of
from shuffle_plugins.core.lazy_torch import Tensor, torch
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.base import LocalRandomizer, Norm
from shuffle_plugins.randomness.sources import Randomness, secure


class Split(StrEnum):
    """What the stages share: ``CLIENTS`` (each in one, with all of ε0) or ``BUDGET`` (each in both, ε0/2)."""

    CLIENTS = "clients"
    BUDGET = "budget"


@dataclass(frozen=True, kw_only=True)
class UserLevelMean(Ranged):
    """A plan for the two stages.

    Attributes:
        clients: n, how many clients there are.
        sigma: σ; samples of a client are independent and σ²-sub-Gaussian in every direction.
        failure: γ, probability that the clients' means are not as concentrated as is assumed.
        mechanism: name of the registered mechanism of the second stage, for vectors in a norm ball.
        range_share: share of the clients in the first stage, under ``Split.CLIENTS``.
        ranging: whether there is a first stage; by default where it leaves a smaller radius, and is wrong
            about some coordinate with probability at most 1/2, by its bound.
    """

    local_epsilon: LocalEpsilon
    dim: Dim
    clients: Count
    samples: Count
    radius: Radius
    sigma: Annotated[float, in_range(above=0, at_most=1e30)]
    failure: Annotated[float, in_range(above=0, below=1)] = 0.01
    mechanism: str = "privunit"
    split: Annotated[Split, one_of(Split)] = Split.CLIENTS
    range_share: Annotated[float, in_range(above=0, below=1)] = 0.25
    ranging: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bins > 1 << 20:  # the server transforms them all
            raise ValueError(
                f"{self.bins} bins per coordinate are too many: sigma={self.sigma} is too small for a radius "
                f"of {self.radius}"
            )
        if self.bins > 1 and self.range_clients < self.rotation.size:
            raise ValueError(
                f"{self.range_clients} clients cannot range {self.rotation.size} coordinates: raise clients "
                "or range_share, or lower the dimension"
            )
        if self.mean_clients < 1:
            raise ValueError(f"of {self.clients} clients none is left for the second stage")

    @cached_property
    def rotation(self) -> Rotation:
        """The public isometry that spreads a client's mean over all coordinates."""
        return Rotation(dim=self.dim, seed=self.seed)

    @property
    def spread(self) -> float:
        """τ, how far a coordinate of a client's rotated mean lies from its expectation at most."""
        tests = 4 * self.clients * self.rotation.size / self.failure
        return self.sigma * math.sqrt(2 * math.log(tests) / self.samples)

    @property
    def extent(self) -> float:
        """Largest coordinate of a rotated mean, exceeded by some client's with probability γ/4 at most."""
        size = self.rotation.size
        tests = 8 * self.clients * size / self.failure
        return self.radius * min(1.0, math.sqrt(2 * math.log(tests) / size))

    @cached_property
    def bins(self) -> int:
        """K, bins per coordinate, a power of two; 1 without a first stage."""
        if self.ranging is False or self._ranged_radius >= self.radius:
            return 1
        needed = padded_dim(max(1, math.ceil(self.extent / self.spread)))
        helps = self._rangers >= self.rotation.size and self._wrong_bins(needed) <= 0.5
        return needed if helps or self.ranging else 1

    @property
    def _rangers(self) -> int:
        """Clients of a first stage, if there is one."""
        return self.clients if self.split is Split.BUDGET else int(self.clients * self.range_share)

    @property
    def range_clients(self) -> int:
        """n₁, clients of the first stage."""
        return self._rangers if self.bins > 1 else 0

    @property
    def mean_clients(self) -> int:
        """Clients of the second stage."""
        return self.clients if self.split is Split.BUDGET else self.clients - self.range_clients

    @property
    def stage_epsilon(self) -> float:
        """ε of one report in either stage."""
        both = self.split is Split.BUDGET and self.bins > 1
        return self.local_epsilon / 2 if both else self.local_epsilon

    @property
    def failure_probability(self) -> float:
        """A bound on the probability that some client's mean is not in the box that is found, at most 1."""
        if self.bins == 1:
            return self.failure
        return min(1.0, self.failure + self._wrong_bins(self.bins))

    def _wrong_bins(self, bins: int) -> float:
        """A bound on the expected number of coordinates whose bin, of so many, is wrong."""
        gain = math.tanh(self.local_epsilon / (4 if self.split is Split.BUDGET else 2))
        each = ((1 + math.sqrt(1 - gain * gain / 4)) / 2) ** (self._rangers // self.rotation.size)
        return self.rotation.size * bins * each

    @property
    def residual_radius(self) -> float:
        """How far, in l2 norm, a client's mean lies from the centre that is found."""
        return self.radius if self.bins == 1 else self._ranged_radius

    @property
    def _ranged_radius(self) -> float:
        t = math.log(4 * self.clients / self.failure)
        within = self.sigma * math.sqrt((self.dim + 2 * math.sqrt(self.dim * t) + 2 * t) / self.samples)
        root = math.sqrt(self.rotation.size)
        return min(3 * self.spread * root, 2 * self.spread * root + within)

    def mean_mechanism(self) -> LocalRandomizer:
        """Of the second stage: of rotated residuals for an l-infinity ball, else of residuals."""
        built = registry.get(self.mechanism, local_epsilon=self.stage_epsilon, dim=self.dim)
        if not isinstance(built, LocalRandomizer):
            raise ValueError(f"{self.mechanism!r} does not take vectors in a norm ball")
        if built.local_delta > 0:
            raise ValueError(f"{self.mechanism!r} is not ε-LDP without a δ: the plan's ε0 would not be exact")
        dim, radius = self.dim, self.residual_radius
        if built.norm is Norm.LINF:
            dim, radius = self.rotation.size, self.extent if self.bins == 1 else 3 * self.spread
        elif built.norm is Norm.L1:
            radius *= math.sqrt(dim)
        return cast(
            LocalRandomizer,
            registry.get(self.mechanism, local_epsilon=self.stage_epsilon, dim=dim, radius=radius),
        )

    @property
    def mean_variance(self) -> float:
        """A bound on E‖estimate - mean of the second stage's y_i‖² where nothing fails."""
        return self.mean_mechanism().worst_variance / self.mean_clients


@dataclass(frozen=True, kw_only=True, eq=False)
class UserLevelEstimate:
    """What the two stages found, and what they cost.

    Attributes:
        mean: the estimate, (dim,) float64.
        local_epsilon: ε that the most burdened client spent, for all its samples.
        range_reports, mean_reports: what the server received in either stage.
        failure_probability: a bound on the probability that clients' means were cut.
    """

    mean: Tensor
    centre: Tensor
    local_epsilon: float
    range_reports: Reports | None
    mean_reports: Reports
    failure_probability: float


def range_reports(values: Tensor, *, plan: UserLevelMean, randomness: Randomness) -> Reports:
    """First stage, at the clients: coordinate, Hadamard row and randomised sign of each client.

    Client i speaks of coordinate i mod P, ``values`` (clients,) of each one's rotated mean.
    """
    count, device = values.shape[0], values.device
    bins, size = plan.bins, plan.rotation.size
    place = ((values.double() / plan.spread + bins) / 2).floor().clamp_(0, bins - 1).to(torch.int64)
    rows = randomness.integers(bins, count, device=device)
    entries = hadamard_signs(rows, place).double()
    thresholds = SignThresholds.of(plan.stage_epsilon)
    signs = random_signs(entries, thresholds=thresholds, randomness=randomness)
    coordinates = torch.arange(count, device=device) % size
    return _range_layout(plan).reports(coordinates, rows, signs)


def _range_layout(plan: UserLevelMean) -> ReportLayout:
    """A coordinate, a row of the Hadamard matrix, and a sign."""
    bits = [(count - 1).bit_length() for count in (plan.rotation.size, plan.bins, 2)]
    return ReportLayout("user-level-range", plan.rotation.size, tuple(map(FieldLayout, bits)))


def find_centre(reports: Reports, *, plan: UserLevelMean) -> Tensor:
    """First stage, at the server: the centre of each coordinate's fullest bin, (P,) float64."""
    bins, size = plan.bins, plan.rotation.size
    coordinates, rows, plus = _range_layout(plan).read(reports, size, bins, 2)
    signs = (2 * plus - 1).double()
    cells = coordinates * bins + rows
    counts = torch.zeros(size * bins, dtype=torch.float64, device=signs.device).index_add_(0, cells, signs)
    fullest = hadamard_transform(counts.view(size, bins)).argmax(dim=1)
    return (2 * fullest + 1 - bins).double() * plan.spread


def estimate_mean(
    samples: Tensor, *, plan: UserLevelMean, randomness: Randomness | None = None
) -> UserLevelEstimate:
    """Both stages, for a host that simulates all clients, which are shuffled in secret first.

    Of ``samples``, (clients, samples, dim) floating, those outside the plan's ball cost no privacy, but may
    be cut.
    """
    if tuple(samples.shape) != (plan.clients, plan.samples, plan.dim) or not samples.is_floating_point():
        raise ValueError(
            f"the plan is for samples of shape {(plan.clients, plan.samples, plan.dim)}, got "
            f"{samples.dtype} of shape {tuple(samples.shape)}"
        )
    source = secure(randomness)
    means = samples.detach().mean(dim=1, dtype=torch.float64)
    if not bool(means.isfinite().all()):
        raise ValueError("samples have NaN or infinite entries; nothing was released")
    means = means[source.permutation(plan.clients, device=means.device)]
    rotation, size = plan.rotation, plan.rotation.size
    centre = torch.zeros(size, dtype=torch.float64, device=means.device)
    first = None
    if plan.bins > 1:
        count = plan.range_clients
        coordinates = torch.arange(count, device=means.device) % size
        values = rotation.coefficients(means[:count], coordinates.unsqueeze(1)).squeeze(1)
        first = range_reports(values, plan=plan, randomness=source)
        centre = find_centre(first, plan=plan)
    mechanism = plan.mean_mechanism()
    rest = means[plan.clients - plan.mean_clients :]
    if mechanism.norm is Norm.LINF:
        boxed = (rotation.represent(rest) - centre).clamp_(-mechanism.radius, mechanism.radius)
        second = mechanism.randomize(boxed, randomness=source, clip=True)
        found = rotation.reconstruct(centre + mechanism.aggregate(second).double())
    else:
        second = mechanism.randomize(rest - rotation.reconstruct(centre), randomness=source, clip=True)
        found = rotation.reconstruct(centre) + mechanism.aggregate(second).double()
    length = float(torch.linalg.vector_norm(found))
    return UserLevelEstimate(
        mean=found * min(1.0, plan.radius / length) if length > 0 else found,
        centre=rotation.reconstruct(centre),
        local_epsilon=plan.local_epsilon,
        range_reports=first,
        mean_reports=second,
        failure_probability=plan.failure_probability,
    )
