"""Rounds in which a client has many records and reports on a few that it draws in secret."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np

from shuffle_plugins.accounting.composition.tags import sampled_instance
from shuffle_plugins.accounting.losses.distribution import (
    PrivacyLossDistribution,
    Resolution,
    profile_losses,
)
from shuffle_plugins.accounting.losses.records import bundled_profile, profile_of
from shuffle_plugins.accounting.numerics.binomial import TAIL, binomial_window
from shuffle_plugins.accounting.numerics.grid import Floats
from shuffle_plugins.accounting.pairs.counts import PairMixture
from shuffle_plugins.accounting.rounds.base import lower_losses, upper_losses
from shuffle_plugins.accounting.rounds.shuffle import ShuffleRound
from shuffle_plugins.accounting.terms import MAX_POPULATION, Adversary, Sampling
from shuffle_plugins.core import checks

_COHORT_BUCKETS = 24  # of a random number of clients; each is charged at its fewest reports
_PROVED_TOGETHER = (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL, Sampling.POISSON, Sampling.SINGLE_PASS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledRecordsRound(ShuffleRound):
    """A shuffled round of clients with m records each, of which a client that takes part reports on s.

    First clients are sampled, as in a :class:`ShuffleRound`. Then each of them draws s of its m records
    uniformly, without replacement and in secret, and sends one randomised report on each. All reports of all
    clients are shuffled together. This is the sampling of CLDP-SGD and, with ``POISSON``, of DSS-SGD.

    Neighbouring relation: replace-one *record* of one client; n and m are public and fixed. A client's whole
    data are m records: before somebody who does not know any of them, use a :class:`ShuffleRound` of clients
    with s·ε0 instead.

    The bound is exact for s = 1: δ(E) = δ₁(1 + m(E − 1))/m, with δ₁ that of the :class:`ShuffleRound` of the
    same clients with one record each. For s > 1 the other reports of a client can give away that it takes
    part, so less is certain (``docs/proofs/accounting.md``, section 2b).

    Attributes:
        local_epsilon: ε0 of one report on one record.
        population: n, the number of clients.
        cohort: k, how many *clients* take part; as of :class:`ShuffleRound`. k·s reports are shuffled.
        records_per_client: m ≥ 1, the number of records that each client has.
        samples_per_client: s in [1, m], the number of records that a client reports on in a round.
        sampling, adversary, mechanism, blanket: as of :class:`ShuffleRound`. With s > 1 reports of one client
            come in one batch, and check-in and epochs are not accounted. Nobody sees which records are drawn,
            not even a server that sees who takes part.
        local_delta: must be 0: (ε0, δ0)-LDP reports are not accounted here.

    Raises:
        ValueError: if a field is out of range, or the fields contradict each other.
    """

    records_per_client: int = 1
    samples_per_client: int = 1

    KIND: ClassVar[str] = "records"
    STORED: ClassVar[tuple[str, ...]] = (
        *ShuffleRound.STORED,
        "records_per_client",
        "samples_per_client",
    )

    def __post_init__(self) -> None:
        ShuffleRound.__post_init__(self)
        records = checks.whole("records_per_client", self.records_per_client)
        samples = self.samples_per_client
        if checks.whole("samples_per_client", samples) > records:
            raise ValueError(
                f"samples_per_client must be at most records_per_client, got {samples} of {records}: a "
                "client reports on a record at most once in a round"
            )
        if self.population * records > MAX_POPULATION:
            raise ValueError(
                f"{self.population} clients of {records} records have more than {MAX_POPULATION} records"
            )
        if self.local_delta:
            raise ValueError(
                "(ε0, δ0) reports are not accounted where a client draws from several records: what replaces "
                "them depends on two records, and here there are more; take a mechanism with δ0 = 0, such as "
                "'privunit-g' or 'laplace', or one record per client"
            )
        if samples > 1 and self.sampling not in _PROVED_TOGETHER:
            raise ValueError(
                f"{self.sampling} sampling is accounted for one report per client and round, got "
                f"samples_per_client={samples}: draw k of n clients (sampling='without-replacement'), or let "
                "each report on one record"
            )

    @classmethod
    def of(cls, clients: ShuffleRound, *, records_per_client: int, samples_per_client: int = 1) -> Self:
        """The same clients, randomizer and adversary, with m records per client and s reports.

        Args:
            clients: the round of clients with one record each.
            records_per_client: m.
            samples_per_client: s.

        Raises:
            ValueError: as the class.
        """
        known = {f.name: getattr(clients, f.name) for f in fields(ShuffleRound)}
        return cls(**known, records_per_client=records_per_client, samples_per_client=samples_per_client)

    @property
    def clients(self) -> ShuffleRound:
        """The round of the same clients with one record and one report each."""
        return ShuffleRound(**{f.name: getattr(self, f.name) for f in fields(ShuffleRound)})

    @property
    def record_rate(self) -> float:
        """s/m, the probability that a client that takes part reports on a given record of its own."""
        return self.samples_per_client / self.records_per_client

    @property
    def pair_name(self) -> str:
        """The name of the dominating pair."""
        return f"{ShuffleRound.pair_name.fget(self)}, records sampled"  # type: ignore[attr-defined]

    @property
    def description(self) -> str:
        """The mechanism, its ε0, and how many records a client reports on."""
        return (
            f"{self.mechanism} with local_epsilon={self.local_epsilon:.6g} on {self.samples_per_client} of "
            f"{self.records_per_client} records of each client"
        )

    # -- losses -------------------------------------------------------------------------------------------

    def dominating_pair(self) -> PairMixture:
        """Refused: the bound is a profile, made of that of the clients' round."""
        raise ValueError("rounds of sampled records have no pair of counts; upper_losses has their losses")

    def instances(self) -> dict[str, PairMixture]:
        """Refused: :meth:`lower_losses` has the losses of the instances."""
        raise ValueError("rounds of sampled records have no pair of counts; lower_losses has their losses")

    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The losses of a pair whose profile is the clients' round's, hidden by the draw of records."""
        profile = self._one_report(resolution) if self.samples_per_client == 1 else self._bundle(resolution)
        return profile_losses(*profile, resolution=resolution, sampling_rate=self.record_rate)

    def _one_report(self, resolution: Resolution) -> tuple[Floats, Floats]:
        return profile_of(upper_losses(self.clients, resolution))

    def _bundle(self, resolution: Resolution) -> tuple[Floats, Floats]:
        """δ of a round in which client 1 sends s reports, of which one is on the changed record."""
        drawn = self._cohorts()
        laws = [upper_losses(self._reports_of(clients), resolution) for clients, _, _ in drawn]
        rates = [rate for _, rate, _ in drawn]
        masses = [mass for _, _, mass in drawn]
        return bundled_profile(laws, rates, masses, reports=self.samples_per_client, lost=TAIL)

    def _reports_of(self, clients: int) -> ShuffleRound:
        """All reports of so many clients, shuffled, one of them on the changed record."""
        reports = clients * self.samples_per_client
        return replace(self.clients, population=reports, cohort=reports, sampling=Sampling.FULL)

    def _cohorts(self) -> list[tuple[int, float, float]]:
        """Clients who take part, the rate at which the changed record's client does, and the probability.

        A random number of clients is public and put into buckets. The fewest clients of a bucket and the
        largest rate cover all of it.
        """
        server = self.adversary is Adversary.SERVER
        if self.sampling is not Sampling.POISSON:
            hidden = self.sampling is Sampling.WITHOUT_REPLACEMENT and not server
            return [(int(self.cohort), self.sampling_rate if hidden else 1.0, 1.0)]
        others = self.population - 1 if server else self.population
        first, law = binomial_window(others, self.sampling_rate)
        edges = np.unique(np.linspace(0, len(law), _COHORT_BUCKETS + 1).astype(np.int64))
        found = []
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            mass = float(law[low:high].sum())
            least, most = first + low, first + high - 1
            if server:
                found.append((1 + least, 1.0, mass))
            elif most > 0:  # where nobody takes part nothing is released
                found.append((max(least, 1), most / self.population, mass))
        return found

    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        """None: the profile is known from above only."""
        return None

    @property
    def resolves_alone(self) -> bool:
        """As of the round that the profile is made of."""
        base = self.clients if self.samples_per_client == 1 else self._reports_of(max(1, int(self.cohort)))
        return base.resolves_alone

    @property
    def lower_families(self) -> tuple[str, ...]:
        """Names of the instances, the one that tells most first."""
        return self._attained.lower_families if self._attained is not None else ()

    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        """The losses of an instance: with s = 1 all other records of the client are x'.

        With more reports all records but the changed one are the same. Then it does not matter whose they
        are, and the round is one of k·s of m·n records.
        """
        if self._attained is None:
            raise ValueError(f"a {type(self).__name__} has no instance {family!r}")
        found = lower_losses(self._attained, family, resolution)
        if self.samples_per_client > 1:
            return found
        return sampled_instance([found], [1], sampling_rate=self.record_rate, resolution=resolution)

    @property
    def _attained(self) -> ShuffleRound | None:
        """The round whose instances bound this one from below; None if there is none."""
        if self.samples_per_client == 1:
            return self.clients
        if self.sampling in (Sampling.POISSON, Sampling.SINGLE_PASS):
            return None
        among = int(self.cohort) if self.adversary is Adversary.SERVER else self.population
        return replace(
            self.clients,
            population=among * self.records_per_client,
            cohort=self.cohort * self.samples_per_client,
            sampling=Sampling.WITHOUT_REPLACEMENT,
            adversary=Adversary.MODEL_OBSERVER,
        )

    def single_bounds(self, delta: float) -> Iterator[tuple[float, str]]:
        """Those of the clients' round, hidden by the draw of one record."""
        if self.samples_per_client > 1 or not delta * self.records_per_client < 1:
            return
        for epsilon, name in self.clients.single_bounds(delta * self.records_per_client):
            sampled = math.log1p(math.expm1(min(epsilon, 600.0)) / self.records_per_client)
            yield sampled * (1 + 1e-12), name
