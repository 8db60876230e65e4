"""Checks of ε0: by enumeration where reports can be listed, by the law a mechanism tells, and by attack.

The blanket is checked by tiny shuffles: a blanket that hides too much makes ε too small, and nothing that
looks at single reports under ε0 sees it. So one, two and three reports are shuffled, everybody else holding
one record, and δ(ε) is compared with the accountant's for the mechanism's own round: exactly where reports
can be listed, by lower bounds from samples where likelihoods are told, and by attack otherwise. Where there
are likelihoods, the blanket ω = inf_x R_x must also have no more mass than the records tried have in common.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from shuffle_plugins.accounting import Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.auditing import Neighbours, audit_local, audit_round
from shuffle_plugins.core import Reports
from shuffle_plugins.testing.case import (
    AUDITED,
    CONFIDENCE,
    LARGEST_Z,
    ROUNDING,
    UNSEEN,
    Broken,
    Case,
    Measured,
    NotApplicable,
    distinct,
    require,
)

_LARGEST_SURPRISE = 5.5  # standard errors; a sound mechanism exceeds them less than once in 10**7
_SUREST = -10.0  # log-weights are cut here, so that one rare report does not decide
_LEAST_EXPECTED = 10.0  # reports per cell that the chi-square law needs
_FEWER = 8  # an eighth of the samples suffices here
_SIZES = (1, 2, 3)  # clients in a round; more cannot be enumerated
_AUDITED_DELTA = 0.01


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
    require(off <= ROUNDING, "the probabilities of all outcomes do not sum to one", off_by=off)
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
    if not spent <= mechanism.local_epsilon + ROUNDING * max(1.0, mechanism.local_epsilon):
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
    if smallest < 1e-7:  # a sound sampler has a smaller p-value once in ten million checks
        raise Broken("reports are not as frequent as log_likelihood says", p_value=smallest)
    return measured | {"smallest p-value": smallest}


def _p_value(outcomes: Reports, sent: Reports, probabilities: Tensor) -> float:
    try:
        together = Reports.concat([outcomes, sent])
    except ValueError as error:
        raise Broken(f"outcomes() are not of the layout of what is sent: {error}") from error
    first, kind = distinct(together)
    require(int(first.max()) < len(outcomes), "the mechanism sent a report that outcomes() does not list")
    counts = torch.bincount(first[kind[len(outcomes) :]], minlength=len(outcomes)).double()
    return _chi_square(counts, probabilities * len(sent))


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
        num_trials=case.samples * (1 if case.tells_its_law else 4),
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
    require(0 < own.mass <= 1 + ROUNDING, "the blanket's mass must be in (0, 1]", mass=own.mass)
    worst_case = 1 / (math.exp(mechanism.local_epsilon) + 1)
    if own.differing > worst_case * (1 + ROUNDING):
        raise Broken("the blanket tells more than any ε0-LDP mechanism can", differing=own.differing)
    return {"mass": own.mass}


# -- the blanket ------------------------------------------------------------------------------------------

Triple = tuple[int, int, int]
"""Places of the differing client's record, of its replacement, and of the record that all others hold."""


def is_covered_by_its_blanket(case: Case) -> Measured:
    """Shuffles of one, two and three reports leak no more than the accountant says of the round."""
    if not case.mechanism.shufflable:
        raise NotApplicable("it cannot be shuffled")
    if not case.tells_its_law:
        return _shuffles_withstand_the_audit(case)
    listed = case.outcomes is not None
    mass, most = _round(case, 1).effective_blanket.mass, _overlap(case)
    if not mass <= most + ROUNDING:
        raise Broken("the blanket has more mass than some records have in common", mass=mass, common=most)
    records = case.law[:16] if listed else case.typical  # all pairs of these are tried
    tightest = 0.0
    triples = [(one, two, one) for one, two in itertools.permutations(range(len(records)), 2)]
    for clients in _SIZES:
        claims = _claims(case, clients)
        found = []
        for triple in triples:
            shuffled = (_listed if listed else _sampled)(case, triple, clients)
            found.append([shuffled.delta(epsilon) for epsilon, _ in claims])
        for place, (epsilon, claimed) in enumerate(claims):
            delta = max((column[place] for column in found), default=0.0)
            if not delta <= claimed * (1 + 1e-9) + 1e-12:
                raise Broken(
                    "a shuffle leaks more than the accountant says: the blanket is too small",
                    reports=clients,
                    epsilon=epsilon,
                    delta=delta,
                    accounted=claimed,
                )
            tightest = max(tightest, delta / claimed if claimed > 0 else 0.0)
        if clients == 1:
            pairs = _telling(triples, found)
            triples = [(one, two, rest) for one, two in pairs for rest in range(len(records))]
    return {"largest share of the accounted δ": tightest, "mass": mass, "common mass": most}


def _overlap(case: Case) -> float:
    """Σ_y min_x R_x(y) over the records tried, or an upper confidence bound: no blanket has more mass."""
    if case.outcomes is not None:
        return float(case.law.amin(dim=0).sum())
    log_law = case.drawn_log_law[:, : case.samples]
    shared = (log_law.amin(dim=0) - log_law[0]).exp()
    return (
        float(shared.mean()) + LARGEST_Z * float(shared.std()) / math.sqrt(len(shared)) + UNSEEN / len(shared)
    )


def _telling(triples: list[Triple], found: list[list[float]]) -> list[tuple[int, int]]:
    """The pairs of records that tell most at each ε, without repeats."""
    kept: dict[tuple[int, int], None] = {}
    for column in zip(*found, strict=True):
        # Pairs of records kept for each ε.
        best = sorted(range(len(triples)), key=lambda place: -column[place])[:2]
        kept.update(dict.fromkeys(triples[place][:2] for place in best))
    return list(kept)


def _round(case: Case, clients: int) -> ShuffleRound:
    return case.mechanism.round(population=clients, cohort=clients, sampling=Sampling.FULL)


def _claims(case: Case, clients: int) -> list[tuple[float, float]]:
    """ε and the δ that the accountant certifies there, for several ε below ε0."""
    accountant = ShuffleAccountant()
    accountant.step(_round(case, clients))
    epsilons = [share * case.mechanism.local_epsilon for share in (0.0, 0.3, 0.6, 0.9)]
    return [(epsilon, accountant.delta(epsilon).upper) for epsilon in epsilons]


@dataclass(frozen=True, kw_only=True)
class _Shuffled:
    """Chances of each release under the original record, None if drawn, and its log-odds under the other."""

    chances: Tensor | None
    log_odds: Tensor

    def delta(self, epsilon: float) -> float:
        """δ(ε) = E[(1 - e^ε·odds)⁺] under the original, or a lower confidence bound of it."""
        lost = (epsilon + self.log_odds).clamp(max=0).expm1().neg()
        if self.chances is not None:
            return float((self.chances * lost).sum())
        slack = LARGEST_Z * float(lost.std()) / math.sqrt(len(lost)) + UNSEEN / len(lost) * float(lost.max())
        return max(float(lost.mean()) - slack, 0.0)


def _log_shuffled(own: Tensor, others: Tensor) -> Tensor:
    """Log-likelihood of a shuffled release, up to 1/n: any of its reports may be the differing client's.

    From those of each report under that client's record and under everybody else's, (reports, releases).
    """
    rows = range(len(own))
    each = [own[i] + sum(others[j] for j in rows if j != i) for i in rows]
    return torch.logsumexp(torch.stack(each), dim=0)


def _listed(case: Case, triple: Triple, clients: int) -> _Shuffled:
    """Likelihoods of every possible release under both neighbours, each order listed by itself."""
    one, two, rest = triple
    needed = [one, two] if clients == 1 else [one, two, rest]
    # Outcomes of a shuffled round that are enumerated.
    law = _merged(case.law[needed], most=int((1 << 15) ** (1 / clients) + 1e-9)).log()
    releases = torch.cartesian_prod(*(torch.arange(law.shape[1]) for _ in range(clients)))
    releases = releases.reshape(-1, clients).T
    original = _log_shuffled(law[0][releases], law[-1][releases])
    replaced = _log_shuffled(law[1][releases], law[-1][releases])
    possible = original > -math.inf
    original, replaced = original[possible], replaced[possible]
    return _Shuffled(chances=original.exp() / clients, log_odds=replaced - original)


def _merged(law: Tensor, *, most: int) -> Tensor:
    """Reports of equal odds between all records put together, (records, kinds).

    It loses nothing if the odds are equal and, as it is done to what is released, only ever makes δ smaller
    if they are not: beyond ``most`` kinds, reports of similar odds are merged too.
    """
    law = law[:, law.amax(dim=0) > 0]
    if law.shape[1] <= most:
        return law
    odds = (law / law.amax(dim=0)).log().clamp(min=-1e4)  # stands for the logarithm of zero
    width = 1e-9
    while True:
        kind = torch.zeros(law.shape[1], dtype=torch.int64)
        for row in (odds / width).round():  # several times faster than the distinct columns at once
            values, place = torch.unique(row, return_inverse=True)
            kind = torch.unique(kind * len(values) + place, return_inverse=True)[1]
        count = int(kind.max()) + 1
        if count <= most:
            return torch.zeros(len(law), count, dtype=law.dtype).index_add_(1, kind, law)
        width *= 8


def _sampled(case: Case, triple: Triple, clients: int) -> _Shuffled:
    """Releases drawn with the original record; no report is drawn into two of them."""
    one, two, rest = triple
    size = case.samples // clients
    law = case.drawn_log_law.reshape(len(case.typical), len(case.typical), case.samples)
    owners = [one] + [rest] * (clients - 1)
    releases = torch.stack(
        [law[:, owner, i * size : (i + 1) * size] for i, owner in enumerate(owners)], dim=1
    )
    original = _log_shuffled(releases[one], releases[rest])
    if not bool(original.isfinite().all()):
        raise Broken("log_likelihood calls reports impossible that the mechanism sent")
    replaced = _log_shuffled(releases[two], releases[rest])
    return _Shuffled(chances=None, log_odds=replaced - original)


def _shuffles_withstand_the_audit(case: Case) -> Measured:
    """An attack on such shuffles proves no more than the accountant's ε."""
    mechanism = case.mechanism
    least, most = AUDITED
    if not least <= mechanism.local_epsilon <= most:
        raise NotApplicable("it does not tell its law, and at so small or large an ε0 attacks tell little")
    records = case.typical
    proved = 0.0
    for clients in _SIZES:
        accountant = ShuffleAccountant()
        accountant.step(_round(case, clients))
        result = audit_round(
            mechanism,
            _round(case, clients),
            delta=_AUDITED_DELTA,
            num_trials=min(case.samples, 20_000),
            confidence=CONFIDENCE,
            neighbours=[
                Neighbours(
                    name=f"extreme records, everybody else at record {place}",
                    original=records[0],
                    replacement=records[1],
                    others=records[place : place + 1],
                )
                for place in range(len(records) if clients > 1 else 1)
            ],
            randomness=case.source(40 + clients),
        )
        certified = accountant.epsilon(_AUDITED_DELTA, lower=False).upper
        if result.violates(certified):
            raise Broken(
                f"an attack proves more than the accountant says, so the blanket is too small: {result}",
                reports=clients,
                proved=result.epsilon,
                accounted=certified,
            )
        proved = max(proved, result.epsilon)
    return {"proved": proved}
