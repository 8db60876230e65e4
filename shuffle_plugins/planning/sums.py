"""Multi-message sums within a target (ε, δ), and what it saves if clients draw in secret, not the server."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from scipy import special

from shuffle_plugins import protocols
from shuffle_plugins.accounting import Adversary, PrivacyTarget, Sampling, ShuffleAccountant
from shuffle_plugins.core import checks
from shuffle_plugins.planning.errors import NormName, sampling_error
from shuffle_plugins.planning.plans import DrawnBy, PlanQuestion, SumPlan, SumRow

SUMS = ("vector-sum", "poisson-binomial", "windowed-sum")
"""Sums that can be planned: those of vectors in an ℓ2 ball in which clients can take part in secret."""

_WINDOWED = "windowed-sum"


def plan_sums(
    *,
    target_epsilon: float,
    delta: float,
    population: int,
    dim: int,
    mechanism: str = SUMS[0],
    num_steps: int | Sequence[int] = 1,
    cohorts: Sequence[int] | None = None,
    adversary: Adversary | str = Adversary.MODEL_OBSERVER,
    radius: float = 1.0,
    norm: NormName = "l2",
    spread: float | None = None,
    momentum: float = 0.0,
) -> SumPlan:
    """The least noise of multi-message sums within a target, whoever draws the clients of a round.

    For every k < n and T these ways are compared. The server draws k clients, which it then knows: sampling
    amplifies against an observer of the model alone. Or all n clients answer and add noise, and each adds
    its data with probability k/n by a secret coin of its own: sampling amplifies against everybody who sees
    the sum alone, the server included (``docs/proofs/sums.md``, "Secret participation"). Or the server draws
    clients in turn, each once in any n // k rounds, and sees windows of sums alone: what that leaves in a
    model is told beside ``"vector-sum"`` where it is less than if the server draws and sees each sum.

    Other arguments are the fields of :class:`~shuffle_plugins.planning.plans.PlanQuestion`.

    Args:
        mechanism: ``"vector-sum"``, ``"poisson-binomial"``, or ``"windowed-sum"`` for windows alone.
        num_steps: T, or a sequence of candidates. At k = n the error of the average hardly depends on it.
        cohorts: candidates for k, at least 2; by default n alone, which has the least error.
    """
    if mechanism not in SUMS:
        raise ValueError(f"mechanism must be one of {', '.join(SUMS)} to plan sums, got {mechanism!r}")
    asked = PlanQuestion(
        target_epsilon=target_epsilon,
        delta=delta,
        population=checks.whole("population", population, at_least=2),
        dim=dim,
        radius=radius,
        norm=norm,
        spread=spread,
        sampling=Sampling.WITHOUT_REPLACEMENT,
        adversary=adversary,  # type: ignore[arg-type]  # a name becomes the member
        method="pld",
    )
    ks = (population,) if cohorts is None else cohorts
    ks = sorted({checks.whole("cohorts", k, at_least=2, at_most=population) for k in ks})
    ts = (num_steps,) if isinstance(num_steps, int) else num_steps
    ts = sorted({checks.whole("num_steps", t) for t in ts})
    if not ks or not ts:
        raise ValueError("cohorts and num_steps must name at least one each")
    rows: list[SumRow] = []
    infeasible, reasons = [], dict[str, None]()
    for each_steps, cohort in product(ts, ks):
        ways = [DrawnBy.NOBODY] if cohort == population else [DrawnBy.SERVER, DrawnBy.CLIENTS]
        if mechanism == _WINDOWED:
            ways = [DrawnBy.IN_TURN]
        elif mechanism == SUMS[0] and min(population // cohort, each_steps) > 1:
            ways.append(DrawnBy.IN_TURN)
        found: dict[DrawnBy, SumRow] = {}
        for drawn_by in ways:
            try:
                found[drawn_by] = _row(
                    asked,
                    mechanism,
                    drawn_by=drawn_by,
                    cohort=cohort,
                    num_steps=each_steps,
                    momentum=momentum,
                )
            except protocols.TargetUnreachable as error:
                infeasible.append((drawn_by, cohort, each_steps))
                reasons[str(error)] = None
        in_turn, drawn = found.get(DrawnBy.IN_TURN), found.get(DrawnBy.SERVER)
        if in_turn is not None and drawn is not None and drawn.noise_mse <= in_turn.noise_mse:
            del found[DrawnBy.IN_TURN]
        rows += found.values()
    if not rows:
        raise ValueError(
            f"no noise keeps these sums within ε={target_epsilon:g}, δ={delta:g}: {'; '.join(reasons)}. Use "
            "fewer rounds, or a larger ε or δ"
        )
    return SumPlan(**asdict(asked), mechanism=mechanism, rows=tuple(rows), infeasible=tuple(infeasible))


def _row(
    asked: PlanQuestion, mechanism: str, *, drawn_by: DrawnBy, cohort: int, num_steps: int, momentum: float
) -> SumRow:
    kind: Any = {
        protocols.PoissonBinomialSum.name: protocols.PoissonBinomialSum,
        protocols.VectorSum.name: protocols.VectorSum,
    }.get(mechanism)
    n, charged = asked.population, num_steps
    answering, scheme = cohort, Sampling.WITHOUT_REPLACEMENT
    population = participation = None
    windows, left = {}, 1.0
    if drawn_by is DrawnBy.IN_TURN:
        band = n // cohort
        charged = -(-num_steps // band)
        weights = protocols.window_coefficients(rounds=num_steps, band=band, momentum=momentum)
        kind, windows = protocols.WindowedSum, {"coefficients": weights}
        left = math.hypot(*weights) * protocols.prefix_noise(weights, rounds=num_steps, momentum=momentum)
    elif drawn_by is DrawnBy.CLIENTS:
        answering, scheme, participation = n, Sampling.POISSON, cohort / n
    elif asked.adversary is Adversary.SERVER:
        charged = most_rounds(num_steps, share=cohort / n, clients=n)
    else:
        population = n
    built = kind.calibrated(
        dim=asked.dim,
        cohort=answering,
        epsilon=asked.target_epsilon,
        delta=asked.delta,
        num_steps=charged,
        population=population,
        radius=asked.reach,
        participation=participation,
        **windows,
    )
    target = PrivacyTarget(epsilon=asked.target_epsilon, delta=asked.delta, num_steps=charged)
    multiplier = 0.0
    while True:
        each = built.round(population=population, participation=participation, adversary=asked.adversary)
        if multiplier and target.allows(each):
            break
        # The row is read for its noise multiplier. What that builds knows no target, and keeps to it, too.
        multiplier = multiplier * 1.002 if multiplier else 2 * each.noise_multiplier
        built = kind.with_noise(
            dim=asked.dim, cohort=answering, noise_multiplier=multiplier, radius=asked.reach, **windows
        )
    accountant = ShuffleAccountant()
    accountant.step(each, num_steps=charged)
    noise = built.variance_over(num_steps, momentum=momentum) / cohort**2
    sampled = sampling_error(population=n, cohort=cohort, sampling=scheme, spread=asked.spread or 0.0)
    return SumRow(
        drawn_by=drawn_by,
        cohort=cohort,
        answering=answering,
        num_steps=num_steps,
        charged_steps=charged,
        noise_multiplier=multiplier,
        epsilon=accountant.epsilon(asked.delta),
        noise_mse=noise,
        sampling_mse=sampled,
        average_mse=(noise + sampled) / num_steps,
        bits_per_report=built.bits_per_report,
        bits_per_client=num_steps * built.bits_per_report * answering / n,
        noise_left=left,
        **windows,
    )


def most_rounds(num_steps: int, *, share: float, clients: int) -> int:
    """Rounds of the client that is drawn most often: more have a probability of at most a thousandth.

    By a union bound over the clients, of binomial tails: each round draws a ``share`` of them afresh.
    """
    return bisect_left(
        range(num_steps),  # P(Bin(T, share) > T) is 0
        True,
        key=lambda most: clients * float(special.bdtrc(most, num_steps, share)) <= 1e-3,
    )
