"""The base of every kind of round: who takes part, its losses, its state and its text."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from typing_extensions import override

from shuffle_plugins.accounting.losses import BoundKind, PrivacyLossDistribution, Resolution, tighter
from shuffle_plugins.accounting.pairs.reports import Blanket, Form
from shuffle_plugins.accounting.pairs.shuffle import (
    PairMixture,
    lower_pairs,
    mixed,
    pair_losses,
    upper_pair,
    upper_pairs,
)
from shuffle_plugins.accounting.pairs.slots import SlotPair
from shuffle_plugins.accounting.terms import (
    MAX_POPULATION,
    NEIGHBOURING_RELATION,
    Adversary,
    CohortDraw,
    Sampling,
    Unit,
    round_adversary,
)
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Flag, LocalEpsilon, Ranged, in_range, one_of, whole_number

_SeenBy = Annotated[Adversary, lambda _, value: round_adversary(value)]
_KINDS: dict[str, type[Round]] = {}
_cached = lru_cache(maxsize=8192)  # histories of some thousand distinct rounds are asked about time and again


@dataclass(frozen=True, kw_only=True)
class Round(Ranged, CohortDraw, ABC):
    """One kind of round, as an accountant records it. Neighbouring relation: replace-one at fixed population.

    A kind is a frozen dataclass that derives from this class: equal rounds cost the same, and what is
    computed for one is kept for all. It gives its name, :attr:`KIND`, and implements :meth:`upper_losses`;
    everything else has a default (``docs/guides/extending.md``).

    Attributes:
        population: n, the public and fixed number of clients.
        cohort: k, how many clients take part; all under full participation. Under ``SINGLE_PASS`` the size of
            the smallest batch, and one accountant step stands for a whole pass.
    """

    population: Annotated[int, whole_number(at_most=MAX_POPULATION)]
    sampling: Annotated[Sampling, one_of(Sampling)] = Sampling.FULL
    adversary: _SeenBy = Adversary.MODEL_OBSERVER

    KIND: ClassVar[str]
    """Name of the kind, by which a saved state is recognised."""

    SOURCE: ClassVar[str] = "shuffle_plugins, docs/proofs/accounting.md"
    """Where the losses come from; a named bound says it."""

    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = (Sampling.WITHOUT_REPLACEMENT, Sampling.FULL)
    """Samplings for which rounds of the kind are accounted."""

    SELF_SAMPLED: ClassVar[bool] = False
    """Whether clients may decide in secret to take part: whoever adds up a sum sees who does."""

    UNIT: ClassVar[Unit] = Unit.CLIENT
    """The unit of privacy: in whose data neighbouring datasets differ."""

    CHARGED_BY_RATIO: ClassVar[bool] = False
    """Whether the difference between this round and its stand-in can be charged to ε
    (:meth:`replacement_ratio`), and not only to δ (:attr:`replacement_distance`)."""

    def __init_subclass__(cls) -> None:
        kind = cls.__dict__.get("KIND")
        if kind is None:
            return
        known = _KINDS.setdefault(kind, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{known.__qualname__} is of the kind {kind!r} already; choose another KIND")
        _KINDS[kind] = cls

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling not in self.SAMPLINGS:
            if self.sampling is Sampling.EPOCH:
                raise ValueError(
                    "epoch sampling is not accounted for this round: its batches release noisy sums, and no "
                    "bound is known on how such batches hide one another in a shuffled epoch; draw k of n "
                    "(sampling='without-replacement'), or let clients send reports that are private alone"
                )
            raise ValueError(
                f"the noise of a {type(self).__name__} is that of a cohort of known size, so {self.sampling} "
                "sampling is not accounted; draw k of n, or let everybody take part"
            )
        self._check_cohort()
        if self.sampling is Sampling.FULL and self.cohort != self.population:
            raise ValueError("full participation needs cohort == population")

    def _check_cohort(self) -> None:
        checks.whole("cohort", self.cohort, at_most=self.population)
        honest = getattr(self, "honest", None)
        if honest is not None:
            checks.whole("honest", honest, at_most=self.cohort)

    # -- what the round is ------------------------------------------------------------------------------

    @property
    def sampling_rate(self) -> float:
        """γ in (0, 1]: the probability of taking part, if that is hidden from the adversary; otherwise 1."""
        hidden = self.sampling is Sampling.WITHOUT_REPLACEMENT and not self.sees_cohort
        return self.cohort / self.population if hidden else 1.0

    @property
    def pair_name(self) -> str:
        """Name under which a bound computed from this round's losses is shown, such as ``blanket pair``."""
        return self.KIND

    @property
    def description(self) -> str:
        """What makes the round private, in a few words."""
        return f"{self.KIND} round"

    @property
    def seen(self) -> str:
        """What may be seen of the clients' messages: ε does not hold if anybody sees more of them."""
        return "what rounds of this kind release, which they do not say"

    @property
    def remedy(self) -> str:
        """What would give such a round a certified ε, where it has none."""
        return ""

    @property
    @override
    def secrecy(self) -> str:
        drawn = super().secrecy
        if self.opened() == self:
            return drawn
        if self.sampling is Sampling.FULL:
            drawn = "everybody takes part"
        return (
            f"{drawn}; each client decides by a coin of its own, which nobody else may see, whether its data "
            "are in the round"
        )

    def __str__(self) -> str:
        return (
            f"{self.description} (n={self.population}, k={self.cohort:.12g}, "
            f"{self.sampling.value.replace('-', ' ')})"
        )

    def opened(self) -> Round:
        """This round to one who knows whose data are in it; itself where no secret coins hide that."""
        return self

    # -- what a single report guarantees ------------------------------------------------------------------

    if TYPE_CHECKING:

        @property
        def local_epsilon(self) -> float:
            """ε0 of everything that one client sends in the round; infinite if that alone is not private."""

        @property
        def local_delta(self) -> float:
            """δ0 of everything that one client sends in the round."""

        @property
        def neighbouring_relation(self) -> str:
            """Which datasets are neighbours: replace-one, unless a server is trusted."""

    else:  # a subclass may have fields of these names, which a property would not let be set
        local_epsilon, local_delta = math.inf, 0.0
        neighbouring_relation = NEIGHBOURING_RELATION

    @property
    def own_delta(self) -> float:
        """δ0 and any tail that was cut off: unamplified, a round is (ε0, this)-DP."""
        return self.local_delta

    @property
    def comparable(self) -> tuple[Any, ...] | None:
        """What two rounds of one ε0 and δ0 share whose costs compare by population and cohort alone.

        None if none do: only shuffled reports compare so (``docs/proofs/accounting.md``, Lemma 5).
        """
        return None

    # -- the stand-in -------------------------------------------------------------------------------------
    # Some rounds are accounted through a similar one; `upper_losses` are then this stand-in's.

    @property
    def replacement_distance(self) -> float:
        """Total variation between the round and its stand-in; 0 without a stand-in. It is charged to δ."""
        return 0.0

    def replacement_ratio(self, log_tail: float) -> float:
        """η such that an outcome's probability is at most e^η times that under the stand-in, and reversely,
        except for outcomes of probability exp(``log_tail``) together. Infinite if none is known.
        """
        return math.inf

    # -- losses -------------------------------------------------------------------------------------------

    @abstractmethod
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        """The privacy loss distribution of a pair that dominates the round, from above.

        ArithmeticError if losses leave floating-point range.
        """

    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        """A lower bound on the same distribution, which shows the numerical error; None if there is none."""
        return None

    @property
    def takes_long(self) -> bool:
        """Whether its losses may take a tenth of a second."""
        return False

    @property
    def lower_families(self) -> tuple[str, ...]:
        """Names of real instances of the round, which bound ε from below, the one that leaks most first."""
        return ()

    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """The privacy loss distribution of one of the :attr:`lower_families`, from below.

        With its two datasets ``exchanged`` it bounds from below, too: ``reversed()`` does of a pair of
        distributions, but not where losses were rounded down. ArithmeticError if no outcome is within
        floating-point range.
        """
        raise ValueError(f"a {type(self).__name__} has no instance {family!r}")

    # -- checkpoints --------------------------------------------------------------------------------------

    def state(self) -> tuple[Any, ...]:
        """The kind and the fields as plain values, for checkpoints."""
        return (self.KIND, *(_plain(getattr(self, field.name)) for field in fields(self)))

    @classmethod
    def from_state(cls, state: tuple[Any, ...]) -> Self:
        """The round of a :meth:`state`; ``Round.from_state`` reads every kind whose module is imported."""
        if not isinstance(state, (tuple, list)) or not state or not isinstance(state[0], str):
            raise ValueError(f"not the state of a {cls.__name__}: {state!r}")
        kind = _KINDS.get(state[0])
        if kind is None:
            raise ValueError(f"no kind of round is called {state[0]!r}, as the state says; import its module")
        if not issubclass(kind, cls):
            raise ValueError(f"not the state of a {cls.__name__}, but of a {kind.__name__}: {state!r}")
        names = [field.name for field in fields(kind)]
        try:
            if len(names) != len(state) - 1:
                raise TypeError(f"{len(state) - 1} fields, not {len(names)}")
            saved = dict(zip(names, map(as_tuples, state[1:]), strict=True))
            return kind(**kind.fields_from_state(saved))
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not the state of a {kind.__name__}: {state!r}") from error

    @classmethod
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Fields from their saved values; a kind whose fields are not plain values converts them here."""
        return saved


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.state() if hasattr(value, "state") else value


def as_tuples(value: Any) -> Any:
    """A state read from JSON, its nested lists turned back into tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


# -- the same answers, computed once for equal rounds -------------------------------------------------------


@_cached
def check_recordable(each: Round) -> None:
    """Check what every accountant relies on, of a third party's round too."""
    name = type(each).__qualname__
    if not isinstance(each.sampling, Sampling) or not isinstance(each.adversary, Adversary):
        raise ValueError(f"the fields of a {name} are unchecked: call super().__post_init__()")
    round_adversary(each.adversary)
    try:
        same = Round.from_state(each.state()) == each
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the saved state of a {name} could not be read: {error}") from error
    if not same:
        raise ValueError(
            f"the saved state of a {name} would be read as another round: give its class a KIND of its own, "
            "and convert its fields in fields_from_state"
        )
    numbers = {
        "sampling_rate": 0 <= each.sampling_rate <= 1,
        "local_epsilon": each.local_epsilon >= 0,
        "local_delta": each.local_delta >= 0,
        "own_delta": each.own_delta >= 0,
        "replacement_distance": each.replacement_distance >= 0,
    }
    wrong = [f"{name}={getattr(each, name)!r}" for name, good in numbers.items() if not good]
    if wrong:
        raise ValueError(f"a {name} is out of range: {', '.join(wrong)}")


@_cached
def upper_losses(each: Round, resolution: Resolution) -> PrivacyLossDistribution:
    """:meth:`Round.upper_losses`, computed once for equal rounds, and checked to be a whole upper law."""
    found, name = each.upper_losses(resolution), type(each).__qualname__
    if found.kind != "upper":
        raise ValueError(f"upper_losses of a {name} bound from {found.kind!r}: make them with kind='upper'")
    sides = {"P": found.p} if found.symmetric else {"P": found.p, "Q": found.q}  # Q's is P's if exchanged
    gap = 0.0
    for side, masses in sides.items():
        mass = float(masses.sum())
        # So much is no roundoff, but a part of the law that was left out.
        if not (found.missing >= 0 and mass + found.missing >= 1 - 1e-6):
            raise ValueError(
                f"upper_losses of a {name} have {side} mass {mass!r} and missing={found.missing!r}: "
                "together they must be one; what is left out is charged to δ and belongs to missing"
            )
        gap = max(gap, 1 - mass - found.missing)
    # Masses are known to 2**-40 each, relative, so honest ones may lack as much.
    return replace(found, missing=found.missing + gap) if gap > 1e-12 else found


@_cached
def lower_families(each: Round) -> tuple[str, ...]:
    """:attr:`Round.lower_families`, computed once for equal rounds."""
    return each.lower_families


@_cached
def lower_losses(
    each: Round, family: str, resolution: Resolution, *, exchanged: bool = False
) -> PrivacyLossDistribution:
    """:meth:`Round.lower_losses`, computed once for equal rounds."""
    return each.lower_losses(family, resolution, exchanged=exchanged)


@dataclass(frozen=True, kw_only=True)
class ShuffleRound(Round):
    """A round in which each client sends one randomised report, and the reports are shuffled.

    Attributes:
        local_epsilon: ε0 of every client's report in nats, spent once per participating client and round.
        cohort: k, the number of reports shuffled together. Under Poisson sampling it is the expected number,
            γ·n, and need not be whole. Under a single pass, check-in and in an epoch one step of the
            accountant is a whole pass: k is then the size of the smallest batch, the expected number of
            reports in a round, and the batch size. To an observer of the model an epoch costs as much as full
            participation at any batch size; records that fill no last batch may be left out.
        mechanism: name of the randomizer whose blanket is used; ``"generic"`` covers every ε0-LDP randomizer
            and every choice of them during the round. With ``local_delta`` it has a name and no blanket.
        blanket: the randomizer's blanket; None takes the generic one.
        local_delta: δ0 of an (ε0, δ0)-LDP report, in [0, 1). Such rounds are accounted through a pure
            randomizer, and the distance is charged to δ.
        channel_fixed: whether one channel, from a client's record to its report, is fixed before the round
            (of an epoch or a check-in: before a batch) and serves everybody. Then ε is smaller, as the
            others' own records hide a report too (``docs/proofs/accounting.md``, sections 3a to 3d). False is
            always right: what a client does may follow from other reports of the round, if who reports when
            is secret and uniform (section 2a).
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
        """(1 + e^-ε0/2)·δ0 for every client that reports: Feldman, McMillan, Talwar 2021, Theorem 3.8."""
        if self.sampling in (Sampling.SINGLE_PASS, Sampling.CHECK_IN, Sampling.EPOCH):
            reports = float(self.population)
        elif self.sampling is Sampling.POISSON and self.adversary is Adversary.SERVER:
            reports = 1 + (self.population - 1) * self.sampling_rate  # the client is known to take part
        else:
            reports = self.cohort
        return reports * self.local_delta * (1 + math.exp(-self.local_epsilon) / 2)

    def received(self, count: int) -> ShuffleRound:
        """This Poisson round once its number of reports is known, which charges what it really cost.

        Record the rounds of a history all in one way.
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
        """The blanket's pair, which dominates the round."""
        return upper_pair(self.effective_blanket, self)

    def instances(self) -> dict[str, PairMixture]:
        """Exact pairs of real mechanisms and datasets, by name, which bound the round from below."""
        return lower_pairs(self.effective_blanket, self, mechanism=self.mechanism)

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        return self._pair_losses("upper", resolution)

    @override
    def upper_losses_from_below(self, resolution: Resolution) -> PrivacyLossDistribution | None:
        pairs = (pair for mixture in self._upper_pairs() for pair in mixture.pairs)
        if not all(isinstance(pair, SlotPair) for pair in pairs):
            return None
        return self._pair_losses("lower", resolution)

    @property
    @override
    def takes_long(self) -> bool:
        return self.blanket is not None

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        found = self.instances()
        return tuple(sorted(found, key=lambda name: -found[name].information))

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        if exchanged:
            return lower_losses(self, family, resolution).reversed()
        return pair_losses(self.instances()[family], kind="lower", resolution=resolution)

    def _upper_pairs(self) -> tuple[PairMixture, ...]:
        return upper_pairs(
            self.effective_blanket, self, mechanism=self.mechanism, channel_fixed=self.channel_fixed
        )

    def _pair_losses(self, kind: BoundKind, resolution: Resolution) -> PrivacyLossDistribution:
        found = [pair_losses(each, kind=kind, resolution=resolution) for each in self._upper_pairs()]
        return reduce(tighter, found)

    @classmethod
    @override
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        blanket = saved["blanket"]
        return saved | {"blanket": None if blanket is None else Blanket.from_state(blanket)}


@lru_cache(maxsize=1024)  # a history asks for it again and again
def _worst_case(local_epsilon: float, *, pure: bool) -> Blanket:
    return Blanket.generic(local_epsilon) if pure else Blanket.clones(local_epsilon)
