"""Checks of ε0: by enumeration where reports can be listed, by the law a mechanism tells, and by attack."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.auditing import Neighbours, audit_local
from shuffle_plugins.core import Reports
from shuffle_plugins.testing.case import Broken, Case, Measured, NotApplicable, distinct

LARGEST_Z = 6.0
"""Standard errors that are still luck: once in a billion."""

UNSEEN = 14.0
"""An event of probability 14/n is missed by n draws once in a million times."""

AUDITED = (0.05, 8.0)
"""ε0 at which attacks on a sample of reports tell something."""

CONFIDENCE = 1 - 1e-6
"""Of every attack."""

_LARGEST_SURPRISE = 5.5  # standard errors; a sound mechanism exceeds them less than once in 10**7
_SUREST = -10.0  # log-weights are cut here, so that one rare report does not decide
_ROUNDING = 1e-9  # of probabilities that a mechanism computes in float64
_SMALLEST_P = 1e-7  # a sound sampler has a smaller p-value once in ten million checks
_LEAST_EXPECTED = 10.0  # reports per cell that the chi-square law needs
_ONLY_EVIDENCE = 4  # times as many samples where only an attack speaks of ε0
_FEWER = 8  # an eighth of the samples suffices here


def probabilities_sum_to_one(case: Case) -> Measured:
    """The probabilities of all outcomes add up to one for every record, and no outcome is listed twice."""
    if case.mechanism.outcomes() is None:
        raise NotApplicable("it does not list its outcomes")
    if case.outcomes is None:
        raise NotApplicable("it has too many outcomes to go through here")
    first, _ = distinct(case.outcomes)
    if len(first) < len(case.outcomes):
        raise Broken(f"outcomes() lists {len(case.outcomes) - len(first)} reports twice")
    off = float((case.law.sum(dim=1) - 1).abs().max())
    if not off <= _ROUNDING:
        raise Broken("the probabilities of all outcomes do not sum to one", off_by=off)
    return {"off by": off}


def keeps_local_epsilon(case: Case) -> Measured:
    """No report is likelier by more than e^ε0 for one record than for another, but for δ0."""
    mechanism = case.mechanism
    if case.outcomes is None:
        records = torch.cat([case.extremes, case.typical])
        some = [reports.narrow(0, len(reports) // _FEWER) for reports in case.drawn]
        log_law = torch.cat([case.log_law(reports, records=records) for reports in some], dim=1)
    else:
        log_law = case.log_law(case.outcomes)
    possible = log_law.amax(dim=0) > -math.inf
    if case.outcomes is None and not bool(possible.all()):
        raise Broken("log_likelihood calls reports impossible that the mechanism sent")
    if mechanism.local_delta > 0:
        return _within_delta(case, log_law)
    log_law = log_law[:, possible]
    spent = float((log_law.amax(dim=0) - log_law.amin(dim=0)).max())
    if not spent <= mechanism.local_epsilon + _ROUNDING * max(1.0, mechanism.local_epsilon):
        raise Broken("a report tells more than local_epsilon", spent=spent, declared=mechanism.local_epsilon)
    return {"spent": spent, "declared": mechanism.local_epsilon}


def _within_delta(case: Case, log_law: Tensor) -> Measured:
    """δ at ε0 between every two records, exact or estimated from the reports of the first of the two."""
    mechanism = case.mechanism
    worst = slack = 0.0
    if case.outcomes is not None:
        law = log_law.exp()
        over = (law.unsqueeze(1) - math.exp(mechanism.local_epsilon) * law.unsqueeze(0)).clamp(min=0)
        worst = float(over.sum(dim=2).max())
    else:
        parts = log_law.chunk(len(case.typical), dim=1)
        for place, part in enumerate(parts):
            own = part[len(case.extremes) + place]
            lost = (mechanism.local_epsilon + part - own).clamp(max=0).expm1().neg()
            each = lost.mean(dim=1)
            at = int(each.argmax())
            if float(each[at]) > worst:
                worst = float(each[at])
                slack = LARGEST_Z * float(lost[at].std()) / part.shape[1] ** 0.5 + UNSEEN / part.shape[1]
    if not worst - slack <= mechanism.local_delta * (1 + 1e-6) + 1e-15:
        raise Broken("reports leak more than (local_epsilon, local_delta)", delta=worst)
    return {"δ": worst, "declared δ0": mechanism.local_delta}


def sampler_follows_its_law(case: Case) -> Measured:
    """Reports are as frequent as ``log_likelihood`` says: calibration, and chi-square on outcomes."""
    measured = _calibrated(case)
    if case.outcomes is None:
        return measured
    samples = case.samples // _FEWER
    sent = [case.repeated(record, samples, salt=10 + i) for i, record in enumerate(case.extremes)]
    law = torch.cat([case.log_law(case.outcomes, records=case.typical).exp(), case.law])
    p_values = [
        _p_value(case.outcomes, reports, probabilities)
        for reports, probabilities in zip([*case.drawn, *sent], law, strict=True)
    ]
    smallest = min(p_values)
    if smallest < _SMALLEST_P:
        raise Broken("reports are not as frequent as log_likelihood says", p_value=smallest)
    return measured | {"smallest p-value": smallest}


def _p_value(outcomes: Reports, sent: Reports, probabilities: Tensor) -> float:
    first, kind = distinct(_together(outcomes, sent))
    if int(first.max()) >= len(outcomes):
        raise Broken("the mechanism sent a report that outcomes() does not list")
    counts = torch.bincount(first[kind[len(outcomes) :]], minlength=len(outcomes)).double()
    return _chi_square(counts, probabilities * len(sent))


def _together(outcomes: Reports, sent: Reports) -> Reports:
    try:
        return Reports.concat([outcomes, sent])
    except ValueError as error:
        raise Broken(f"outcomes() are not of the layout of what is sent: {error}") from error


def _chi_square(counts: Tensor, expected: Tensor) -> float:
    """p-value of counts; outcomes expected too rarely are put together."""
    rare = expected < _LEAST_EXPECTED
    seen = torch.cat([counts[~rare], counts[rare].sum().reshape(1)])
    wanted = torch.cat([expected[~rare], expected[rare].sum().reshape(1)])
    if float(wanted[-1]) < _LEAST_EXPECTED:
        lucky = float(stats.poisson.sf(float(seen[-1]) - 1, float(wanted[-1]) + 1e-9))
        seen, wanted = seen[:-1], wanted[:-1]
    else:
        lucky = 1.0
    if len(wanted) < 2:
        return lucky
    statistic = float(((seen - wanted).square() / wanted).sum())
    return min(lucky, float(stats.chi2.sf(statistic, len(wanted) - 1)))


def _calibrated(case: Case) -> Measured:
    """Whose report is it? The law's answer is right as often as it claims to be.

    Equally many reports of each of k records are mixed. If the law is right, a report y is that of record b
    with probability w_b(y) = p_b(y)/Σ p, whatever else is known of y. So E[1[b] - w_b(y)] = 0, the identity
    E[p'/p] = 1 in bounded form; E[w_a(y)(1[b] - w_b(y))] = 0 for all a and b; and the mean of
    Σ_b log w_b(y)(1[b] - w_b(y)) is 0, where a law that is too sure or not sure enough shows best.
    """
    log_law = case.drawn_log_law
    count = len(log_law)
    log_weights = log_law - log_law.logsumexp(dim=0)
    weights = log_weights.exp()
    owner = torch.arange(count).repeat_interleave(case.samples)
    surprise = torch.nn.functional.one_hot(owner, count).double().T - weights
    answers = [surprise, *(question * surprise for question in weights)]
    sureness = (surprise * log_weights.clamp(min=_SUREST)).sum(dim=0, keepdim=True)
    worst = max(*(_z(answer) for answer in answers), _z(sureness, largest=-_SUREST))
    if not worst <= _LARGEST_SURPRISE:
        raise Broken("reports do not have the density that log_likelihood tells", standard_errors=worst)
    return {"standard errors": worst}


def _z(answers: Tensor, *, largest: float = 1.0) -> float:
    """Largest mean of a row, in standard errors; what is too rare to be seen is forgiven."""
    count = answers.shape[1]
    spread = answers.std(dim=1) / count**0.5 + largest * UNSEEN / count / _LARGEST_SURPRISE
    return float((answers.mean(dim=1).abs() / spread).max())


def withstands_the_audit(case: Case) -> Measured:
    """An attack on single reports proves no more than ε0; see ``docs/guides/audit.md``."""
    mechanism = case.mechanism
    least, most = AUDITED
    if not least <= mechanism.local_epsilon <= most:
        raise NotApplicable("so small or large an ε0 cannot be told by attacking a sample of reports")
    records = case.typical
    pair = Neighbours(name="extreme records", original=records[0], replacement=records[1], others=records[1:])
    result = audit_local(
        mechanism,
        delta=mechanism.local_delta,
        num_trials=case.samples * (1 if case.tells_its_law else _ONLY_EVIDENCE),
        confidence=CONFIDENCE,
        neighbours=[pair],
        randomness=case.source(40),
    )
    if result.violates(mechanism.local_epsilon):
        raise Broken(f"an attack proves more than local_epsilon: {result}", proved=result.epsilon)
    return {"proved": result.epsilon, "declared": mechanism.local_epsilon}


def can_be_accounted(case: Case) -> Measured:
    """The blanket and the round are those of this ε0, or the mechanism says that it cannot be shuffled."""
    mechanism = case.mechanism
    if not mechanism.shufflable:
        try:
            mechanism.round(population=1000, cohort=100)
        except ValueError:
            return {}
        raise Broken("round must refuse reports that are not shufflable")
    accounted = mechanism.round(population=1000, cohort=100, sampling=Sampling.POISSON)
    if mechanism.local_delta > 0:
        return {}
    if (accounted.local_epsilon, accounted.mechanism) != (mechanism.local_epsilon, mechanism.name):
        raise Broken("shuffle_round is not for this mechanism")
    own = mechanism.blanket()
    if own.local_epsilon != mechanism.local_epsilon:
        raise Broken("the blanket is for another ε0", blanket=own.local_epsilon)
    if not 0 < own.mass <= 1 + _ROUNDING:
        raise Broken("the blanket's mass must be in (0, 1]", mass=own.mass)
    worst_case = 1 / (math.exp(mechanism.local_epsilon) + 1)
    if own.differing > worst_case * (1 + _ROUNDING):
        raise Broken("the blanket tells more than any ε0-LDP mechanism can", differing=own.differing)
    return {"mass": own.mass}
