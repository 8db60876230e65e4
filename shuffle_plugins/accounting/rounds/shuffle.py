"""What one kind of round is: who takes part, how each report is randomised, who watches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Annotated, Any, ClassVar

from typing_extensions import override

from shuffle_plugins.accounting.losses.distribution import (
    BoundKind,
    PrivacyLossDistribution,
    Resolution,
    tighter,
)
from shuffle_plugins.accounting.pairs.reports import Blanket, Form
from shuffle_plugins.accounting.pairs.shuffle import (
    PairMixture,
    lower_pairs,
    mixed,
    pair_losses,
    upper_pair,
    upper_pairs,
)
from shuffle_plugins.accounting.pairs.slots import SlotPair, few_outcomes
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import Adversary, Sampling
from shuffle_plugins.core import Flag, LocalEpsilon, in_range, one_of


@dataclass(frozen=True, kw_only=True)
class ShuffleRound(Round):
    """A round in which each client sends one randomised report, and the reports are shuffled.

    Attributes:
        local_epsilon: ε0 of every client's report in nats, spent once per participating client and round.
        cohort: k, the number of reports shuffled together. Under Poisson sampling it is the expected number,
            γ·n, and need not be whole. Under full participation it equals ``population``. Under a single pass
            it is the size of the smallest batch, and one step of the accountant is one whole pass. Under
            check-in it is the expected number of reports in a round, population over rounds, and one step is
            one whole pass. In an epoch it is the batch size, and one step is one whole epoch, whose cost to
            an observer of the model is that of full participation at any batch size; records that fill no
            last batch may be left out. Against the server it is the size of the smallest batch.
        mechanism: name of the randomizer whose blanket is used; ``"generic"`` covers every ε0-LDP randomizer
            and every choice of them during the round. With ``local_delta`` it has no blanket: then its name
            only says that what the worst (ε0, δ0) randomizer leaks is no lower bound on what this one does.
        blanket: the randomizer's blanket; None takes the generic one.
        local_delta: δ0 of an (ε0, δ0)-LDP report, in [0, 1). Such rounds are accounted through a pure ε0
            randomizer close to the real one (Feldman, McMillan, Talwar 2021, Theorem 3.8), and the distance
            is charged to δ.
        channel_fixed: whether one channel, from a client's record to its report, is fixed before the round
            and serves everybody. Then ε is smaller, as the others' own records hide a report too
            (``docs/proofs/accounting.md``, sections 3a to 3d). False is always right: a client's randomizer,
            or what it randomises of its record, may follow from other reports of the round, as in the second
            stage of an estimate; who reports when must then be secret and uniform (section 2a). Of an epoch
            or a check-in it says that a single batch has one channel.
    """

    local_epsilon: LocalEpsilon = field()
    sampling: Annotated[Sampling, one_of(Sampling)] = Sampling.WITHOUT_REPLACEMENT
    mechanism: str = "generic"
    blanket: Blanket | None = None
    local_delta: Annotated[float, in_range(at_least=0, below=1)] = 0.0
    channel_fixed: Flag = False

    KIND: ClassVar[str] = "shuffle"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = tuple(Sampling)
    SELF_SAMPLED: ClassVar[bool] = True
    seen = "the reports without senders and in random order (their sum shows less)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_delta > 0 and self.blanket is not None:
            raise ValueError(
                "an (ε0, δ0) randomizer is accounted for by ε0 and δ0 alone; leave out its blanket, or give "
                "one whose own tail is charged, and no local_delta"
            )
        if self.blanket is None:
            if self.mechanism != "generic" and not self.local_delta:
                raise ValueError(
                    f"mechanism {self.mechanism!r} needs its blanket; pass blanket=, for a known mechanism "
                    "shuffle_plugins.mechanisms.blanket(name, local_epsilon=…, dim=…)"
                )
            return
        if not isinstance(self.blanket, Blanket):
            raise ValueError(f"blanket must be a Blanket, got {self.blanket!r}")
        if self.mechanism == "generic":
            raise ValueError("a blanket of its own needs its mechanism's name; pass mechanism=")
        if self.blanket.local_epsilon != self.local_epsilon:
            raise ValueError(
                f"the blanket is for ε0={self.blanket.local_epsilon}, the round for ε0={self.local_epsilon}"
            )

    def _check_cohort(self) -> None:
        if isinstance(self.cohort, bool) or not isinstance(self.cohort, (int, float)):
            raise ValueError(f"cohort must be a number, got {self.cohort!r}")
        if not 0 < self.cohort <= self.population:
            got = self.cohort
            got = int(got) if isinstance(got, float) and got.is_integer() else got
            raise ValueError(
                f"cohort must be in (0, population], got {got!r} of {self.population}: "
                "a round cannot shuffle more reports than there are clients"
            )
        object.__setattr__(self, "cohort", float(self.cohort))
        if self.sampling not in (Sampling.POISSON, Sampling.CHECK_IN) and not self.cohort.is_integer():
            raise ValueError(f"cohort must be whole under {self.sampling} sampling, got {self.cohort!r}")

    @property
    @override
    def sampling_rate(self) -> float:
        return self.cohort / self.population

    @property
    def effective_blanket(self) -> Blanket:
        """The blanket that accounting uses: the mechanism's own, or the generic one."""
        if self.blanket is not None:
            return self.blanket
        return _worst_case(self.local_epsilon, pure=self.local_delta == 0)

    @property
    @override
    def own_delta(self) -> float:
        return self.local_delta + self.effective_blanket.tail

    @property
    @override
    def pair_name(self) -> str:
        if self.channel_fixed and mixed(self.effective_blanket, self, mechanism=self.mechanism):
            return "crowd pair"
        return "clones pair" if self.effective_blanket.form is Form.CLONES else "blanket pair"

    @property
    @override
    def comparable(self) -> tuple[Any, ...] | None:
        if type(self) is not ShuffleRound:  # a third party may have derived one that costs more
            return None
        return self.mechanism, (self.effective_blanket.state(), self.channel_fixed)

    @property
    def replacement_distance(self) -> float:
        """From a round of pure ε0 randomizers: (1 + e^-ε0/2)·δ0 for every client that reports.

        Feldman, McMillan, Talwar 2021, Theorem 3.8; 0 without ``local_delta``.
        """
        if self.sampling in (Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH):
            reports = float(self.population)
        elif self.sampling is Sampling.POISSON and self.adversary is Adversary.SERVER:
            reports = 1 + (self.population - 1) * self.sampling_rate  # the client is known to take part
        else:
            reports = self.cohort
        return reports * self.local_delta * (1 + math.exp(-self.local_epsilon) / 2)

    def received(self, count: int) -> ShuffleRound:
        """This round once its number of reports is known: ``count`` of the population, uniformly.

        Under Poisson sampling the number of reports is public and independent of the data. Recording it
        charges what the round really cost. Record the rounds of a history all in one way.
        """
        if self.sampling in (Sampling.CHECK_IN, Sampling.EPOCH):
            raise ValueError(f"{self.sampling} sampling is charged as a whole, whatever its counts")
        if self.sampling is not Sampling.POISSON:
            raise ValueError(f"the cohort of a round under {self.sampling} sampling is known beforehand")
        if type(count) is not int or not 1 <= count <= self.population:
            raise ValueError(
                f"a round has between 1 and {self.population} reports, got {count!r}; one without any costs "
                "nothing and need not be recorded"
            )
        return replace(self, sampling=Sampling.WITHOUT_REPLACEMENT, cohort=count)

    @property
    @override
    def description(self) -> str:
        return f"{self.mechanism} with local_epsilon={self.local_epsilon:.6g}"

    # -- losses -------------------------------------------------------------------------------------------

    def dominating_pair(self) -> PairMixture:
        """The pair of the reports' blanket, which dominates the round."""
        return upper_pair(self.effective_blanket, self)

    def instances(self) -> dict[str, PairMixture]:
        """Exact pairs of real mechanisms and datasets, by name, which bound the round from below."""
        return lower_pairs(self.effective_blanket, self, mechanism=self.mechanism)

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        return self._pair_losses("upper", resolution)

    @override
    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        if not all(isinstance(pair, SlotPair) for pair in self._pairs()):
            return None
        return self._pair_losses("lower", resolution)

    @property
    @override
    def resolves_alone(self) -> bool:
        return all(isinstance(pair, SlotPair) and few_outcomes(pair) for pair in self._pairs())

    @property
    @override
    def takes_long(self) -> bool:
        return self.blanket is not None

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        found = self.instances()
        return tuple(sorted(found, key=lambda name: -found[name].readable_information))

    @override
    def lower_losses(self, family: str, resolution: Resolution) -> PrivacyLossDistribution:
        return _losses(self.instances()[family], "lower", resolution)

    def _upper_pairs(self) -> tuple[PairMixture, ...]:
        return upper_pairs(
            self.effective_blanket, self, mechanism=self.mechanism, channel_fixed=self.channel_fixed
        )

    def _pairs(self) -> Iterator[object]:
        return (pair for mixture in self._upper_pairs() for pair in mixture.pairs)

    def _pair_losses(self, kind: BoundKind, resolution: Resolution) -> PrivacyLossDistribution:
        return reduce(tighter, (_losses(each, kind, resolution) for each in self._upper_pairs()))

    @classmethod
    @override
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        blanket = saved["blanket"]
        return saved | {"blanket": None if blanket is None else Blanket.from_state(blanket)}


@lru_cache(maxsize=1024)  # mechanisms of one law, and both adversaries where all take part, have equal pairs
def _losses(pair: PairMixture, kind: BoundKind, resolution: Resolution) -> PrivacyLossDistribution:
    return pair_losses(pair, kind=kind, resolution=resolution)


@lru_cache(maxsize=1024)  # a history asks for it again and again
def _worst_case(local_epsilon: float, *, pure: bool) -> Blanket:
    return Blanket.generic(local_epsilon) if pure else Blanket.clones(local_epsilon)
