"""What a check is given: a mechanism in one setting, records of its domain, and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from shuffle_plugins.auditing.attacks import tells_its_law
from shuffle_plugins.auditing.simulation import AuditedMechanism, estimand
from shuffle_plugins.core import Reports
from shuffle_plugins.mechanisms.base import FrequencyOracle, LocalRandomizer, Norm
from shuffle_plugins.randomness.sources import SeededRandomness

Measured = dict[str, float]
Records = Callable[[AuditedMechanism], Tensor]

LARGEST_Z = 6.0
"""Standard errors that are still luck: once in a billion."""
UNSEEN = 14.0
"""An event of probability 14/n is missed by n draws once in a million times."""
AUDITED = (0.05, 8.0)
"""ε0 at which attacks on a sample of reports tell something."""
CONFIDENCE = 1 - 1e-6
"""Of every attack."""
FLOAT32 = 2e-6
"""Relative error of float32 sums."""
ROUNDING = 1e-9
"""Relative error of probabilities that a mechanism computes in float64."""

_SEEDS_APART = 1 << 20  # no two checks share a seed


class Broken(Exception):
    """A promise is broken; the numbers that show it."""

    def __init__(self, message: str, **measured: float) -> None:
        super().__init__(message)
        self.measured = measured


def require(good: bool, message: str, **measured: float) -> None:
    """Raise :class:`Broken` unless a promise is kept."""
    if not good:
        raise Broken(message, **measured)


class NotApplicable(Exception):
    """A check does not apply to this mechanism or setting; says why."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism, and how it is looked at; fields are as of ``check_mechanism``."""

    mechanism: AuditedMechanism
    seed: int
    samples: int
    variance_is_bound: bool
    records: Records | None

    @property
    def title(self) -> str:
        """ε0 and dimension in words, by which a result names its case."""
        return f"ε0={self.mechanism.local_epsilon:g}, dim={self.mechanism.dim}"

    def source(self, salt: int = 0) -> SeededRandomness:
        """Randomness for the mechanism; another for every salt."""
        return SeededRandomness(self.seed * _SEEDS_APART + salt)

    def generator(self, salt: int = 0) -> torch.Generator:
        """Randomness for the data of a check; another for every salt."""
        return torch.Generator().manual_seed(self.seed * _SEEDS_APART + salt)

    @property
    def ball(self) -> LocalRandomizer:
        """The mechanism, if it takes vectors of a whole ball; else the check does not apply."""
        if not isinstance(self.mechanism, LocalRandomizer):
            raise NotApplicable("it takes categories")
        if self.records is not None:
            raise NotApplicable("its domain is not a whole ball")
        return self.mechanism

    @cached_property
    def extremes(self) -> Tensor:
        """Records far apart, where ε0 is spent, then a few others; (records, dim) float64, or (records,)."""
        mechanism = self.mechanism
        if self.records is not None:
            return self.records(mechanism)
        if isinstance(mechanism, FrequencyOracle):
            return torch.tensor(sorted({0, 1, mechanism.dim // 2, mechanism.dim - 1}))
        boundary = self._boundary
        found = torch.cat([boundary, -boundary, 0.4 * boundary[:3], 0 * boundary[:1]]) + 0.0
        kept = {tuple(row.tolist()): place for place, row in reversed(list(enumerate(found)))}
        return found[sorted(kept.values())]

    @cached_property
    def typical(self) -> Tensor:
        """Three of :attr:`extremes` for checks that sample: one, one far from it, and one in between."""
        if isinstance(self.mechanism, FrequencyOracle) or self.records is not None:
            count = len(self.extremes)
            return self.extremes[sorted({0, count // 2, count - 1})]
        turned, axis = self._boundary[:2]
        return torch.stack([turned, -turned, 0.4 * axis])

    @property
    def _boundary(self) -> Tensor:
        """Rows on the boundary of the ball: turning signs, an axis, the diagonal, and two at random."""
        ball = self.ball
        signs = torch.ones(ball.dim, dtype=torch.float64)
        signs[1::2] = -1
        normal = torch.randn(2, ball.dim, generator=self.generator(1), dtype=torch.float64)
        axis = torch.zeros_like(signs)
        axis[0] = 1
        directions = torch.stack([signs, axis, torch.ones_like(signs), normal[0].sign(), normal[1]])
        return directions * (ball.radius / lengths(directions, ball.norm)).unsqueeze(1)

    def inside(self, clients: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """A batch of records of the domain; one of zeros first, for vectors of a ball."""
        if isinstance(self.mechanism, FrequencyOracle) or self.records is not None:
            drawn = torch.randint(len(self.extremes), (clients,), generator=self.generator(2))
            chosen = self.extremes[drawn]
            return chosen.to(dtype) if chosen.is_floating_point() else chosen
        rows = torch.randn(clients, self.mechanism.dim, generator=self.generator(2), dtype=torch.float64)
        share = torch.linspace(0, 0.999, clients, dtype=torch.float64)
        rows *= (share * self.mechanism.radius / lengths(rows, self.mechanism.norm)).unsqueeze(1)
        return rows.to(dtype)

    def beyond(self, clients: int) -> Tensor:
        """A batch of rows from deep inside the ball to three times its radius."""
        ball = self.ball
        rows = torch.randn(clients, ball.dim, generator=self.generator(3), dtype=torch.float64)
        wanted = torch.linspace(0.2, 3, clients, dtype=torch.float64) * ball.radius
        return rows * (wanted / lengths(rows, ball.norm)).unsqueeze(1)

    @cached_property
    def outcomes(self) -> Reports | None:
        """All reports and none twice, if they are few enough to go through one by one."""
        listed = self.mechanism.outcomes()
        # Reports that are listed one by one.
        return listed if listed is not None and len(listed) <= (1 << 12) else None

    @cached_property
    def outcome_estimates(self) -> Tensor:
        """What each of :attr:`outcomes` stands for, (outcomes, dim) float64."""
        return estimates(self.mechanism, _given(self.outcomes))

    @cached_property
    def law(self) -> Tensor:
        """Probability of each of :attr:`outcomes` (columns) for each of :attr:`extremes` (rows)."""
        return self.log_law(_given(self.outcomes)).exp()

    @cached_property
    def drawn(self) -> tuple[Reports, ...]:
        """``samples`` reports of each of :attr:`typical`."""
        return tuple(
            self.repeated(record, self.samples, salt=100 + i) for i, record in enumerate(self.typical)
        )

    @cached_property
    def drawn_log_law(self) -> Tensor:
        """Log-likelihood of all of :attr:`drawn`, one after another, for each of :attr:`typical`."""
        return torch.cat([self.log_law(reports, records=self.typical) for reports in self.drawn], dim=1)

    @cached_property
    def tells_its_law(self) -> bool:
        """Whether the mechanism has a ``log_likelihood``."""
        return tells_its_law(self.mechanism, self.extremes[0])

    def log_law(self, reports: Reports, *, records: Iterable[Tensor] | None = None) -> Tensor:
        """Log-likelihood of each report (columns) for each record (rows), :attr:`extremes` by default."""
        if not self.tells_its_law:
            raise NotApplicable("it does not tell its law (log_likelihood): only attacks speak of its ε0")
        records = self.extremes if records is None else records
        found = [self.mechanism.log_likelihood(reports, record) for record in records]
        require(
            all(part.shape == (len(reports),) and part.dtype == torch.float64 for part in found),
            f"log_likelihood must return float64 of shape ({len(reports)},), "
            f"got {found[0].dtype} of shape {tuple(found[0].shape)}",
        )
        law = torch.stack(found)
        require(bool((law < float("inf")).all()), "log_likelihood returns NaN or +inf")
        return law

    def repeated(self, record: Tensor, clients: int, *, salt: int) -> Reports:
        """Reports of so many clients who all hold one record."""
        batch = record.unsqueeze(0).repeat(clients, *(1 for _ in record.shape))
        return self.mechanism.randomize(batch, randomness=self.source(salt))

    def means(self, reports: Reports, *, parts: int) -> Tensor:
        """Means of so many equal parts of the reports, (parts, dim) float64."""
        cuts = torch.linspace(0, len(reports), parts + 1).long().tolist()
        found = [self.mechanism.aggregate(reports.narrow(a, b)) for a, b in pairwise(cuts)]
        return torch.stack(found).double()

    def truth(self, record: Tensor) -> Tensor:
        """What a report of a record estimates, (dim,) float64."""
        return estimand(record, dim=self.mechanism.dim)


def estimates(mechanism: AuditedMechanism, reports: Reports) -> Tensor:
    """What each report stands for on its own, (reports, dim) float64."""
    if not len(reports):
        return torch.zeros(0, mechanism.dim, dtype=torch.float64)
    each = [mechanism.sum(reports.narrow(i, i + 1)) for i in range(len(reports))]
    return torch.stack(each).double()


def distinct(reports: Reports) -> tuple[Tensor, Tensor]:
    """The first place of each kind of report, and the kind of each."""
    sent = np.frombuffer(b"".join(reports.each_to_bytes()), dtype=f"V{reports.layout.report_bytes}")
    _, first, kind = np.unique(sent, return_index=True, return_inverse=True)
    return torch.from_numpy(first), torch.from_numpy(kind)


def pick(reports: Reports, places: Tensor) -> Reports:
    """The reports at some places, each once or never."""
    rest = torch.ones(len(reports), dtype=torch.bool)
    rest[places] = False
    order = torch.cat([places, rest.nonzero().squeeze(1)])
    return reports.permute(order).narrow(0, len(places))


def lengths(rows: Tensor, norm: Norm) -> Tensor:
    """Norms of rows, (clients,) float64, taken independently of the mechanism."""
    order = {Norm.L1: 1.0, Norm.L2: 2.0, Norm.LINF: float("inf")}[norm]
    found: Tensor = torch.linalg.vector_norm(rows.double(), ord=order, dim=1)
    return found


def _given(outcomes: Reports | None) -> Reports:
    if outcomes is None:
        raise NotApplicable("it does not list its outcomes")
    return outcomes


def worst_z(errors: Tensor, *, unseen: float = 0.0) -> float:
    """Largest mean of independent errors (draws, dim), in standard errors.

    Rounding to float32 is forgiven, and so are events too rare to be seen, of probability ``unseen``.
    """
    spread = errors.std(dim=0) / len(errors) ** 0.5
    floor = (FLOAT32 + unseen) * max(1.0, float(errors.abs().max()))
    return float((errors.mean(dim=0).abs() / (spread + floor / LARGEST_Z)).max())
