"""How clients' gradients become an estimate of their mean, and what that costs: one interface for all models.

A :class:`GradientModel`, opened for a group of clients and a target, gives a :class:`GradientOracle`, which
an optimiser asks for means and whose round an accountant records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from shuffle_plugins.accounting import PrivacyTarget, Round, SampledRecordsRound, Sampling, ShuffleRound
from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.core.checks import Count, Ranged
from shuffle_plugins.mechanisms import LocalRandomizer, Norm, registry
from shuffle_plugins.mechanisms.noise import noise_ratio
from shuffle_plugins.protocols import TargetUnreachable, VectorSum
from shuffle_plugins.protocols.draws import MOST_COINS
from shuffle_plugins.randomness import Randomness
from shuffle_plugins.randomness.chacha import PROBABILITY_BITS

_IN_WORDS = {
    Sampling.SINGLE_PASS: "disjoint batches",
    Sampling.FULL: "everybody",
    Sampling.WITHOUT_REPLACEMENT: "k of n",
    Sampling.POISSON: "self-sampled",
    Sampling.EPOCH: "random permutation",
}


@dataclass(frozen=True, kw_only=True)
class Participation(Ranged):
    """How one group of clients takes part in so many steps.

    Under ``SINGLE_PASS`` each client is in one step, all of equal size; under ``FULL`` everybody is in every
    step; under ``WITHOUT_REPLACEMENT`` k of n are drawn anew for every step; under ``POISSON`` every client
    tosses a secret coin for every step, and the cohort is the expected number; under ``EPOCH`` each client is
    in one step, in a secret uniform order, and all clients of a step make one report together. Of m records a
    client draws s anew, uniformly and in secret, for every step that it is in.
    """

    sampling: Sampling
    population: Count
    cohort: Count
    num_steps: Count
    records_per_client: Count = 1
    samples_per_client: Count = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling not in _IN_WORDS:
            raise ValueError(f"sampling must be one of {[s.value for s in _IN_WORDS]}, got {self.sampling!r}")
        if self.cohort > self.population:
            raise ValueError(f"a step of {self.cohort} clients, out of {self.population}: ask for fewer")
        if self.samples_per_client > self.records_per_client:
            raise ValueError(
                f"samples must be at most records_per_client, got {self.samples_per_client} of "
                f"{self.records_per_client}: a client reports on a record at most once in a step"
            )
        if self.records_per_client > 1 and self.sampling not in (
            Sampling.WITHOUT_REPLACEMENT,
            Sampling.POISSON,
        ):
            raise ValueError(
                f"clients with several records are drawn anew for every step, not {self}: take CohortSGD or "
                "SelfSampledSGD, or make each record a client"
            )
        if self.once and self.cohort * self.num_steps > self.population:
            raise ValueError(
                f"{self.num_steps} steps of {self.cohort} need more than {self.population} clients, each once"
            )

    def __str__(self) -> str:
        words = _IN_WORDS[self.sampling]
        if self.records_per_client == 1:
            return words
        return f"{words}, {self.samples_per_client} of {self.records_per_client} records each"

    @property
    def reports(self) -> int:
        """Reports of a step, k·s; under ``POISSON`` the expected number."""
        return self.cohort * self.samples_per_client

    @property
    def once(self) -> bool:
        """Whether a client takes part in one step at most."""
        return self.sampling in (Sampling.SINGLE_PASS, Sampling.EPOCH)

    @property
    def releases(self) -> int:
        """How often an accountant records the oracle's round: a whole pass counts as one."""
        return 1 if self.once else self.num_steps

    def drawn(self, step: int, *, order: Tensor, randomness: Randomness) -> Tensor:
        """Positions of the records of a step, from 1, int64; client i has those from i·m to (i + 1)·m − 1.

        ``order`` is a permutation of the group's clients, drawn once.
        """
        clients = self._clients(step, order=order, randomness=randomness)
        records, samples = self.records_per_client, self.samples_per_client
        if records == 1:
            return clients
        if samples == 1:
            chosen = randomness.integers(records, (len(clients), 1))
        else:  # the places of the smallest of m random words
            chosen = randomness.words(len(clients) * records).reshape(-1, records).argsort(dim=1)[:, :samples]
        return (clients.unsqueeze(1) * records + chosen).flatten()

    def _clients(self, step: int, *, order: Tensor, randomness: Randomness) -> Tensor:
        if self.once:
            return order[(step - 1) * self.cohort : step * self.cohort]
        if self.sampling is Sampling.FULL:
            return order
        if self.sampling is Sampling.WITHOUT_REPLACEMENT:
            return randomness.permutation(self.population)[: self.cohort]
        threshold = self.cohort * (1 << PROBABILITY_BITS) // self.population
        coins = randomness.bernoulli(torch.full((self.population,), threshold, dtype=torch.int64))
        return coins.nonzero().flatten()


_LOWEST = 1e-4  # ε0 that is tried: below, a report says next to nothing
_SIGNS = {Norm.L1: "ℓ1", Norm.L2: "ℓ2", Norm.LINF: "ℓ∞"}
_DEFAULTS = {Norm.L1: "l1-hadamard", Norm.L2: "privunit-g", Norm.LINF: "linf-block"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientTarget:
    """What a model must meet for a group of clients: ε at δ of all that one takes part in (replace-one).

    Gradients are of length ``dim``, and clipped to the ``radius`` L in the norm.
    """

    dim: int
    radius: float
    epsilon: float
    delta: float
    norm: Norm = Norm.L2

    def radius_of(self, norm: Norm) -> float:
        """Radius of the smallest ball of this norm, the target's own or ℓ2, that holds all gradients."""
        if norm is self.norm:
            return self.radius
        if norm is not Norm.L2:
            raise ValueError(f"gradients lie in an {_SIGNS[self.norm]} ball, not in an {_SIGNS[norm]} ball")
        return self.radius * (math.sqrt(self.dim) if self.norm is Norm.LINF else 1.0)


@dataclass(frozen=True, kw_only=True)
class GradientOracle:
    """Means of gradients, estimated privately.

    Attributes:
        round: what an accountant records before anything is released; None if nothing is protected.
        noise: bound on E‖estimate − mean‖², where the mean is that of the clipped gradients of a step.
        estimate: unbiased for the mean of clipped rows.
        bits_per_report: of one report on the wire; None if a client sends no report of fixed size.
    """

    target: GradientTarget
    round: Round | None
    noise: float
    says: str
    estimate: Callable[[Tensor, Randomness], Tensor]
    bits_per_report: int | None = None

    def mean(self, gradients: Tensor, *, randomness: Randomness) -> Tensor:
        """An unbiased estimate of the mean of the rows, clipped; float64 (dim,)."""
        radius = self.target.radius
        order = float(self.target.norm.removeprefix("l"))  # "inf" is a float, too
        norms = torch.linalg.vector_norm(gradients, ord=order, dim=1, keepdim=True)
        if not bool(norms.isfinite().all()):
            raise ValueError("gradients have NaN or infinite entries; nothing was released")
        return self.estimate(gradients * (radius / norms.clamp(min=radius)), randomness)


class GradientModel(ABC):
    """In which privacy model gradients leave clients."""

    @abstractmethod
    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        """An oracle that keeps to the target; TargetUnreachable if nothing does."""

    def noise(self, participation: Participation, target: GradientTarget) -> float:
        """About the opened oracle's ``noise``, infinite if there is none; batch sizes are compared by it."""
        try:
            return _opened(self, participation, target).noise
        except TargetUnreachable:
            return math.inf


@lru_cache(maxsize=4096)
def _opened(model: GradientModel, participation: Participation, target: GradientTarget) -> GradientOracle:
    return model.open(participation, target)


@dataclass(frozen=True)
class Unprotected(GradientModel):
    """Exact means, for comparison: no privacy at all; the target's ε and δ are ignored."""

    @override
    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        return GradientOracle(
            target=target,
            round=None,
            noise=0.0,
            says="gradients as they are: NOT private",
            estimate=lambda gradients, _: gradients.mean(dim=0),
        )


# -- multi-message sums -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class VectorSums(GradientModel):
    """Sums by P_vec, the multi-message protocol of the paper.

    Attributes:
        overhead: share of variance beyond the Gaussian mechanism's; raised where that needs too many coins.
    """

    honest_fraction: float = 1.0
    overhead: float = 0.02

    @override
    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        protocol = self._protocol(participation, target)
        noise = protocol.worst_variance / protocol.cohort**2

        def estimate(gradients: Tensor, randomness: Randomness) -> Tensor:
            return protocol.randomize_sum(gradients, randomness=randomness).double() / len(gradients)

        return GradientOracle(
            target=target,
            round=protocol.round(population=participation.population, sampling=participation.sampling),
            noise=noise,
            says=f"P_vec, {protocol.messages_per_client:,} labelled bits per client "
            f"({protocol.bits_per_report / 8:,.0f} bytes as counts), noise √(dσ²) = {math.sqrt(noise):.4g} "
            "on the mean",
            estimate=estimate,
        )

    @override
    def noise(self, participation: Participation, target: GradientTarget) -> float:
        # the Gaussian mechanism's, plus the overhead
        if participation.sampling not in (Sampling.SINGLE_PASS, Sampling.FULL):
            return super().noise(participation, target)
        if participation.cohort * self.honest_fraction < 2:
            return math.inf
        ratio = noise_ratio(local_epsilon=target.epsilon, local_delta=target.delta)
        deviation = ratio * 2 * target.radius_of(Norm.L2) / participation.cohort
        share = (1 + self.overhead) / self.honest_fraction
        return share * participation.releases * target.dim * deviation**2

    def _protocol(self, participation: Participation, target: GradientTarget) -> VectorSum:
        if participation.sampling in (Sampling.POISSON, Sampling.EPOCH):
            raise ValueError(
                "a sum's coins are divided among a cohort of known size, and a step that is "
                f"{participation} has none: pass model=OneMessage()"
            )
        if participation.records_per_client > 1:
            raise ValueError(
                "the draw of a client's records is accounted for one-message reports, not for sums of many "
                "messages: pass model=OneMessage()"
            )
        overhead = self.overhead
        sampled = participation.sampling is Sampling.WITHOUT_REPLACEMENT
        while True:
            found = VectorSum.calibrated(
                dim=target.dim,
                cohort=participation.cohort,
                radius=target.radius_of(Norm.L2),
                epsilon=target.epsilon,
                delta=target.delta,
                honest_fraction=self.honest_fraction,
                num_steps=participation.releases,
                population=participation.population if sampled else None,
                overhead=min(overhead, 1.0),
            )
            if found.cohort * found.coins <= MOST_COINS or overhead >= 1:
                return found
            overhead *= 2


# -- pan-private sums -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PanPrivate(GradientModel):
    """One trusted processor of a stream, safe against one look at its memory (Appendix C, Algorithm 6).

    The running sum of a batch starts from noise, and as much is added again before it is used: the first
    noise hides a client that came before somebody looked, the second one that comes after. So a client costs
    one sum with one noise, and the error is that of two. The noise is that of P_vec, not Gaussian as in the
    paper; ``overhead`` is as of :class:`VectorSums`.
    """

    overhead: float = 0.02

    @override
    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        protocol = self._sums(participation)._protocol(participation, target)
        second = protocol.dim * protocol.noise_variance
        noise = (protocol.worst_variance + second) / protocol.cohort**2

        def estimate(gradients: Tensor, randomness: Randomness) -> Tensor:
            first, second = (protocol.common_noise(randomness=randomness) for _ in range(2))
            total = first + protocol.share(gradients, randomness=randomness) + second
            coins = protocol.levels + protocol.coins  # the second noise is of mean `coins` per client
            centred = total.double() - protocol.cohort * coins
            return protocol.lattice.in_units(centred) / len(gradients)

        return GradientOracle(
            target=target,
            round=protocol.round(population=participation.population, sampling=participation.sampling),
            noise=noise,
            says=f"a pan-private stream, noise √(dσ²) = {math.sqrt(noise):.4g} on the mean",
            estimate=estimate,
        )

    @override
    def noise(self, participation: Participation, target: GradientTarget) -> float:
        return 2 * self._sums(participation).noise(participation, target)

    def _sums(self, participation: Participation) -> VectorSums:
        if participation.sampling is not Sampling.SINGLE_PASS:
            raise ValueError("a stream passes once: pan-private optimisers work on disjoint batches")
        return VectorSums(overhead=self.overhead)


# -- one-message mechanisms -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OneMessage(GradientModel):
    """One report per client and step, by a local randomizer, amplified by the shuffler.

    ε0 is the largest that keeps to the target; of an (ε0, δ0) mechanism δ0 is a tenth of what δ leaves room
    for. Clients that take part once come in a secret uniform order: a report hides among all of the pass,
    although later steps depend on earlier ones (Claim 6 of ``docs/proofs/accounting.md``).

    Attributes:
        mechanism: name in the registry, of one that takes vectors in a ball of the problem's norm or in an ℓ2
            ball; by default one for the norm.
    """

    mechanism: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @override
    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        options, name = dict(self.options), self.mechanism or _DEFAULTS[target.norm]
        probe = _mechanism(name, 1.0, target, options)
        probed = _charged(probe, participation)
        if probe.local_delta:
            # Where this noise is accounted without its δ0, louder or quieter noise may not be: times δ0 for
            # every report at ε0 = 1 (Feldman et al. 2021, Theorem 3.8). A tenth of δ is left for it.
            by_clones = probed.cohort * (1 + math.exp(-1) / 2)
            charged = probed.replacement_distance / probe.local_delta or by_clones
            room = target.delta / ((1 + math.exp(target.epsilon)) * charged * participation.releases)
            options["local_delta"] = 0.1 * room

        budget = PrivacyTarget(epsilon=target.epsilon, delta=target.delta, num_steps=participation.releases)

        def spent(local_epsilon: float) -> float:
            mechanism = _within_reach(name, local_epsilon, target, options)
            return budget.cost(_charged(mechanism, participation))

        found = largest_within(
            spent, target=target.epsilon, start=1.0, lowest=_LOWEST, highest=20.0, precision=1e-3
        )
        if found is None:
            raise TargetUnreachable(
                f"no ε0 down to {_LOWEST:g} keeps {participation.releases} rounds within "
                f"ε={target.epsilon:g}, δ={target.delta:g}: take fewer steps or smaller cohorts"
            )
        mechanism = _mechanism(name, found, target, options)
        return _reported(mechanism, _charged(mechanism, participation), participation, target)


def _mechanism(
    name: str, local_epsilon: float, target: GradientTarget, options: dict[str, Any]
) -> LocalRandomizer:
    def built(radius: float) -> Any:
        return registry.get(name, local_epsilon=local_epsilon, dim=target.dim, radius=radius, **options)

    found = built(target.radius)
    if not isinstance(found, LocalRandomizer) or found.norm not in (target.norm, Norm.L2):
        raise ValueError(
            f"{name!r} does not take gradients in an {_SIGNS[target.norm]} ball; take "
            f"{_DEFAULTS[target.norm]!r}, which does"
        )
    fitting = target.radius_of(found.norm)
    enclosing: LocalRandomizer = found if fitting == target.radius else built(fitting)
    return enclosing


def _within_reach(
    name: str, local_epsilon: float, target: GradientTarget, options: dict[str, Any]
) -> LocalRandomizer:
    """A mechanism that is known to exist, at an ε0 and δ0 that it may refuse."""
    try:
        return _mechanism(name, local_epsilon, target, options)
    except ValueError as error:
        raise TargetUnreachable(f"{name} does not go as far as the target: {error}") from error


def _charged(mechanism: LocalRandomizer, participation: Participation) -> ShuffleRound:
    if participation.sampling is Sampling.EPOCH:
        # A step is one report, on the mean of its clients: as many elements as steps are permuted.
        return mechanism.round(population=participation.num_steps, cohort=1, sampling=Sampling.EPOCH)
    # Disjoint batches are cut from a secret uniform order, so reports of other batches hide a client too.
    once = participation.sampling is Sampling.SINGLE_PASS
    clients = mechanism.round(
        population=participation.population,
        cohort=participation.cohort,
        sampling=Sampling.EPOCH if once else participation.sampling,
    )
    if participation.records_per_client == 1:
        return clients
    return SampledRecordsRound.of(
        clients,
        records_per_client=participation.records_per_client,
        samples_per_client=participation.samples_per_client,
    )


def _reported(
    mechanism: LocalRandomizer, charged: ShuffleRound, participation: Participation, target: GradientTarget
) -> GradientOracle:
    """One report of every row; of a permutation, one of the mean of a step's rows."""
    together = participation.sampling is Sampling.EPOCH and charged.sampling is Sampling.EPOCH
    noise = mechanism.worst_variance / (1 if together else participation.reports)

    def estimate(gradients: Tensor, randomness: Randomness) -> Tensor:
        if together:
            gradients = gradients.mean(dim=0, keepdim=True)
        total = mechanism.randomize_sum(gradients, randomness=randomness, clip=True)
        return total.double() / len(gradients)

    return GradientOracle(
        target=target,
        round=charged,
        noise=noise,
        says=f"{mechanism.name} at ε0 = {mechanism.local_epsilon:.4g}, {mechanism.bits_per_report:,} bits "
        f"per report, noise {math.sqrt(noise):.4g} on the mean",
        estimate=estimate,
        bits_per_report=mechanism.bits_per_report,
    )


# -- the local model --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Local(GradientModel):
    """One report per client and step by an ε0-LDP randomizer without a shuffler, for comparison.

    A client's reports share its ε: ε0 = ε over the number of steps it takes part in.
    """

    mechanism: str | None = None

    @override
    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        name = self.mechanism or _DEFAULTS[target.norm]
        _mechanism(name, 1.0, target, {})
        local_epsilon = target.epsilon / participation.releases
        if local_epsilon * participation.releases > target.epsilon:
            local_epsilon = math.nextafter(local_epsilon, 0.0)
        mechanism = _within_reach(name, local_epsilon, target, {})
        # A report among no others has no amplification.
        alone = ShuffleRound(
            local_epsilon=local_epsilon,
            local_delta=mechanism.local_delta,
            population=1,
            cohort=1,
            sampling=Sampling.FULL,
        )
        return _reported(mechanism, alone, participation, target)
