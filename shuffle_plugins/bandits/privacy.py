"""How rewards are protected: the models of trust, what a batch costs, and how far noise moves estimates.

A client takes part in one batch only, so the whole run costs what its dearest batch costs. Rewards lie in
[-1, 1]: replacing one changes it by up to 2 (in the thesis, (E.1), by 1). Nothing here loads torch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from typing_extensions import override

from shuffle_plugins.accounting import (
    NEIGHBOURING_RELATION,
    EpsilonInterval,
    Floats,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    calibrate_local_epsilon,
)
from shuffle_plugins.accounting.calibrate import LARGEST_SEARCHED_LOCAL_EPSILON
from shuffle_plugins.accounting.published import shuffles
from shuffle_plugins.bandits.designs import Indices, Vectors
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Delta, Ranged, in_range, one_of
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.noise import FINE_BITS, laplace_grid

if TYPE_CHECKING:
    from shuffle_plugins.core import Reports
    from shuffle_plugins.mechanisms import LocalRandomizer
    from shuffle_plugins.randomness import Randomness

SENSITIVITY = 2.0
"""How far the reward of a client moves if it is replaced."""

# The smallest ε0 of a report, and ε of a sum: below, millions of clients teach nothing.
_LeastEpsilon = Annotated[float, in_range(at_least=1e-3)]
_UNSHUFFLED = "ε0 of one report"
_ROUNDING = 1 + 1e-9  # computed widths are rounded up by this factor
_ROOT = 1e-12  # to which the root of a published bound is found; as much is taken off


class RewardMechanism(StrEnum):
    """How a client randomises its reward: Laplace noise, or a random sign (one bit)."""

    LAPLACE = "laplace"
    BINARY_RR = "binary-rr"


class Bound(StrEnum):
    """Which bound finds the ε0 of a shuffled batch.

    ``CERTIFIED``: this project's accountant. ``PUBLISHED``: the closed form of Feldman, McMillan and Talwar
    2021, Theorem 3.1, inverted, as in Algorithm 6.4.1 of the thesis.
    """

    CERTIFIED = "certified"
    PUBLISHED = "published"


@dataclass(frozen=True, kw_only=True)
class RewardNoise:
    """What is added to the rewards of one batch, and by whom; by itself nothing.

    Attributes:
        epsilon: what the batch costs a client of it, for replace-one neighbours; None if nothing is
            protected.
        local_epsilon: ε0 of one client's report; None if clients send their rewards as they are.
    """

    epsilon: EpsilonInterval | None = None
    local_epsilon: float | None = None

    def width(self, *, lengths: Floats, coefficients: Vectors, counts: Indices, failure: float) -> float:
        """γ: how far the estimated reward of any action may be off, rounded up.

        ``lengths`` are ‖a‖² in the inverse of V of each action a, (actions,), ``coefficients`` aᵀV⁻¹b for the
        actions b that were played, (actions, played), each as often as ``counts`` says; one action's estimate
        is off by more with probability at most ``failure``.
        """
        # a reward in [-1, 1] is 1-sub-Gaussian about its mean (Hoeffding's lemma)
        return math.sqrt(2 * math.log(4 / failure) * float(lengths.max())) * _ROUNDING

    def simulated(self, successes: Indices, counts: Indices, rng: np.random.Generator) -> Floats:
        """Released sums of rewards ±1 from their exact law, so many of each action +1: not secure."""
        return (2 * successes - counts).astype(np.float64)

    def randomized(self, rewards: Floats, *, randomness: Randomness | None) -> Floats | Reports:
        """What the clients send: a report for each reward, or the rewards."""
        return rewards

    def totals(
        self, sent: Floats | Reports, *, places: Indices, played: int, randomness: Randomness | None
    ) -> Floats:
        """Unbiased sums of the rewards of each of ``played`` actions, at ``places``, with all the noise."""
        found: Floats = np.bincount(places, weights=_as_they_are(sent), minlength=played).astype(np.float64)
        return found


@dataclass(frozen=True, kw_only=True)
class SumNoise(RewardNoise):
    """A trusted server adds discrete Laplace noise to the sum of the rewards of each played action.

    Each reward is first rounded, at random and without bias, to a multiple of 1/``steps``, so that sums are
    whole numbers of steps and a replaced reward moves one of them by at most 2·``steps``.
    """

    sum_epsilon: float

    @property
    def steps(self) -> int:
        """Steps in one unit of reward."""
        return int(min(1 << 20, self.sum_epsilon * (1 << 28)))

    @property
    def scale(self) -> Fraction:
        """Scale of the noise in steps, at least 2·steps/ε, with a denominator that can be drawn from."""
        exact = Fraction(2 * self.steps) / Fraction(self.sum_epsilon)
        near = exact.limit_denominator(1 << 30)
        return near if near >= exact else near + Fraction(1, 1 << 30)

    @override
    def width(self, *, lengths: Floats, coefficients: Vectors, counts: Indices, failure: float) -> float:
        scaled = coefficients * (SENSITIVITY / self.sum_epsilon)
        return laplace_width(lengths=lengths, scaled=scaled, copies=np.ones_like(counts), failure=failure)

    @override
    def simulated(self, successes: Indices, counts: Indices, rng: np.random.Generator) -> Floats:
        noise = _laplace_sums(np.ones_like(counts), rate=1 / float(self.scale), rng=rng)
        return (2 * successes - counts) + noise / self.steps

    @override
    def totals(
        self, sent: Floats | Reports, *, places: Indices, played: int, randomness: Randomness | None
    ) -> Floats:
        import torch

        from shuffle_plugins.mechanisms.discrete_sampling import discrete_laplace
        from shuffle_plugins.randomness import secure

        source = secure(randomness)
        scaled = torch.from_numpy(_as_they_are(sent)) * self.steps
        low = scaled.floor()
        whole = (low + (source.uniform(len(scaled)) < scaled - low)).to(torch.int64)
        sums = torch.zeros(played, dtype=torch.int64).index_add_(0, torch.from_numpy(places), whole)
        noisy = sums + discrete_laplace(played, scale=self.scale, randomness=source)
        found: Floats = noisy.double().div_(self.steps).numpy()
        return found


@dataclass(frozen=True, kw_only=True)
class _Randomized(RewardNoise):
    """Each client randomises its own reward."""

    mechanism: ClassVar[RewardMechanism]
    local_epsilon: float

    @property
    def randomizer(self) -> LocalRandomizer:
        """The mechanism with which it does."""
        found: LocalRandomizer = registry.get(self.mechanism, local_epsilon=self.local_epsilon, dim=1)
        return found

    @override
    def randomized(self, rewards: Floats, *, randomness: Randomness | None) -> Floats | Reports:
        import torch

        column = torch.from_numpy(np.ascontiguousarray(rewards)).reshape(-1, 1)
        return self.randomizer.randomize(column, randomness=randomness)

    @override
    def totals(
        self, sent: Floats | Reports, *, places: Indices, played: int, randomness: Randomness | None
    ) -> Floats:
        import torch

        from shuffle_plugins.core import Reports

        if not isinstance(sent, Reports):
            raise ValueError("clients must randomise their rewards first: pass what batch.randomize() gives")
        self.randomizer.layout.check(sent)
        by_place = sent.permute(torch.from_numpy(np.argsort(places, kind="stable")))
        ends = pairwise([0, *np.bincount(places, minlength=played).cumsum().tolist()])
        return np.array([float(self.randomizer.sum(by_place.narrow(*each))[0]) for each in ends])


@dataclass(frozen=True, kw_only=True)
class LaplaceReports(_Randomized):
    """Each client adds Laplace noise to its reward."""

    mechanism: ClassVar[RewardMechanism] = RewardMechanism.LAPLACE

    @override
    def width(self, *, lengths: Floats, coefficients: Vectors, counts: Indices, failure: float) -> float:
        scaled = coefficients * (SENSITIVITY / self.local_epsilon)
        return laplace_width(lengths=lengths, scaled=scaled, copies=counts, failure=failure)

    @override
    def simulated(self, successes: Indices, counts: Indices, rng: np.random.Generator) -> Floats:
        # n discrete Laplace numbers add up to the difference of two negative binomials
        grid = laplace_grid(local_epsilon=self.local_epsilon, dim=1, bits=FINE_BITS)
        noise = _laplace_sums(counts, rate=1 / float(grid.scale), rng=rng)
        return (2 * successes - counts) + noise / grid.radius_in_steps


@dataclass(frozen=True, kw_only=True)
class SignReports(_Randomized):
    """Each client sends one random sign, which stands for ±coth(ε0/2)."""

    mechanism: ClassVar[RewardMechanism] = RewardMechanism.BINARY_RR

    @override
    def width(self, *, lengths: Floats, coefficients: Vectors, counts: Indices, failure: float) -> float:
        # that of rewards between ±coth(ε0/2): a report is bounded, and its mean is the reward's
        alone = super().width(lengths=lengths, coefficients=coefficients, counts=counts, failure=failure)
        return alone / math.tanh(self.local_epsilon / 2)

    @override
    def simulated(self, successes: Indices, counts: Indices, rng: np.random.Generator) -> Floats:
        kept = 1 / (1 + math.exp(-self.local_epsilon))
        plus = rng.binomial(successes, kept) + rng.binomial(counts - successes, 1 - kept)
        return (2 * plus - counts) / math.tanh(self.local_epsilon / 2)


class PrivacyModel(Ranged, ABC):
    """Who is trusted with rewards, and how much may leak. Every ε is against all who see what is played."""

    trust: ClassVar[str] = "unknown: this model of trust does not say"
    """Who is trusted with rewards, and for what, for a privacy statement."""
    seen: ClassVar[str] = "what this model of trust lets out, which it does not say"
    """What may be seen of the clients' messages, for a privacy statement."""
    needs_every_report: ClassVar[bool] = False
    """Whether a batch costs more than planned if reports are missing from it."""

    @abstractmethod
    def noise(self, reports: int) -> RewardNoise:
        """What protects a batch of so many rewards, and what it costs."""


@dataclass(frozen=True, kw_only=True)
class NonPrivate(PrivacyModel):
    """Nothing is protected; to compare with."""

    trust: ClassVar[str] = "everybody: rewards are sent as they are, and nothing is protected"
    seen: ClassVar[str] = "every reward, with its sender"

    @override
    def noise(self, reports: int) -> RewardNoise:
        checks.whole("reports", reports)
        return RewardNoise()


@dataclass(frozen=True, kw_only=True)
class CentralModel(PrivacyModel):
    """A trusted server sees the rewards and adds noise to their sums: ε-DP with δ = 0 (Algorithm 6.3.1).

    The noise of each sum has scale 2/ε, whatever the number of rewards. ε is at least 1e-3.
    """

    epsilon: _LeastEpsilon

    trust: ClassVar[str] = "the server sees every reward, and is trusted with it and to add noise to sums"
    seen: ClassVar[str] = "the played actions, which follow from noisy sums; the server alone sees rewards"

    @override
    def noise(self, reports: int) -> RewardNoise:
        checks.whole("reports", reports)
        cost = _pure(self.epsilon, adversary="whoever sees the played actions", bound="Laplace mechanism")
        return SumNoise(sum_epsilon=self.epsilon, epsilon=cost)


@dataclass(frozen=True, kw_only=True)
class LocalModel(PrivacyModel):
    """Nobody is trusted: each client randomises its own reward, at ε0 (Algorithm 6.3.2).

    Attributes:
        local_epsilon: ε0 of a report, at least 1e-3; above 500 reports have ε0 = 500.
        mechanism: ``"laplace"`` as in the thesis, or ``"binary-rr"``, one bit with less noise.
    """

    local_epsilon: _LeastEpsilon
    mechanism: Annotated[RewardMechanism, one_of(RewardMechanism)] = RewardMechanism.LAPLACE

    trust: ClassVar[str] = (
        "nobody: each client randomises its own reward, and its report may be seen with its name"
    )
    seen: ClassVar[str] = "the randomised reports, with their senders"

    @override
    def noise(self, reports: int) -> RewardNoise:
        checks.whole("reports", reports)
        used = min(self.local_epsilon, checks.MAX_LOCAL_EPSILON)
        return _reports(
            self.mechanism, used, _pure(used, adversary="local", bound=f"{self.mechanism} report")
        )


@dataclass(frozen=True, kw_only=True)
class ShuffledModel(PrivacyModel):
    """Nobody but a shuffler is trusted: clients randomise, the shuffler hides who was given which action.

    Algorithm 6.4.1. The shuffler puts the actions of a batch in a secret random order and gives one to each
    client; the server does not learn whose a pair (action, report) is. So a report comes from a slot of a
    secret permutation, and its law depends on the slot's action: an epoch of all clients of the batch (Claim
    6 of ``docs/proofs/accounting.md``). ε0 is the largest at which that costs at most (ε, δ), at least ε.

    Attributes:
        epsilon: ε against the server and all who see what it plays, in [1e-3, 500].
        delta: δ, smaller than one over the number of clients.
        bound: ``"certified"``, or ``"published"`` for the closed form that the thesis uses.
    """

    epsilon: _LeastEpsilon
    delta: Delta
    mechanism: Annotated[RewardMechanism, one_of(RewardMechanism)] = RewardMechanism.LAPLACE
    bound: Annotated[Bound, one_of(Bound)] = Bound.CERTIFIED

    trust: ClassVar[str] = (
        "the shuffler draws who is given which action, and is trusted not to tell the server"
    )
    seen: ClassVar[str] = "pairs of action and randomised report, without senders"
    needs_every_report: ClassVar[bool] = True  # with fewer reports each hides among fewer

    @override
    def noise(self, reports: int) -> RewardNoise:
        count = _bucket(checks.whole("reports", reports))
        return _shuffled(self.epsilon, self.delta, count, self.mechanism, self.bound)


def _as_they_are(sent: Floats | Reports) -> Floats:
    if not hasattr(sent, "fields"):
        return checked_rewards(sent)
    raise ValueError("this batch takes rewards as they are, not reports of a mechanism")


def checked_rewards(rewards: Floats) -> Floats:
    """Rewards, a list of numbers in [-1, 1], checked, as a float64 array."""
    found = np.asarray(rewards, dtype=np.float64)
    if found.ndim != 1:
        raise ValueError(f"rewards must be a list, one number for each client, got shape {found.shape}")
    if not (np.abs(found) <= 1).all():  # false for NaN too
        raise ValueError("a reward is outside [-1, 1]: scale rewards by a public constant, or clip them")
    return found


def published_local_epsilon(*, epsilon: float, delta: float, reports: int) -> float:
    """ε0 of a batch of n reports by (6.10) of the thesis, inverted; ε if that is more, or it is silent."""
    checks.target_epsilon(epsilon, name="epsilon")
    checks.delta(delta)
    checks.whole("reports", reports)
    share = reports / (16 * math.log(2 / delta))
    if share <= 1:
        return epsilon

    def excess(local_epsilon: float) -> float:
        return shuffles.clone_bound(local_epsilon=local_epsilon, cohort=reports, delta=delta) - epsilon

    low, high = checks.MIN_LOCAL_EPSILON, math.log(share) * (1 - 1e-12)
    if low >= high or excess(low) > 0:
        return epsilon
    found = high if excess(high) <= 0 else brentq(excess, low, high, xtol=_ROOT) - 2 * _ROOT
    return max(found, epsilon)


def laplace_width(*, lengths: Floats, scaled: Vectors, copies: Indices, failure: float) -> float:
    r"""γ with Laplace noise: rewards and noise each take half of the failure.

    The noise of an action is :math:`\sum_j l_j \sum_{i \le n_j} z_{ij}`, z Laplace of scale 1, l its row of
    ``scaled``, n = ``copies``. Chernoff's bound for any 0 < λ < 1/max|l| is
    :math:`(-\sum_j n_j \ln(1 - λ^2 l_j^2) + \ln(4/failure))/λ`; here is the λ that is best for all actions
    together. It holds for discrete Laplace noise of the same ratio too, whose moments are smaller. The closed
    form of the thesis, Lemma E.1.2, has a constant that its condition on λ does not allow.
    """
    price = math.log(4 / failure)
    of_rewards = np.sqrt(2 * price * lengths)
    largest = max(float(np.abs(scaled).max()), 1e-300)  # nothing is divided by zero
    squares = np.square(scaled / largest)

    def bound(log_share: float) -> float:
        share = math.exp(log_share)
        of_noise = (price - np.log1p(-share * share * squares) @ copies) * (largest / share)
        return float((of_rewards + of_noise).max())

    # (ψ(u) + price)/u with ψ convex and ψ(0) = 0 falls and then rises, and so does the largest of several.
    ends = math.log(1e-9), math.log1p(-1e-9)
    return float(minimize_scalar(bound, bounds=ends, method="bounded").fun) * _ROUNDING


def _pure(epsilon: float, *, adversary: str, bound: str) -> EpsilonInterval:
    return EpsilonInterval(
        lower=0.0,
        upper=epsilon,
        delta=0.0,
        neighbouring_relation=NEIGHBOURING_RELATION,
        adversary=adversary,
        upper_bound=bound,
        lower_bound="none",
    )


def _reports(mechanism: RewardMechanism, local_epsilon: float, cost: EpsilonInterval) -> RewardNoise:
    kind = LaplaceReports if mechanism is RewardMechanism.LAPLACE else SignReports
    return kind(local_epsilon=local_epsilon, epsilon=cost)


def _bucket(reports: int) -> int:
    """Three digits of the number, rounded down: fewer reports hide less, so what holds for them holds."""
    unit: int = 10 ** max(len(str(reports)) - 3, 0)
    return reports // unit * unit


@lru_cache(maxsize=1 << 14)
def _shuffled(
    epsilon: float, delta: float, reports: int, mechanism: RewardMechanism, bound: Bound
) -> RewardNoise:
    if bound is Bound.PUBLISHED:
        found = published_local_epsilon(epsilon=epsilon, delta=delta, reports=reports)
        local, name = min(found, checks.MAX_LOCAL_EPSILON), "Feldman, McMillan, Talwar 2021, Theorem 3.1"
        if local <= epsilon:
            name = _UNSHUFFLED
        cost = replace(_pure(epsilon, adversary="model-observer", bound=name), delta=delta)
        return _reports(mechanism, local, cost)
    local = min(max(_amplified(epsilon, delta, reports, mechanism), epsilon), checks.MAX_LOCAL_EPSILON)
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=local,
            population=reports,
            cohort=1,
            sampling=Sampling.EPOCH,
            mechanism=mechanism.value,
            blanket=registry.blanket(mechanism.value, local_epsilon=local, dim=1),
        )
    )
    cost = accountant.epsilon(delta, lower=False)
    if cost.upper > local:  # ε0-LDP reports cost ε0 at most, shuffled or not
        cost = replace(cost, upper=local, upper_bound=_UNSHUFFLED)
    if cost.upper > epsilon:
        raise ArithmeticError(f"a batch of {reports} reports costs {cost.upper}, more than ε={epsilon}")
    return _reports(mechanism, local, cost)


def _amplified(epsilon: float, delta: float, reports: int, mechanism: RewardMechanism) -> float:
    """The largest ε0 that the accountant finds for so many reports; 0 if none."""
    if epsilon >= LARGEST_SEARCHED_LOCAL_EPSILON or reports == 1:
        return 0.0
    try:
        return calibrate_local_epsilon(
            target_epsilon=epsilon,
            delta=delta,
            population=reports,
            cohort=1,
            num_steps=1,
            sampling=Sampling.EPOCH,
            mechanism=mechanism.value,
            blanket_factory=lambda local: registry.blanket(mechanism.value, local_epsilon=local, dim=1),
        )
    except ValueError:
        return 0.0


def _laplace_sums(copies: Indices, *, rate: float, rng: np.random.Generator) -> Floats:
    """Sums of so many discrete Laplace numbers with P[k] ∝ e^(-rate·|k|), one for each entry."""
    stops = -math.expm1(-rate)
    drawn = rng.negative_binomial(copies, stops) - rng.negative_binomial(copies, stops)
    return drawn.astype(np.float64)
