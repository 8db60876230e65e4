"""Rounds whose clients have an ε0 of their own, in groups of one ε0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from typing_extensions import override

from shuffle_plugins.accounting.losses import (
    MASS_ERROR,
    PrivacyLossDistribution,
    Resolution,
    finite_losses,
    profile_losses,
    profile_of,
    tighter,
)
from shuffle_plugins.accounting.numerics.counts import (
    CountMasses,
    drawn_counts,
    mixed_counts,
    reach_of,
    signed_counts,
    split_counts,
)
from shuffle_plugins.accounting.numerics.sums import Floats
from shuffle_plugins.accounting.pairs.groups import GroupsPair, OtherClients, shared_atoms, sign_types
from shuffle_plugins.accounting.pairs.others import others_losses
from shuffle_plugins.accounting.pairs.reports import Blanket
from shuffle_plugins.accounting.rounds.round import (
    Round,
    ShuffleRound,
    lower_families,
    lower_losses,
    upper_losses,
)
from shuffle_plugins.accounting.terms import Sampling
from shuffle_plugins.core import checks
from shuffle_plugins.core.checks import Flag, LocalEpsilon, one_of

ONE_BIT = frozenset({"binary-rr", "l1-hadamard", "linf-coordinate"})
"""Mechanisms that send a uniform index and one bit."""

ONE_ENCODING = ONE_BIT | {"hadamard-response", "k-rr"}
"""Mechanisms whose blanket is uniform over the same reports at every ε0: a report may be anybody's."""

_CHOICE = "who is in which group does not follow from the data"
_LOUDEST = 30.0  # ε0, up to which sums of likelihoods keep their digits
_MOST_COUNTED = 1 << 22  # clients up to which a lower bound lists counts, …
_MOST_DRAWN = 1 << 36  # … and times the reports that are drawn of them


@dataclass(frozen=True, kw_only=True)
class GroupsRound(Round):
    """A shuffled round of groups of clients with an ε0 each, for the members of one of them.

    Everybody uses one mechanism, whose reports do not show their ε0, and reports of all groups hide each
    other. Where a report shows which group it is from (another format, a label, a weight given to it), only
    the group hides its members: then record a :class:`ShuffleRound` of the group's own clients. So do for any
    mechanism that is not named here. ``docs/proofs/accounting.md``, section 3e.

    Which group a client is in is taken to be public, and must not follow from its record.

    Attributes:
        local_epsilon: ε0 of the members' group.
        groups: for each group its ε0, at most 30, and its number of clients; the members' is one of them.
        population, cohort: of all groups together; everybody is drawn alike, whatever its group. A server
            sees how many of each group report: give these as groups, with ``FULL``.
        mechanism: ``"binary-rr"``, ``"hadamard-response"``, ``"k-rr"``, ``"l1-hadamard"`` or
            ``"linf-coordinate"``, of one ``dim``.
        blanket: the mechanism's, at the members' ε0.
        channel_fixed: as of :class:`ShuffleRound`.
    """

    local_epsilon: LocalEpsilon = field()
    groups: tuple[tuple[float, int], ...]
    cohort: float
    mechanism: str
    blanket: Blanket
    sampling: Annotated[Sampling, one_of(Sampling)] = Sampling.WITHOUT_REPLACEMENT
    channel_fixed: Flag = False

    KIND: ClassVar[str] = "groups"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = tuple(s for s in Sampling if s is not Sampling.SINGLE_PASS)
    seen = ShuffleRound.seen

    def __post_init__(self) -> None:
        groups = tuple(
            (checks.number("groups", level, above=0, at_most=_LOUDEST), checks.whole("groups", count))
            for level, count in self.groups
        )
        object.__setattr__(self, "groups", groups)
        super().__post_init__()
        levels = [level for level, _ in groups]
        if len(set(levels)) != len(levels) or self.local_epsilon not in levels:
            raise ValueError(
                f"groups must have an ε0 each, and one the members' {self.local_epsilon!r}, got {levels}"
            )
        if sum(count for _, count in groups) != self.population:
            raise ValueError(f"groups must make up the population of {self.population}, got {groups}")
        if self.mechanism not in ONE_ENCODING:
            raise ValueError(
                f"reports of {self.mechanism!r} may show which ε0 they have, so that other groups do "
                "not hide them: record a ShuffleRound of each group's own clients, or take one of "
                f"{', '.join(sorted(ONE_ENCODING))}"
            )
        if self.sees_cohort and self.sampling is not Sampling.FULL:
            raise ValueError(
                "a server sees how many clients of each group report: give these as groups, with "
                "sampling='full'"
            )

    def _check_cohort(self) -> None:
        object.__setattr__(self, "cohort", self._plain.cohort)

    @classmethod
    def each_of(
        cls, groups: Sequence[tuple[float, int]], *, blanket: Callable[[float], Blanket], **shared: Any
    ) -> tuple[Self, ...]:
        """One round for the members of each group, in their order.

        Args:
            groups: ε0 and number of clients of each.
            blanket: the mechanism's, by its ε0.
            shared: fields of all of these rounds; ``population`` follows.
        """
        return tuple(
            cls(
                local_epsilon=level,
                groups=tuple(groups),
                population=sum(count for _, count in groups),
                blanket=blanket(level),
                **shared,
            )
            for level, _ in groups
        )

    @property
    def _plain(self) -> ShuffleRound:
        """The round in which everybody has the members' ε0."""
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            population=self.population,
            cohort=self.cohort,
            sampling=self.sampling,
            adversary=self.adversary,
            mechanism=self.mechanism,
            blanket=self.blanket,
            channel_fixed=self.channel_fixed,
        )

    @property
    @override
    def sampling_rate(self) -> float:
        return self.cohort / self.population

    @property
    @override
    def secrecy(self) -> str:
        return f"{super().secrecy}; no report may show which group it is from, and {_CHOICE}"

    @property
    @override
    def pair_name(self) -> str:
        return self._plain.pair_name if len(self.groups) == 1 else "pair of groups"

    @property
    @override
    def description(self) -> str:
        told = " and ".join(f"{count} clients of local_epsilon={level:.6g}" for level, count in self.groups)
        return f"{self._plain.description} among {told}"

    # -- losses -------------------------------------------------------------------------------------------

    @property
    def _rate(self) -> float:
        """γ of clients that join each on its own."""
        return self.sampling_rate if self.sampling is Sampling.POISSON else 1.0

    @property
    def _reports(self) -> int:
        """How many of the population's clients are drawn."""
        return int(self.cohort) if self.sampling is Sampling.WITHOUT_REPLACEMENT else self.population

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        if len(self.groups) == 1:
            return upper_losses(self._plain, resolution)
        laws = []
        for pair in self._pairs():
            loss, p, q, missing = others_losses(pair, tolerance=resolution.tolerance)
            laws.append(
                finite_losses(
                    loss, p, q, missing=missing, kind="upper", resolution=resolution, symmetric=True
                )
            )
        return reduce(tighter, laws)

    def _pairs(self) -> list[GroupsPair]:
        """Pairs that dominate: of what all reports have in common, and of all that bits hide."""
        others = [(level, count) for level, count in self._others() if count]
        clones = [OtherClients(count=count, common=self._common(level)) for level, count in others]
        plain = GroupsPair(
            local_epsilon=self.local_epsilon,
            population=self.population,
            slots=self._reports,
            rate=self._rate,
            shared=shared_atoms(self.blanket),
            others=tuple(clones),
            least=min(self._common(level) for level, _ in self.groups),
        )
        # 0.1: reports in common, of which fewer hide nobody, and types take half a minute to say so
        few = plain.clones < 0.1
        if few or self.mechanism not in ONE_BIT or not self.channel_fixed or self.spans_batches:
            return [plain]
        typed = (
            replace(each, types=sign_types(self.local_epsilon, level))
            for each, (level, _) in zip(clones, others, strict=True)
        )
        mixed = replace(plain, others=tuple(typed))
        return [mixed] if plain.slots < plain.population else [plain, mixed]

    def _others(self) -> list[tuple[float, int]]:
        """ε0, and clients other than client 1, of each group, in one order however they were given."""
        return [(level, count - (level == self.local_epsilon)) for level, count in sorted(self.groups)]

    def _common(self, level: float) -> float:
        """θ, the probability with which a report of that ε0 tells nothing."""
        likely = (self.blanket.differing + self.blanket.high) / self.blanket.mass
        return 1 / (1 + math.expm1(level) * likely)

    @property
    @override
    def takes_long(self) -> bool:
        return True

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        if len(self.groups) == 1:
            return lower_families(self._plain)
        reports = self._reports_from_below
        drawn = reports < self.population
        if self.population > _MOST_COUNTED or (drawn and self.population * reports > _MOST_DRAWN):
            return ()
        if self.blanket.outside > 0:
            return (f"{self.mechanism} instance, third record",)
        return (f"{self.mechanism} instance",) if self.blanket.exact else ()

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        """Everybody else holds a third record, or x'. Reports that are likely for x or for x' are counted."""
        if len(self.groups) == 1:
            return lower_losses(self._plain, family, resolution, exchanged=exchanged)
        if family not in self.lower_families:
            raise ValueError(f"a {type(self).__name__} has no instance {family!r}")
        p, q = self._counted()
        if exchanged:
            p, q = q, p
        return finite_losses(
            None,
            p,
            q,
            missing=0.0,
            kind="lower",
            resolution=resolution,
            symmetric=False,
            # 2**-46: of a mass, for each draw that it is summed over
            mass_error=MASS_ERROR + 2.0**-46 * self._reports_from_below,
        )

    @property
    def _reports_from_below(self) -> int:
        """How many clients are drawn for all batches together: the last one of an epoch may be left out."""
        if self.sampling is Sampling.EPOCH:
            return self.population // int(self.cohort) * int(self.cohort)
        return self._reports

    def _counted(self) -> tuple[Floats, Floats]:
        """Masses of what the reports that are likely for x or x' add up to, if client 1 holds x, and x'."""
        blanket, third, reports = self.blanket, self.blanket.outside > 0, self._reports_from_below
        counted, strong = blanket.outside if third else blanket.differing, math.exp(self.local_epsilon)
        share = self._rate * counted / blanket.mass
        low = share * self._common(self.local_epsilon)
        high = low * strong
        # As a sum, not as 1 − high − low: of that a loud client has no digits.
        other = (1 + strong) * (blanket.differing - counted) + blanket.low + strong * blanket.high
        neither = 1 - self._rate + low * other / counted
        # With a third record those for x and those for x' are counted, else those for x.
        others = [((2 if third else 1) * share * self._common(level), size) for level, size in self._others()]
        drawn, left_out = (
            drawn_counts(others, draws=draws) for draws in (reports - 1, min(reports, self.population - 1))
        )
        taken = reports / self.population

        def among_all(least: int, *own: float) -> CountMasses:
            """With client 1's part, if drawn: numbers from the least up with these probabilities."""
            law = CountMasses(first=least, masses=np.array(own))
            return mixed_counts([(taken, drawn.plus(law)), (1 - taken, left_out)])

        # 150.0: standard deviations of their number, over which each number is told apart
        if third and reports * max(chance for chance, _ in others) < 150.0**2:
            hidden = mixed_counts([(taken * neither, drawn), (1 - taken, left_out)])
            shown = CountMasses(first=1 + drawn.first, masses=taken * (low + high) * drawn.masses)
            return split_counts(hidden=hidden, shown=shown, local_epsilon=self.local_epsilon)
        if third:
            drawn, left_out = signed_counts(drawn), signed_counts(left_out)
            first, second = among_all(-1, low, neither, high), among_all(-1, high, neither, low)
        else:
            first, second = among_all(0, neither + low, high), among_all(0, neither + high, low)
        start, length = reach_of(first, second)
        return first.on(start, length), second.on(start, length)

    # -- checkpoints --------------------------------------------------------------------------------------

    @classmethod
    @override
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        groups = tuple((level, count) for level, count in saved["groups"])
        return saved | {"groups": groups, "blanket": Blanket.from_state(saved["blanket"])}


@dataclass(frozen=True, kw_only=True)
class LabelledRound(Round):
    """A round of groups of clients whose reports show their group, for whoever loses most in it.

    A member is hidden by its own group alone, whatever the others send. What the round costs the members of
    one group is :meth:`member`; ``ShuffleAccountant.of_group`` is a whole history for them.

    Attributes:
        members: the round of each group's own clients, of one sampling and against one adversary. They may
            have different mechanisms.
        population, cohort: of all groups together.
    """

    cohort: float
    members: tuple[ShuffleRound, ...]

    KIND: ClassVar[str] = "labelled-groups"
    SAMPLINGS: ClassVar[tuple[Sampling, ...]] = tuple(Sampling)
    seen = ShuffleRound.seen

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", _shuffle_rounds(self.members))
        super().__post_init__()
        levels = [each.local_epsilon for each in self.members]
        if not levels or len(set(levels)) != len(levels):
            raise ValueError(f"groups must have an ε0 each, got {levels}")
        for each in self.members:
            if each.adversary is not self.adversary:
                raise ValueError(f"members must be rounds against the {self.adversary}, got {each!r}")
            if each.sampling is not self.sampling:
                raise ValueError(f"all groups are sampled alike, got {self.sampling} and {each.sampling}")

    def _check_cohort(self) -> None:
        total = math.fsum(each.cohort for each in self.members)
        if sum(each.population for each in self.members) != self.population or total != self.cohort:
            raise ValueError("population and cohort are those of all members together: use LabelledRound.of")

    @classmethod
    def of(cls, members: Sequence[ShuffleRound]) -> Self:
        """Of one round for each group."""
        if not _shuffle_rounds(members):
            raise ValueError("give the round of one group at least")
        return cls(
            members=tuple(members),
            population=sum(each.population for each in members),
            cohort=math.fsum(each.cohort for each in members),
            sampling=members[0].sampling,
            adversary=members[0].adversary,
        )

    def member(self, local_epsilon: float) -> ShuffleRound:
        """The round of the group of this ε0; ValueError if there is none."""
        for each in self.members:
            if each.local_epsilon == local_epsilon:
                return each
        raise ValueError(
            f"there is no group of local_epsilon={local_epsilon!r}, but of "
            f"{[each.local_epsilon for each in self.members]}"
        )

    @property
    @override
    def sampling_rate(self) -> float:
        return max(each.sampling_rate for each in self.members)

    @property
    def local_epsilon(self) -> float:
        """The largest of all groups."""
        return max(each.local_epsilon for each in self.members)

    @property
    def local_delta(self) -> float:
        """The largest of all groups."""
        return max(each.local_delta for each in self.members)

    @property
    @override
    def own_delta(self) -> float:
        return max(each.own_delta for each in self.members)

    @property
    @override
    def replacement_distance(self) -> float:
        return max(each.replacement_distance for each in self.members)

    @property
    @override
    def secrecy(self) -> str:
        return f"{super().secrecy}; {_CHOICE}"

    @property
    @override
    def pair_name(self) -> str:
        return "largest pair of all groups"

    @property
    @override
    def description(self) -> str:
        return " and ".join(f"{each.population} clients of {each.description}" for each in self.members)

    @override
    def upper_losses(self, resolution: Resolution) -> PrivacyLossDistribution:
        if len(self.members) == 1:
            return upper_losses(self.members[0], resolution)
        profiles = [profile_of(upper_losses(each, resolution)) for each in self.members]
        losses = np.unique(np.concatenate([places for places, _ in profiles]))
        deltas = [np.interp(np.expm1(losses), np.expm1(places), values) for places, values in profiles]
        return profile_losses(losses, np.max(deltas, axis=0), resolution=resolution)

    @property
    @override
    def takes_long(self) -> bool:
        return any(each.takes_long for each in self.members)

    @property
    @override
    def lower_families(self) -> tuple[str, ...]:
        return tuple(self._instances())

    def _instances(self) -> dict[str, tuple[ShuffleRound, str]]:
        loudest_first = sorted(self.members, key=lambda each: -each.local_epsilon)
        return {
            f"{family} at local_epsilon={each.local_epsilon:.6g}": (each, family)
            for each in loudest_first
            for family in lower_families(each)
        }

    @override
    def lower_losses(
        self, family: str, resolution: Resolution, *, exchanged: bool = False
    ) -> PrivacyLossDistribution:
        member, own = self._instances()[family]
        return lower_losses(member, own, resolution, exchanged=exchanged)

    @classmethod
    @override
    def fields_from_state(cls, saved: dict[str, Any]) -> dict[str, Any]:
        return saved | {"members": tuple(ShuffleRound.from_state(each) for each in saved["members"])}


def _shuffle_rounds(members: Sequence[ShuffleRound]) -> tuple[ShuffleRound, ...]:
    for each in members:
        if not isinstance(each, ShuffleRound):
            raise ValueError(f"members must be ShuffleRounds, got {each!r}")
    return tuple(members)
