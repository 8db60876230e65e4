"""What a shuffled run is told to do, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flwr_shuffle.randomizers import Spec
from flwr_shuffle.server.sampling import ClientSampling, FixedSize
from flwr_shuffle.stages.base import ShuffleStage
from flwr_shuffle.stages.in_memory import InMemoryStage, SummingStage
from shuffle_plugins.accounting import Adversary
from shuffle_plugins.mechanisms import MechanismSpec as MechanismSpec
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.private_sum import PrivateSum
from shuffle_plugins.mechanisms.spec import SumSpec
from shuffle_plugins.shuffler.base import Shuffler
from shuffle_plugins.shuffler.memory import InMemoryShuffler

_FEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Checked settings of a run; the fields are those of :class:`ShuffleStrategy`.

    Raises:
        ValueError: if a field is out of range, or they contradict each other.
    """

    mechanism: Spec
    sampling: ClientSampling
    population: int
    minimum_reports: int | None
    honest_fraction: float
    stage: ShuffleStage
    delta: float
    max_epsilon: float | None
    adversary: Adversary
    connect_timeout: float
    poll_interval: float

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, ClientSampling):
            raise ValueError(
                "sampling must be FixedSize, Poisson or SelfSampling, such as FixedSize(100); got "
                f"{self.sampling!r}"
            )
        if type(self.population) is not int or self.population < _FEWEST:
            raise ValueError(
                f"population is a whole number of clients, at least {_FEWEST}, got {self.population!r}"
            )
        most = self.population
        if isinstance(self.sampling, FixedSize):
            most = self.sampling.cohort
            if most > self.population:
                raise ValueError(
                    f"a cohort of {most} cannot be drawn from a population of {self.population}; wait for "
                    "more clients (population) or draw fewer"
                )
        if self.minimum_reports is not None and (
            type(self.minimum_reports) is not int or not _FEWEST <= self.minimum_reports <= most
        ):
            raise ValueError(
                f"minimum_reports is a whole number from {_FEWEST} to {most}, got {self.minimum_reports!r}"
            )
        share = self.honest_fraction
        if type(share) not in (int, float) or not 0 < share <= 1:
            raise ValueError(f"honest_fraction is a share in (0, 1], got {share!r}")
        if self.mechanism.cohort is not None:
            if share != 1:
                raise ValueError(
                    "the noise of a sum is made for the honest clients among its own: leave honest_fraction "
                    f"out here and build the sum with honest_fraction={share:g}"
                )
            self._check_sum(self.mechanism.cohort)
        elif self.stage.adds_up:
            raise ValueError(
                "this stage adds up multi-message sums; reports of a mechanism are shuffled: give a "
                "MixNodeStage, shuffle_plugins.shuffler.InMemoryShuffler(), or none"
            )
        if self.stage.minimum > (self.minimum_reports or most):
            raise ValueError(
                f"the shuffler refuses less than {self.stage.minimum} reports; a round has at most {most}, "
                f"minimum_reports is {self.minimum_reports}"
            )
        if type(self.delta) not in (int, float) or not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta!r}")
        budget = self.max_epsilon
        if budget is not None and (type(budget) not in (int, float) or not 0 < budget < math.inf):
            raise ValueError(f"max_epsilon is positive and finite, or None, got {budget!r}")
        object.__setattr__(self, "adversary", Adversary(self.adversary))
        for name in ("connect_timeout", "poll_interval"):
            seconds = getattr(self, name)
            if type(seconds) not in (int, float) or not seconds > 0:
                raise ValueError(f"{name} is a positive number of seconds, got {seconds!r}")

    def _check_sum(self, clients: int) -> None:
        if self.max_epsilon is not None and Adversary(self.adversary) is Adversary.LOCAL:
            raise ValueError(
                "a sum protects against nobody who sees each client's share: hold its budget against the "
                "observer or the server"
            )
        if not self.stage.adds_up:
            raise ValueError(
                "a client's share of a multi-message sum hides in everybody's sum alone: a shuffler of "
                "whole reports, such as a mix node, would not protect it. Give shuffler=SummingStage(), or "
                "none, or take a one-message mechanism"
            )
        if not isinstance(self.sampling, FixedSize):
            raise ValueError("the noise of a sum is made by a cohort of known size: use FixedSize sampling")
        if self.sampling.cohort < clients:
            raise ValueError(
                f"the sum's noise is that of {clients} clients, a round invites {self.sampling.cohort}: "
                "invite more, or build the sum for fewer clients"
            )
        if self.minimum_reports not in (None, clients):
            raise ValueError(
                f"the sum is protected by the noise of {clients} clients: leave minimum_reports out, or "
                f"build the sum with cohort={self.minimum_reports}"
            )

    def charged_reports(self, received: int) -> int:
        """The number of reports that a round is charged for: of a sum, those that its noise was made for."""
        return self.fewest_reports if self.mechanism.must_be_summed else received

    @property
    def fewest_reports(self) -> int:
        """Fewest reports with which a round is released: the stage's minimum, if it is the larger one."""
        chosen = self.minimum_reports
        if self.mechanism.cohort is not None:
            chosen = self.mechanism.cohort
        if chosen is None:
            chosen = min(self.population, self.sampling.default_minimum(self.population))
        return max(chosen, self.stage.minimum)


def mechanism_of(
    randomizer: str | MechanismSpec | PrivateSum, *, local_epsilon: float | None, clipping_norm: float | None
) -> Spec:
    """The mechanism that a user named, or the mechanism or sum that they gave.

    Raises:
        ValueError: if a spec is given its numbers again, or a name lacks them or is not a mechanism's.
    """
    if isinstance(randomizer, PrivateSum) and randomizer.must_be_summed:
        if local_epsilon is not None or clipping_norm is not None:
            raise ValueError("a sum has its own noise and radius; leave out both arguments")
        return SumSpec(protocol=randomizer)
    if randomizer in registry.available(registry.Kind.SUMS):
        raise ValueError(
            f"{randomizer!r} needs the number of parameters and its noise: give the sum itself, as "
            "randomizer=VectorSum.calibrated(dim=…, cohort=…, radius=…, epsilon=…, delta=…, num_steps=…, "
            "population=…), or BallSum.calibrated(…)"
        )
    if not isinstance(randomizer, (str, MechanismSpec)):
        raise ValueError(
            "randomizer is a mechanism's name, a MechanismSpec, or a sum of vectors, VectorSum.calibrated(…) "
            f"or BallSum.calibrated(…); got {randomizer!r}"
        )
    registry.summary(randomizer.name if isinstance(randomizer, MechanismSpec) else randomizer)
    if isinstance(randomizer, MechanismSpec):
        if local_epsilon is not None or clipping_norm is not None:
            raise ValueError("a MechanismSpec has its own local_epsilon and radius; leave out both arguments")
        return randomizer
    if local_epsilon is None or clipping_norm is None:
        raise ValueError("with a mechanism's name give local_epsilon and clipping_norm")
    return MechanismSpec(name=randomizer, local_epsilon=local_epsilon, radius=clipping_norm)


def stage_of(shuffler: ShuffleStage | Shuffler | None, *, mechanism: Spec) -> ShuffleStage:
    """The stage that a user gave, one around the shuffler given, or the one in this process that will do.

    Raises:
        ValueError: if it is neither stage nor shuffler.
    """
    if isinstance(shuffler, ShuffleStage):
        return shuffler
    if shuffler is None and mechanism.must_be_summed:
        return SummingStage()
    return InMemoryStage(InMemoryShuffler() if shuffler is None else shuffler)
