"""Rounds in which each client has several records, and reports on a few that it draws in secret."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting.composition.sampled import sampled_instance
from shuffle_plugins.accounting.losses import (
    PrivacyLossDistribution,
    Resolution,
    bundled_profile,
    finite_losses,
    profile_losses,
    profile_of,
    tighter,
    together_profile,
)
from shuffle_plugins.accounting.numerics.sums import TAIL, Floats, binomial_window
from shuffle_plugins.accounting.pairs.gaussian_reports import gaussian_instance_losses, gaussian_round_profile
from shuffle_plugins.accounting.pairs.reports import Atoms, Blanket, most_telling
from shuffle_plugins.accounting.pairs.shuffle import PairMixture, alike_atoms
from shuffle_plugins.accounting.pairs.slots import bundle_losses_from_below
from shuffle_plugins.accounting.rounds.round import (
    Round,
    ShuffleRound,
    lower_families,
    lower_losses,
    upper_losses,
)
from shuffle_plugins.accounting.terms import MAX_POPULATION, Adversary, Sampling, Unit
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Count, Flag, LocalEpsilon, NotNegative, Positive

_OBSERVER = Adversary.MODEL_OBSERVER


def _fields_of(each: Round) -> dict[str, Any]:
    """What a :class:`ShuffleRound` and another kind of round have in common."""
    return {field.name: getattr(each, field.name) for field in fields(ShuffleRound)}


@dataclass(frozen=True, kw_only=True)
class SampledRecordsRound(ShuffleRound):
    """A shuffled round of clients with m records each; a client that takes part reports on s of its records.

    Clients are sampled as in a :class:`ShuffleRound`. Each draws s of its m records uniformly, without
    replacement and in secret even from the server, and sends one report on each; all are shuffled together.
    CLDP-SGD and, with ``POISSON``, DSS-SGD sample in this way.

    Neighbouring relation: replace-one *record* of one client, n and m public. To protect all records of a
    client together, use a :class:`SeveralReportsRound`.

    For s = 1, δ(E) = δ₁(1 + m(E − 1))/m exactly, with E = e^ε and δ₁ that of the same clients with one record
    each. For s > 1 a client's other reports can show that it takes part, so sampling hides less
    (``docs/proofs/accounting.md``, section 2b).

    Attributes:
        cohort: k, how many *clients* take part. k·s reports are shuffled.
        records_per_client: m ≥ 1.
        samples_per_client: s in [1, m]; 1 under ``CHECK_IN`` and ``EPOCH``.
        local_delta: must be 0.
    """

    records_per_client: Count = 1
    samples_per_client: Count = 1

    KIND: ClassVar[str] = "records"
    UNIT: ClassVar[Unit] = Unit.RECORD

    def __post_init__(self) -> None:
        super().__post_init__()
        records, samples = self.records_per_client, self.samples_per_client
        if samples > records:
            raise ValueError(
                f"samples_per_client must be at most records_per_client, got {samples} of {records}: a "
                "client reports on a record at most once in a round. records_per_client is 1 unless given"
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
        if samples > 1 and self.sampling in (Sampling.CHECK_IN, Sampling.EPOCH):
            raise ValueError(
                f"{self.sampling} sampling is accounted for one report per client and round, got "
                f"samples_per_client={samples}: draw k of n clients (sampling='without-replacement'), or let "
                "each report on one record"
            )

    @classmethod
    def of(cls, clients: ShuffleRound, *, records_per_client: int, samples_per_client: int = 1) -> Self:
        """A round of the same clients, with m records and s reports each."""
        return cls(
            **_fields_of(clients),
            records_per_client=records_per_client,
            samples_per_client=samples_per_client,
        )

    @property
    def clients(self) -> ShuffleRound:
        """The round of the same clients with one record and one report each."""
        return ShuffleRound(**_fields_of(self))

    @property
    @override
    def pair_name(self) -> str:
        return f"{super().pair_name}, records sampled"

    @property
    @override
    def description(self) -> str:
        return (
            f"{self.mechanism} with local_epsilon={self.local_epsilon:.6g} on {self.samples_per_client} of "
            f"{self.records_per_client} records of each client"
        )

    @property
    @override
    def secrecy(self) -> str:
        return f"{super().secrecy}; nobody, the server included, may see which of its records a client draws"

    # -- losses -------------------------------------------------------------------------------------------

    @override
    def dominating_pair(self) -> PairMixture:
        raise ValueError("rounds of sampled records have no pair of counts; upper_losses has their losses")

    @override
    def instances(self) -> dict[str, PairMixture]:
        raise ValueError("rounds of sampled records have no pair of counts; lower_losses has their losses")

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        if self.samples_per_client == 1:
            profile = profile_of(upper_losses(self.clients, resolution))
        else:  # one of a client's s reports is on the changed record
            clients, rates, masses = zip(*self._cohorts(), strict=True)
            laws = [upper_losses(self._reports_of(each), resolution) for each in clients]
            profile = bundled_profile(laws, rates, masses, reports=self.samples_per_client, lost=TAIL)
        return profile_losses(*profile, resolution=resolution, sampling_rate=self._record_rate)

    @property
    def _record_rate(self) -> float:
        return self.samples_per_client / self.records_per_client

    def _reports_of(self, clients: int) -> ShuffleRound:
        reports = clients * self.samples_per_client
        return replace(self.clients, population=reports, cohort=reports, sampling=Sampling.FULL)

    def _cohorts(self) -> list[tuple[int, float, float]]:
        """How many clients may take part, the chance that the changed record's is among them, and the case's.

        Under Poisson sampling the number is random and public. Its values are grouped: the smallest number
        and the largest rate of a group cost at least as much as any of them.
        """
        server = self.adversary is Adversary.SERVER
        if self.sampling is not Sampling.POISSON:
            hidden = self.sampling is Sampling.WITHOUT_REPLACEMENT and not server
            return [(int(self.cohort), self.sampling_rate if hidden else 1.0, 1.0)]
        others = self.population - 1 if server else self.population
        first, law = binomial_window(others, self.sampling_rate)
        edges = np.unique(np.linspace(0, len(law), 25).astype(np.int64))
        found = []
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            mass = float(law[low:high].sum())
            least, most = first + low, first + high - 1
            if server:
                found.append((1 + least, 1.0, mass))
            elif most > 0:  # where nobody takes part nothing is released
                found.append((max(least, 1), most / self.population, mass))
        return found

    @override
    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        return None

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        return self._attained.lower_families if self._attained is not None else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """The changed record is x or x'. For s = 1 all other records of its client are x'.

        For s > 1 all other records of all clients are: the round is one that draws k·s of m·n records.
        """
        if self._attained is None:
            raise ValueError(f"a {type(self).__name__} has no instance {family!r}")
        if self.samples_per_client > 1:
            return lower_losses(self._attained, family, resolution, exchanged=exchanged)
        if exchanged:
            return lower_losses(self, family, resolution).reversed()
        found = lower_losses(self._attained, family, resolution)
        return sampled_instance([found], [1], sampling_rate=self._record_rate, resolution=resolution)

    @property
    def _attained(self) -> ShuffleRound | None:
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
            adversary=_OBSERVER,
        )


@dataclass(frozen=True, kw_only=True)
class SeveralReportsRound(Round):
    """A round in which each client sends several randomised reports, and all reports are shuffled together.

    Neighbouring relation: replace-one *client*, so that all of its reports change.
    :class:`SampledRecordsRound` is for neighbours that differ in one record.

    The bound: with δ₁ that of one report changed among all k·s, and γ = k/n, δ at E = e^ε is at most
    γ·δ₂(1 + (E − 1)/γ), where δ₂(E) = δ₁(E^(1/s))·(E − 1)/(E^(1/s) − 1) (``docs/proofs/accounting.md``,
    section 2b, Claim 9). From below, all reports of everybody else are about one record, and all of client
    1's about x or x'; the sum of their scores has an exact law (``docs/proofs/noise.md``, section 7).

    Attributes:
        report_epsilon: ε0 of one report in nats.
        reports_per_client: s ≥ 1, how many reports a client that takes part sends.
        cohort: k, how many *clients* take part; k·s reports are shuffled.
        mechanism, blanket, channel_fixed: as of :class:`ShuffleRound`.
    """

    cohort: int
    report_epsilon: LocalEpsilon
    reports_per_client: Count
    mechanism: str = "generic"
    blanket: Blanket | None = None
    channel_fixed: Flag = False

    KIND: ClassVar[str] = "several-reports"
    SELF_SAMPLED: ClassVar[bool] = True
    seen = ShuffleRound.seen

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort * self.reports_per_client > MAX_POPULATION:
            raise ValueError(
                f"{self.cohort} clients of {self.reports_per_client} reports send more than {MAX_POPULATION}"
            )
        _ = self.report  # checks the blanket

    @classmethod
    def of(cls, clients: ShuffleRound, *, reports_per_client: int) -> Self:
        """A round of the same clients in which each sends s reports."""
        if clients.local_delta:
            raise ValueError(
                "(ε0, δ0) reports are not accounted where a client sends several: take a mechanism with "
                "δ0 = 0, such as 'privunit-g' or 'laplace', or one report per client"
            )
        known = _fields_of(clients) | {"cohort": int(clients.cohort)}
        del known["local_delta"]
        return cls(report_epsilon=known.pop("local_epsilon"), reports_per_client=reports_per_client, **known)

    @property
    def report(self) -> ShuffleRound:
        """The round of all reports, as if each came from a client of its own."""
        reports = self.cohort * self.reports_per_client
        known = _fields_of(self) | {"population": reports, "cohort": reports, "sampling": Sampling.FULL}
        return ShuffleRound(**known | {"local_epsilon": self.report_epsilon, "adversary": _OBSERVER})

    def records(self, *, records_per_client: int) -> SampledRecordsRound:
        """The same round, for neighbours that differ in one of the m records that a client draws s of."""
        clients = ShuffleRound(**_fields_of(self) | {"local_epsilon": self.report_epsilon})
        return SampledRecordsRound.of(
            clients, records_per_client=records_per_client, samples_per_client=self.reports_per_client
        )

    @property
    @override
    def local_epsilon(self) -> float:
        return self.reports_per_client * self.report_epsilon

    @property
    @override
    def own_delta(self) -> float:
        return min(1.0, self.reports_per_client * self.report.own_delta)

    @property
    @override
    def pair_name(self) -> str:
        return f"{self.report.pair_name}, all reports of a client"

    @property
    @override
    def description(self) -> str:
        return f"{self.reports_per_client} reports per client of {self.report.description}"

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        profile = together_profile(upper_losses(self.report, resolution), reports=self.reports_per_client)
        return profile_losses(*profile, resolution=resolution, sampling_rate=self.sampling_rate)

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        name = f"{self.mechanism} instance, all others alike, all reports of a client"
        return (name,) if self._told() else ()

    def _told(self) -> Atoms | None:
        """What one report tells, everybody else's being about the one record that tells most."""
        found = alike_atoms(self.report.effective_blanket, mechanism=self.mechanism)
        return most_telling(found.values()) if found else None

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        told = self._told()
        if told is None:
            raise ValueError(f"a {type(self).__name__} of {self.mechanism} has no instance")
        try:
            loss, p, q = bundle_losses_from_below(
                atoms=tuple((v, u, mass) for u, v, mass in told) if exchanged else told,
                slots=self.cohort * self.reports_per_client,
                changed=self.reports_per_client,
                participation=self.sampling_rate,
            )
        except ArithmeticError:
            # Too many reports, or too telling ones: client 1's others are about what everybody else's are.
            one = self.report
            if self.sampling_rate < 1:
                population = self.population * self.reports_per_client
                if population > MAX_POPULATION:
                    raise ArithmeticError(f"{population} reports are too many for a lower bound") from None
                one = replace(one, population=population, sampling=Sampling.WITHOUT_REPLACEMENT)
            return lower_losses(one, lower_families(one)[0], resolution, exchanged=exchanged)
        return finite_losses(loss, p, q, missing=0.0, kind="lower", resolution=resolution, symmetric=False)

    @classmethod
    @override
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        return ShuffleRound.fields_from_state(saved)


@dataclass(frozen=True, kw_only=True)
class GaussianReportsRound(ShuffleRound):
    """A shuffled round of reports that are a vector of an l2 ball plus N(0, σ²) on every coordinate.

    The reports' likelihoods are used, in any dimension. Their δ0 is charged only where that says nothing: in
    epochs and check-ins, without ``channel_fixed``, in rounds of few reports, and for little noise. Those are
    accounted as a :class:`ShuffleRound` of (ε0, δ0) reports (``docs/proofs/noise.md``, section 6).

    Attributes:
        mechanism, blanket: of reports of one number, which need no δ0: the smaller of both bounds is taken.
        radius: of the ball of records over σ, the noise's standard deviation.
        attained: in the same unit, the length of two opposite records that clients may really hold: it makes
            the lower bound. 0 if none are known.
    """

    radius: Positive = field()
    attained: NotNegative = 0.0

    KIND: ClassVar[str] = "gaussian-reports"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.number("attained", self.attained, at_most=self.radius)
        if self.blanket is None and self.mechanism != "generic":
            raise ValueError(
                "a GaussianReportsRound without a blanket has its radius over σ and no mechanism: omit it"
            )

    @property
    @override
    def comparable(self) -> tuple[Any, ...] | None:
        if type(self) is not GaussianReportsRound:
            return None
        own = () if self.blanket is None else (self.mechanism, self.blanket.state())
        return self.KIND, (self.radius, self.attained, self.channel_fixed, *own)

    @property
    @override
    def description(self) -> str:
        return f"Gaussian reports with σ = {1 / self.radius:.6g} times the radius"

    @property
    @override
    def pair_name(self) -> str:
        plain = super().pair_name
        if self._profile() is None:
            return plain
        return "Gaussian reports" if self.blanket is None else f"Gaussian reports and {plain}"

    @property
    @override
    def replacement_distance(self) -> float:
        if self._profile() is not None:
            return 0.0
        return super().replacement_distance

    @override
    def instances(self) -> dict[str, PairMixture]:
        return {} if self.blanket is None else super().instances()

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        profile = self._profile()
        if profile is None:
            return super().upper_losses(resolution)
        found = profile_losses(*profile, resolution=resolution)
        if self.blanket is None:
            return found
        return tighter(super().upper_losses(resolution), found)

    @override
    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        if self._profile() is None:
            return super().upper_losses_from_below(resolution)
        return None

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        if self.blanket is not None:
            return super().lower_families
        without = (Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH)
        return ("sum of Gaussian reports",) if self.attained > 0 and self.sampling not in without else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        if self.blanket is not None:
            return super().lower_losses(family, resolution, exchanged=exchanged)
        if exchanged:
            return lower_losses(self, family, resolution).reversed()
        return gaussian_instance_losses(radius=self.attained, draw=self, resolution=resolution)

    @property
    @override
    def remedy(self) -> str:
        if self._profile() is not None:
            return ""
        return f"{self.description} hide each other in larger cohorts, or with more noise"

    def _profile(self) -> tuple[Floats, Floats] | None:
        # Beyond four σ reports have next to nothing in common.
        if self.spans_batches or not self.channel_fixed or self.radius > 4:
            return None
        return gaussian_round_profile(
            radius=self.radius,
            population=self.population,
            cohort=self.cohort,
            # before a server an epoch is one batch
            sampling=Sampling.FULL if self.sampling is Sampling.EPOCH else self.sampling,
            sees_cohort=self.sees_cohort,
        )
