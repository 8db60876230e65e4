"""The settings of a shuffled run, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from flwr_shuffle.evaluation import PrivateEvaluation
from flwr_shuffle.grids import Waiting
from flwr_shuffle.server.sampling import FEWEST_REPORTS, ClientSampling, FixedSize, SelfSampling
from flwr_shuffle.stages.stage import InMemoryStage, ShuffleStage, SummingStage
from flwr_shuffle.updates import Updates
from flwr_shuffle.wire import of_kind
from shuffle_plugins.accounting import Adversary
from shuffle_plugins.core import checks
from shuffle_plugins.core.ranges import Delta, Positive, Ranged, one_of, whole_number
from shuffle_plugins.mechanisms import Kind, PrivateSum, SumSpec, available, summary
from shuffle_plugins.mechanisms import MechanismSpec as MechanismSpec
from shuffle_plugins.mechanisms.spec import Spec
from shuffle_plugins.shuffler import InMemoryShuffler, Shuffler


def _evaluation(name: str, value: object) -> object:
    if not isinstance(value, PrivateEvaluation) and value not in (None, "raw"):
        raise ValueError(f'{name} is a PrivateEvaluation, "raw" or None, got {value!r}')
    return value


@dataclass(frozen=True, kw_only=True)
class Settings(Ranged):
    """Checked settings of a run; the fields are those of :class:`ShuffleStrategy`."""

    mechanism: Spec
    sampling: Annotated[
        ClientSampling, of_kind(ClientSampling, "FixedSize, Poisson or SelfSampling, such as FixedSize(100)")
    ]
    population: Annotated[int, whole_number(at_least=FEWEST_REPORTS)]
    minimum_reports: Annotated[int, whole_number(at_least=FEWEST_REPORTS)] | None
    stage: ShuffleStage
    delta: Delta
    max_epsilon: Positive | None
    adversary: Annotated[Adversary, one_of(Adversary)]
    updates: Annotated[Updates, of_kind(Updates, "Updates(…)")]
    waiting: Annotated[Waiting, of_kind(Waiting, "Waiting(…)")]
    evaluation: Annotated[PrivateEvaluation | Literal["raw"] | None, _evaluation]

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.population
        if isinstance(self.sampling, FixedSize):
            most = self.sampling.cohort
            if most > self.population:
                raise ValueError(
                    f"a cohort of {most} cannot be drawn from a population of {self.population}; wait for "
                    "more clients (population) or draw fewer"
                )
        if (self.minimum_reports or 0) > most:
            raise ValueError(
                f"minimum_reports is {self.minimum_reports}, and a round has at most {most} reports"
            )
        share = checks.number("honest_fraction", self.sampling.honest_fraction, above=0, at_most=1)
        self._check_records()
        if self.mechanism.cohort is not None:
            if share != 1:
                raise ValueError(
                    "the noise of a sum is made for the honest clients among its own: leave honest_fraction "
                    f"out of the sampling and build the sum with honest_fraction={share:g}"
                )
            self._check_sum(self.mechanism.cohort)
        elif self.stage.adds_up:
            raise ValueError(
                "this stage adds up multi-message sums; reports of a mechanism are shuffled: give a "
                "MixNodeStage, shuffle_plugins.shuffler.InMemoryShuffler(), or none"
            )
        if self.stage.minimum > (self.minimum_reports or most):
            raise ValueError(
                f"the shuffler refuses less than {self.stage.minimum} reports, and a round has at most "
                f"{most} (minimum_reports={self.minimum_reports}): invite more clients, or "
                "lower the stage's minimum"
            )
        if isinstance(self.evaluation, PrivateEvaluation):
            self.spec_of(self.evaluation)  # refuses before the run what the stage does not take

    def _check_records(self) -> None:
        """Refuse rounds of several records or reports per client that are not accounted."""
        if self.updates.records_per_client > 1 and self.mechanism.must_be_summed:
            raise ValueError(
                "the draw of records is not accounted for sums, whose reports hide in each other: take a "
                "one-message mechanism, or leave records_per_client out"
            )
        if self.updates.samples_per_client == 1:
            return
        if not self.stage.takes_several:
            raise ValueError(
                "this stage does not take several reports of a client apart: use a MixNodeStage with a "
                "single mixer, a shuffler in this process, or samples_per_client=1"
            )
        if isinstance(self.sampling, SelfSampling) and self.sampling.honest_fraction < 1:
            raise ValueError(
                "with samples_per_client > 1 and self-sampling no bound is known for honest_fraction < 1: "
                "use FixedSize or Poisson, or samples_per_client=1"
            )

    def _check_sum(self, clients: int) -> None:
        """Refuse what contradicts a sum whose noise is made by so many clients."""
        if self.max_epsilon is not None and self.adversary is Adversary.LOCAL:
            raise ValueError(
                "a sum protects against nobody who sees each client's share: hold its budget against the "
                "observer or the server"
            )
        if not self.stage.adds_up:
            raise ValueError(
                "a client's share of a multi-message sum hides in everybody's sum alone: a shuffler of "
                "whole reports, such as a mix node, would not protect it. Give shuffler=SharedSumStage(…), "
                "by which nobody sees a share, or SummingStage(), where the server is trusted, or take a "
                "one-message mechanism"
            )
        if isinstance(self.sampling, SelfSampling) and isinstance(self.mechanism, SumSpec):
            if self.population < clients:
                raise ValueError(
                    f"the sum's noise is that of {clients} clients, a round invites {self.population} "
                    "(population): wait for more, or build the sum for fewer clients"
                )
            # Refuse a sum of which nothing is known before the run, not in its first round.
            self.mechanism.protocol.secret_round(answered=clients, participation=self.sampling.rate)
        elif not isinstance(self.sampling, FixedSize):
            raise ValueError(
                "the noise of a sum is made by clients whose number is known: use FixedSize sampling, or "
                "SelfSampling, with which all who answer add noise"
            )
        elif self.sampling.cohort < clients:
            raise ValueError(
                f"the sum's noise is that of {clients} clients, a round invites {self.sampling.cohort}: "
                "invite more, or build the sum for fewer clients"
            )
        if self.minimum_reports not in (None, clients):
            raise ValueError(
                f"the sum is protected by the noise of {clients} clients: leave minimum_reports out, or "
                f"build the sum with cohort={self.minimum_reports}"
            )

    def spec_of(self, evaluation: PrivateEvaluation) -> Spec:
        """The mechanism of an evaluation's reports; ValueError if the stage does not take them."""
        if evaluation.local_epsilon is not None and self.mechanism.must_be_summed:
            raise ValueError(
                "clients that agree to sums send no single reports of metrics: give "
                "PrivateEvaluation(noise_multiplier=…) in place of local_epsilon"
            )
        if evaluation.noise_multiplier is not None and not self.mechanism.must_be_summed:
            raise ValueError(
                "metrics are added up beside a sum alone: give PrivateEvaluation(local_epsilon=…) in place "
                "of noise_multiplier"
            )
        honest = getattr(getattr(self.mechanism, "protocol", None), "honest_fraction", 1.0)
        spec = evaluation.spec(cohort=self.fewest_reports, honest_fraction=honest)
        if isinstance(self.sampling, SelfSampling) and isinstance(spec, SumSpec):
            spec.protocol.secret_round(answered=self.fewest_reports, participation=self.sampling.rate)
        return spec

    @property
    def fewest_reports(self) -> int:
        """Fewest reports with which a round is released; at least the stage's minimum."""
        chosen = self.mechanism.cohort or self.minimum_reports
        if chosen is None:
            chosen = min(self.population, self.sampling.default_minimum(self.population))
        return max(chosen, self.stage.minimum)


def mechanism_of(
    randomizer: str | MechanismSpec | PrivateSum, *, local_epsilon: float | None, clipping_norm: float | None
) -> Spec:
    """The spec of the mechanism that a user named or gave."""
    if isinstance(randomizer, PrivateSum) and randomizer.must_be_summed:
        if local_epsilon is not None or clipping_norm is not None:
            raise ValueError("a sum has its own noise and radius; leave out both arguments")
        return SumSpec(protocol=randomizer)
    if randomizer in available(Kind.SUMS):
        raise ValueError(
            f"{randomizer!r} needs the number of parameters and its noise: give the sum itself, as "
            "randomizer=VectorSum.calibrated(dim=…, cohort=…, radius=…, epsilon=…, delta=…, num_steps=…, "
            "population=…), or BallSum.calibrated(…)"
        )
    if not isinstance(randomizer, (str, MechanismSpec)):
        raise ValueError(
            "randomizer is a mechanism's name, a MechanismSpec, or a sum of vectors such as "
            f"VectorSum.calibrated(…) or BallSum.calibrated(…); got {randomizer!r}"
        )
    summary(randomizer.name if isinstance(randomizer, MechanismSpec) else randomizer)
    if isinstance(randomizer, MechanismSpec):
        if local_epsilon is not None or clipping_norm is not None:
            raise ValueError("a MechanismSpec has its own local_epsilon and radius; leave out both arguments")
        return randomizer
    if local_epsilon is None or clipping_norm is None:
        raise ValueError("with a mechanism's name give local_epsilon and clipping_norm")
    return MechanismSpec(name=randomizer, local_epsilon=local_epsilon, radius=clipping_norm)


def stage_of(shuffler: ShuffleStage | Shuffler | None, *, mechanism: Spec) -> ShuffleStage:
    """The stage that a user gave, or one in this process, around the shuffler given or as reports need it."""
    if isinstance(shuffler, ShuffleStage):
        return shuffler
    if shuffler is not None:
        return InMemoryStage(shuffler)
    return SummingStage() if mechanism.must_be_summed else InMemoryStage(InMemoryShuffler())
