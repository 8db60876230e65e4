"""Check of the blanket: tiny shuffles leak no more than accounting with it says.

A blanket that hides too much makes ε too small, and nothing that looks at single reports under ε0 sees it. So
one, two and three reports are shuffled, everybody else holding one record, and δ(ε) of the result is compared
with the accountant's for the mechanism's own round: exactly where reports can be listed, by lower bounds from
samples where likelihoods are told, and by attack otherwise. Where there are likelihoods, the blanket
ω = inf_x R_x must also have no more mass than the records tried have in common.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shuffle_plugins.accounting import Sampling, ShuffleAccountant, ShuffleRound
from shuffle_plugins.auditing import Neighbours, audit_round
from shuffle_plugins.testing.case import Broken, Case, Measured, NotApplicable
from shuffle_plugins.testing.privacy import AUDITED, CONFIDENCE, LARGEST_Z, UNSEEN

_SIZES = (1, 2, 3)  # clients in a round; more cannot be enumerated
_SHARES = (0.0, 0.3, 0.6, 0.9)  # of ε0, at which δ is compared
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_ROUNDING = 1e-9  # of probabilities that a mechanism computes in float64
_MOST_TUPLES = 1 << 15  # outcomes of a shuffled round that are enumerated
_MOST_RECORDS = 16  # all pairs of these are tried
_PAIRS_EACH = 2  # pairs of records kept for each ε
_FINEST, _COARSER = 1e-9, 8.0
_LEAST_LOG = -1e4  # stands for the logarithm of zero
_AUDITED_DELTA = 0.01
_MOST_TRIALS = 20_000

Triple = tuple[int, int, int]
"""Places of the differing client's record, of its replacement, and of the record that all others hold."""


def is_covered_by_its_blanket(case: Case) -> Measured:
    """Shuffles of one, two and three reports leak no more than the accountant says of the round."""
    if not case.mechanism.shufflable:
        raise NotApplicable("it cannot be shuffled")
    if not case.tells_its_law:
        return _withstands_the_audit(case)
    listed = case.outcomes is not None
    mass, most = _round(case, 1).effective_blanket.mass, _overlap(case)
    if not mass <= most + _ROUNDING:
        raise Broken("the blanket has more mass than some records have in common", mass=mass, common=most)
    records = case.law[:_MOST_RECORDS] if listed else case.typical
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
            if not delta <= claimed * (1 + _RELATIVE) + _ABSOLUTE:
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
        best = sorted(range(len(triples)), key=lambda place: -column[place])[:_PAIRS_EACH]
        kept.update(dict.fromkeys(triples[place][:2] for place in best))
    return list(kept)


def _round(case: Case, clients: int) -> ShuffleRound:
    return case.mechanism.round(population=clients, cohort=clients, sampling=Sampling.FULL)


def _claims(case: Case, clients: int) -> list[tuple[float, float]]:
    """ε and the δ that the accountant certifies there, for several ε below ε0."""
    accountant = ShuffleAccountant()
    accountant.step(_round(case, clients))
    epsilons = [share * case.mechanism.local_epsilon for share in _SHARES]
    return [(epsilon, accountant.delta(epsilon).upper) for epsilon in epsilons]


@dataclass(frozen=True, kw_only=True)
class _Shuffled:
    """What a shuffle says for one record over another.

    Attributes:
        chances: probability, under the original record, of each possible release; None if they were drawn.
        log_odds: log-likelihood of each under the replacement less that under the original.
    """

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

    Args:
        own: log-likelihood of each report under that client's record, (reports, releases).
        others: likewise under the record of everybody else.
    """
    rows = range(len(own))
    each = [own[i] + sum(others[j] for j in rows if j != i) for i in rows]
    return torch.logsumexp(torch.stack(each), dim=0)


def _listed(case: Case, triple: Triple, clients: int) -> _Shuffled:
    """Likelihoods of every possible release under both neighbours, each order listed by itself."""
    one, two, rest = triple
    needed = [one, two] if clients == 1 else [one, two, rest]
    law = _merged(case.law[needed], most=int(_MOST_TUPLES ** (1 / clients) + 1e-9)).log()
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
    odds = (law / law.amax(dim=0)).log().clamp(min=_LEAST_LOG)
    width = _FINEST
    while True:
        kind = torch.zeros(law.shape[1], dtype=torch.int64)
        for row in (odds / width).round():  # several times faster than the distinct columns at once
            values, place = torch.unique(row, return_inverse=True)
            kind = torch.unique(kind * len(values) + place, return_inverse=True)[1]
        count = int(kind.max()) + 1
        if count <= most:
            return torch.zeros(len(law), count, dtype=law.dtype).index_add_(1, kind, law)
        width *= _COARSER


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


def _withstands_the_audit(case: Case) -> Measured:
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
            num_trials=min(case.samples, _MOST_TRIALS),
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
