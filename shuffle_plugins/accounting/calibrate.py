"""Solve the accountant for ε0, rounds or cohort at a target (ε, δ); each answer was itself evaluated."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from shuffle_plugins.accounting.accountant import ShuffleAccountant
from shuffle_plugins.accounting.numerics.search import largest_within
from shuffle_plugins.accounting.pairs.reports import Blanket
from shuffle_plugins.accounting.rounds.records import SampledRecordsRound
from shuffle_plugins.accounting.rounds.round import Round, ShuffleRound
from shuffle_plugins.accounting.terms import Adversary, Method, Sampling, check_method
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Delta, Ranged, Steps, TargetEpsilon

LEAST_SEARCHED_LOCAL_EPSILON, LARGEST_SEARCHED_LOCAL_EPSILON = 1e-4, 20.0
"""Range of ε0, in nats, that calibrations search. Mechanisms and rounds accept a wider range."""

_Method = Annotated[Method, lambda _, value: check_method(value)]

MAX_NUM_STEPS = 10**9
"""The most rounds that a calibration answers with."""


@dataclass(frozen=True, kw_only=True)
class PrivacyTarget(Ranged):
    """A goal of calibration: ``num_steps`` rounds together may cost at most ``epsilon`` at ``delta``.

    Example:
        >>> target = PrivacyTarget(epsilon=1.0, delta=1e-6, num_steps=100)
        >>> target.allows(ShuffleRound(local_epsilon=1.0, population=60_000, cohort=1_000))
        True
    """

    epsilon: TargetEpsilon
    delta: Delta
    num_steps: Steps = 1
    method: _Method = "pld"

    def cost(self, each: Round) -> float:
        """The certified ε at ``delta`` of ``num_steps`` such rounds; infinite if none can be certified."""
        accountant = ShuffleAccountant(method=self.method)
        accountant.step(each, num_steps=self.num_steps)
        return accountant.epsilon(self.delta, lower=False).upper

    def allows(self, each: Round) -> bool:
        """Whether ``num_steps`` such rounds stay within the target."""
        return self.cost(each) <= self.epsilon


def calibrate_local_epsilon(
    *,
    target_epsilon: float,
    delta: float,
    population: int,
    cohort: float,
    num_steps: int,
    sampling: Sampling | str = Sampling.WITHOUT_REPLACEMENT,
    adversary: Adversary | str = Adversary.MODEL_OBSERVER,
    mechanism: str = "generic",
    blanket_factory: Callable[[float], Blanket] | None = None,
    channel_fixed: bool = False,
    method: Method = "pld",
    records_per_client: int = 1,
    samples_per_client: int = 1,
) -> float:
    """The largest ε0 in [1e-4, 20], to four digits, with which all rounds stay within (target ε, δ).

    ValueError if even ε0 = 1e-4 costs more than the target.

    Args:
        population, cohort, sampling, adversary, mechanism, channel_fixed: as of :class:`ShuffleRound`.
        blanket_factory: the randomizer's blanket at a given ε0; needed for any but ``"generic"``.
        records_per_client, samples_per_client: as of :class:`SampledRecordsRound`.
    """
    target = _target(target_epsilon, delta, num_steps, method)
    drawn = partial(
        ShuffleRound,
        population=population,
        cohort=cohort,
        sampling=checks.choice(Sampling, "sampling", sampling),
        adversary=checks.choice(Adversary, "adversary", adversary),
        channel_fixed=channel_fixed,
    )

    def cost(local_epsilon: float) -> float:
        blanket = blanket_factory(local_epsilon) if blanket_factory else None
        clients = drawn(local_epsilon=local_epsilon, mechanism=mechanism, blanket=blanket)
        return target.cost(_of_records(clients, records_per_client, samples_per_client))

    found = largest_within(
        cost,
        target=target.epsilon,
        start=normal_guess(target, drawn(local_epsilon=1.0)),
        lowest=LEAST_SEARCHED_LOCAL_EPSILON,
        highest=LARGEST_SEARCHED_LOCAL_EPSILON,
        precision=1e-4,
    )
    if found is None:
        raise ValueError(
            f"no local_epsilon down to {LEAST_SEARCHED_LOCAL_EPSILON} keeps {num_steps} rounds within "
            f"ε={target_epsilon}, δ={delta}: use fewer rounds, a smaller cohort or a larger population"
        )
    return found


def normal_guess(target: PrivacyTarget, shuffle_round: ShuffleRound) -> float:
    """Start value for a search: the ε0 at which such rounds would meet the target, were losses normal.

    Their variance is that of the binary clone pair, 2γ²·(e^ε0 − 1)²/(k·(e^ε0 + 1)). Its ε0 is not read.
    """
    sampling, observed = shuffle_round.sampling, shuffle_round.adversary is Adversary.MODEL_OBSERVER
    hidden, rate = float(shuffle_round.cohort), 1.0
    if sampling is Sampling.CHECK_IN or (sampling is Sampling.EPOCH and observed):
        hidden = float(shuffle_round.population)
    elif sampling is not Sampling.SINGLE_PASS and observed:
        rate = shuffle_round.sampling_rate
    log_delta = -math.log(target.delta)
    # width solves ε = μ·√(2·log(1/δ)) + μ²/2 for μ; share is then (e^ε0 − 1)²/(e^ε0 + 1).
    width = 2 * target.epsilon / (math.sqrt(2 * (log_delta + target.epsilon)) + math.sqrt(2 * log_delta))
    share = width**2 * hidden / (2 * target.num_steps * rate**2)
    guess = math.log1p((share + math.sqrt(share**2 + 8 * share)) / 2)
    return min(max(guess, LEAST_SEARCHED_LOCAL_EPSILON), LARGEST_SEARCHED_LOCAL_EPSILON)


def calibrate_num_steps(
    *, target_epsilon: float, delta: float, shuffle_round: ShuffleRound, method: Method = "pld"
) -> int:
    """The largest number of rounds within (target ε, δ), at most ``MAX_NUM_STEPS``; ValueError if none is."""
    target = _target(target_epsilon, delta, 1, method)

    def fits(num_steps: int) -> bool:
        return replace(target, num_steps=num_steps).allows(shuffle_round)

    return _largest(
        fits, MAX_NUM_STEPS, refusal=f"a single round costs more than ε={target_epsilon} at δ={delta}"
    )


def calibrate_cohort(
    *,
    target_epsilon: float,
    delta: float,
    population: int,
    local_epsilon: float,
    num_steps: int,
    sampling: Sampling | str = Sampling.WITHOUT_REPLACEMENT,
    adversary: Adversary | str = Adversary.MODEL_OBSERVER,
    mechanism: str = "generic",
    blanket: Blanket | None = None,
    channel_fixed: bool = False,
    method: Method = "pld",
    records_per_client: int = 1,
    samples_per_client: int = 1,
) -> int:
    """The cohort that uses the target (ε, δ) best; arguments as of :func:`calibrate_local_epsilon`.

    Against an observer of the model the largest that fits. Against a server, and in single passes, a client
    hides among its cohort alone: the smallest that fits. ValueError if none does.
    """
    target = _target(target_epsilon, delta, num_steps, method)
    scheme = checks.choice(Sampling, "sampling", sampling)
    seen_by = checks.choice(Adversary, "adversary", adversary)
    if scheme is Sampling.FULL:
        raise ValueError("under full participation the cohort is the population; nothing is left to choose")
    if scheme is Sampling.EPOCH and seen_by is Adversary.MODEL_OBSERVER:
        raise ValueError("an epoch costs the same at every batch size; choose the batch that trains best")

    def fits(cohort: int) -> bool:
        clients = ShuffleRound(
            local_epsilon=local_epsilon,
            population=population,
            cohort=cohort,
            sampling=scheme,
            adversary=seen_by,
            mechanism=mechanism,
            blanket=blanket,
            channel_fixed=channel_fixed,
        )
        return target.allows(_of_records(clients, records_per_client, samples_per_client))

    refusal = f"no cohort of {population} clients fits ε={target_epsilon}, δ={delta}"
    if scheme is Sampling.SINGLE_PASS or seen_by is Adversary.SERVER:
        removed = _largest(lambda less: fits(population + 1 - less), population, refusal=refusal)
        return population + 1 - removed
    least = 1
    if samples_per_client > 1:  # a few clients hide each other's reports badly: the cost falls, then rises
        sizes = [*(1 << i for i in range((population - 1).bit_length())), population]
        least = max((size for size in sizes if fits(size)), default=1)
    more = _largest(lambda more: fits(least + more - 1), population - least + 1, refusal=refusal)
    return least + more - 1


def _of_records(clients: ShuffleRound, records_per_client: int, samples_per_client: int) -> ShuffleRound:
    """The clients' round with so many records and reports of each."""
    if records_per_client == samples_per_client == 1:
        return clients
    return SampledRecordsRound.of(
        clients, records_per_client=records_per_client, samples_per_client=samples_per_client
    )


def _target(target_epsilon: float, delta: float, num_steps: int, method: Method) -> PrivacyTarget:
    checks.target_epsilon(target_epsilon)
    return PrivacyTarget(epsilon=target_epsilon, delta=delta, num_steps=num_steps, method=method)


def _largest(fits: Callable[[int], bool], limit: int, *, refusal: str) -> int:
    """Largest argument in [1, limit] found to fit, for a predicate that turns from true to false once."""
    if not fits(1):
        raise ValueError(refusal)
    bad = 2
    while bad <= limit and fits(bad):
        bad *= 2
    between = range(bad // 2 + 1, min(bad, limit + 1))
    return bad // 2 + bisect_left(between, True, key=lambda each: not fits(each))
