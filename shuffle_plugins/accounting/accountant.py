"""The accountant: a history of rounds, and what it costs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from shuffle_plugins.accounting.composition.pld import LossComposition, LossHistory
from shuffle_plugins.accounting.composition.renyi import RenyiComposition
from shuffle_plugins.accounting.losses.distribution import (
    COARSE,
    FINE,
    SINGLE,
    PrivacyLossDistribution,
    Resolution,
)
from shuffle_plugins.accounting.rounds.round import (
    Round,
    check_recordable,
    lower_families,
    lower_losses,
    resolves_alone,
    reversed_lower_losses,
    upper_losses,
)
from shuffle_plugins.accounting.terms import (
    NEIGHBOURING_RELATION,
    DeltaInterval,
    EpsilonInterval,
    Method,
    NamedBound,
    NeighbouringRelation,
    check_method,
)
from shuffle_plugins.core import checks

_STATE_VERSION = 3
_FEW_ROUNDS = 32  # distinct rounds that are composed at once; with more, a question takes seconds
_MOST_LOSS_STEPS = 10**6  # beyond which the grid of losses is so coarse that Rényi orders may be tighter
_LARGEST = 700.0  # e to this power is a float
_ROUNDOFF = 1e-9  # relative, of a computed δ, which is moved to the safe side: small ε0 leave few digits
_SMALL_CHARGE = 1e-2  # share of δ below which the distance is charged to δ alone: less is not to be gained
_TAIL_SHARE = 1e-3  # share of δ that may be spent on tails where η is charged to ε
_NO_AMPLIFICATION = "local epsilon, no amplification"


class BudgetExceeded(RuntimeError):
    """A round would cost more than the budget; nothing of it was recorded or released."""


class ShuffleAccountant:
    """Adds up shuffled rounds and says what they cost together.

    Neighbouring relation: replace-one at public, fixed population. Rounds may follow adaptively on each other
    and may differ in every field but the adversary.

    Args:
        method: how upper bounds compose: ``"pld"`` (tightest) or ``"rdp"`` (Rényi divergences at real orders,
            typically 5–15 % looser).

    Example:
        >>> clients = ShuffleRound(local_epsilon=1.5, population=60_000, cohort=10_000, channel_fixed=True)
        >>> accountant = ShuffleAccountant()
        >>> accountant.step(clients, num_steps=1200)
        >>> round(accountant.epsilon(1e-5).upper, 2)
        0.38
    """

    def __init__(self, *, method: Method = "pld") -> None:
        self._method = check_method(method)
        self._rounds: list[Round] = []
        self._steps: list[int] = []
        self._earlier: dict[Round, int] = {}  # steps of each distinct round, but for the last entry's
        self._seen = 0  # entries whose pairs' names are known
        self._names: set[str] = set()
        self._epsilons: dict[float, EpsilonInterval] = {}
        self._answers: dict[float, tuple[float, str]] = {}
        self._told, self._telling = 0, True  # entries whose instances are known; whether each has one
        self._leading_names: set[str] = set()
        self._allowance: tuple[tuple[Any, ...], int] | None = None  # a question, and steps that are within
        self._uppers, self._lowers = BothDirections(upper_law, COARSE), BothDirections(_lower_law, COARSE)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}, {self._method}: {self.num_steps:,} rounds, "
            f"adversary: {self._adversary()}>"
        )

    # -- recording --------------------------------------------------------------------------------------

    def step(self, shuffle_round: Round, *, num_steps: int = 1) -> None:
        """Record ``num_steps`` rounds. Call it before the rounds' output is released.

        Rounds measured against another adversary than the history are refused.
        """
        if type(num_steps) is not int or num_steps != 1:  # a training step records one; it shall cost nothing
            checks.num_steps(num_steps)
        rounds = self._rounds
        if rounds and (rounds[-1] is shuffle_round or rounds[-1] == shuffle_round):
            self._steps[-1] += num_steps
        else:
            self._check_joins(shuffle_round)
            if rounds:
                self._earlier[rounds[-1]] = self._earlier.get(rounds[-1], 0) + self._steps[-1]
            rounds.append(shuffle_round)
            self._steps.append(num_steps)
        if self._epsilons or self._answers:
            self._epsilons, self._answers = {}, {}
        if self._allowance is not None and self._allowance[0][:2] != (len(rounds) - 1, rounds[-1]):
            self._allowance = None

    def _check_joins(self, shuffle_round: Round) -> None:
        if not isinstance(shuffle_round, Round):
            raise TypeError(f"step takes a Round, such as ShuffleRound, got {type(shuffle_round).__name__}")
        check_recordable(shuffle_round)
        if self._rounds and self._rounds[0].adversary is not shuffle_round.adversary:
            raise ValueError(
                f"this history is measured against the {self._rounds[0].adversary}; keep rounds measured "
                f"against the {shuffle_round.adversary} in an accountant of their own"
            )
        if self._rounds and self.neighbouring_relation != shuffle_round.neighbouring_relation:
            raise ValueError(
                f"the neighbours of this history are {self.neighbouring_relation}, of this round "
                f"{shuffle_round.neighbouring_relation}: their ε do not add up; keep them in two accountants"
            )

    @property
    def method(self) -> Method:
        """How upper bounds compose: ``"pld"`` or ``"rdp"``."""
        return self._method

    @property
    def neighbouring_relation(self) -> str:
        """Which datasets are neighbours: replace-one, unless the rounds have another relation."""
        return self._rounds[0].neighbouring_relation if self._rounds else NEIGHBOURING_RELATION

    @property
    def history(self) -> tuple[tuple[Round, int], ...]:
        """Rounds in the order they were recorded, with their numbers of steps."""
        return tuple(zip(self._rounds, self._steps, strict=True))

    @property
    def num_steps(self) -> int:
        """How many rounds were recorded."""
        return sum(self._steps)

    # -- asking -----------------------------------------------------------------------------------------

    def epsilon(self, delta: float, *, lower: bool = True) -> EpsilonInterval:
        """ε at δ. An empty history costs nothing.

        Args:
            lower: False leaves the lower end at 0, which takes half the time: for budgets and calibrations,
                which compare upper ends. Where no ε can be certified that end is then infinite, and not a
                ValueError.
        """
        checks.delta(delta)
        if not lower:
            upper, bound = self._certified(delta)
            return EpsilonInterval.below(
                upper,
                bound=bound,
                delta=delta,
                adversary=self._adversary(),
                neighbouring_relation=self.neighbouring_relation,
            )
        found = self._epsilons.get(delta)
        if found is None:
            attained, certified = self._lower_epsilon(delta), self._upper_epsilon(delta)
            if attained[0] > certified[0] * (1 + 1e-6):  # more than numerical errors
                raise ArithmeticError(
                    f"the bounds cross: {attained[1]} gives at least {attained[0]}, {certified[1]} at most "
                    f"{certified[0]}; check that every round's blanket is its mechanism's, and report it"
                )
            found = self._epsilons[delta] = EpsilonInterval(
                lower=min(attained[0], certified[0]),
                upper=certified[0],
                delta=delta,
                neighbouring_relation=self.neighbouring_relation,
                adversary=self._adversary(),
                upper_bound=certified[1],
                lower_bound=attained[1],
            )
        return found

    def delta(self, epsilon: float) -> DeltaInterval:
        """δ at ε ≥ 0."""
        epsilon = checks.number("epsilon", epsilon, at_least=0)
        upper = lower = 0.0
        upper_name, lower_name = self._upper_name(self._method), "none"
        if self._rounds:
            upper = self._replacement.delta(self._composed_delta, epsilon)
            upper = min(upper, 1.0, self._local_delta() if epsilon >= self._pure_epsilon() else 1.0)
            for name, value in self._attained(lambda composition: composition.delta(epsilon)):
                if value >= lower:
                    lower, lower_name = value * (1 - _ROUNDOFF), name
        return DeltaInterval(
            lower=min(lower, upper),
            upper=upper,
            epsilon=epsilon,
            neighbouring_relation=self.neighbouring_relation,
            adversary=self._adversary(),
            upper_bound=upper_name,
            lower_bound=lower_name,
        )

    def local_epsilon(self, delta: float) -> float:
        """Σ ε0 of all rounds: the ε at δ of a client that took part in each of them, if nobody is trusted.

        Infinite if a round has no finite ε0, or Σ δ0 of a client's reports exceeds ``delta``.
        """
        return self._cap(checks.delta(delta))

    def would_exceed(
        self, shuffle_round: Round, *, num_steps: int = 1, target_epsilon: float, delta: float
    ) -> bool:
        """Whether recording these rounds would take the certified ε at ``delta`` over ``target_epsilon``.

        Costs one composition; where the history already ends with such a round, a few, and then next to
        nothing while that kind goes on.
        """
        checks.target_epsilon(target_epsilon)
        checks.delta(delta)
        checks.num_steps(num_steps)
        self._check_joins(shuffle_round)
        goes_on = bool(self._rounds) and self._rounds[-1] == shuffle_round
        taken = self._steps[-1] if goes_on else 0
        question = (len(self._rounds) - goes_on, shuffle_round, target_epsilon, delta)
        if self._allowance is not None:
            known, most = self._allowance
            if known == question and taken + num_steps <= most:
                return False

        def fits(more: int) -> bool:
            if taken + more > 10**12:  # as of core.checks.num_steps
                return False
            return self._with(shuffle_round, num_steps=more)._certified(delta)[0] <= target_epsilon

        if not fits(num_steps):
            return True
        steps = taken + (_stretch(fits, known_good=num_steps) if goes_on else num_steps)
        self._allowance = question, steps
        return False

    def _with(self, shuffle_round: Round, *, num_steps: int) -> Self:
        """This history and further rounds; what was composed of it is shared."""
        longer = type(self)(method=self._method)
        longer._rounds, longer._steps = self._rounds.copy(), self._steps.copy()
        longer._earlier = self._earlier.copy()
        longer._uppers = self._uppers
        longer.step(shuffle_round, num_steps=num_steps)
        return longer

    def rounds_left(self, shuffle_round: Round, *, delta: float) -> tuple[float, float]:
        """How many more such rounds may have an ε at ``delta``, which the δ0 of all reports use up.

        Returns:
            (amplified, any): after more than the first no more than the sum of all ε0 can be certified (basic
            composition), after more than the second no ε at all. Both are infinite for rounds without δ0, and
            for those whose δ0 is not charged, as they are accounted by their likelihoods.
        """
        checks.delta(delta)
        if not shuffle_round.local_delta or not shuffle_round.replacement_distance:
            return math.inf, math.inf
        distance = math.fsum(r.replacement_distance * steps for r, steps in self.history if r.local_delta)
        last = _most(shuffle_round.own_delta, beside=self._local_delta(), within=delta)
        amplified = _most(shuffle_round.replacement_distance, beside=distance, within=delta / 2)
        return min(amplified, last), last

    def bounds(self, delta: float) -> tuple[NamedBound, ...]:
        """Every bound this package has of its own on ε at δ."""
        checks.delta(delta)
        if not self._rounds:
            return ()
        source = "; ".join(sorted({each.SOURCE for each in self._rounds}))
        upper = partial(NamedBound, kind="upper", source=source)
        found = []
        with suppress(ArithmeticError):  # losses beyond what floats can hold
            orders = max(self._replacement.epsilon(each, delta) for each in self._upper_orders())
            found = [
                upper(name=self._upper_name("pld"), epsilon=self._by_losses(delta)),
                upper(name=self._upper_name("rdp"), epsilon=orders),
            ]
        cap = self._cap(delta)
        if cap < math.inf:
            found = [replace(b, epsilon=min(b.epsilon, cap)) for b in found if b.epsilon < math.inf]
            basic = "basic composition of local guarantees"
            found.append(upper(name=_NO_AMPLIFICATION, epsilon=cap, source=basic))
        found = [bound for bound in found if bound.epsilon < math.inf]
        tightest = min((bound.epsilon for bound in found), default=math.inf)
        best: dict[str, float] = {}
        attained = self._attained(lambda composed: composed.epsilon(_above(delta)), every_family=True)
        for name, value in attained:
            best[name] = max(best.get(name, 0.0), value)
        found.extend(
            NamedBound(name=name, kind="lower", epsilon=min(value, tightest), source=source)
            for name, value in best.items()
        )
        return tuple(found)

    # -- checkpoints ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The history in plain dict, tuple, str, int, float and bool."""
        return sealed(
            version=_STATE_VERSION,
            method=self._method,
            neighbouring_relation=str(self.neighbouring_relation),
            history=tuple((r.state(), steps) for r, steps in self.history),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the history by a saved one. On any error this accountant stays as it was.

        ValueError if the state is damaged, of another version or of another method, or does not begin with
        the rounds recorded here: those were released, and must not be forgotten.
        """
        check_saved(state, by=type(self).__name__, version=_STATE_VERSION, method=self._method)
        loaded = type(self)(method=self._method)
        if not isinstance(state.get("history"), (list, tuple)):
            raise ValueError("the saved history is damaged: it is not a list of entries")
        try:
            entries = [(Round.from_state(round_state), steps) for round_state, steps in state["history"]]
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the saved history is damaged: {error}") from error
        for shuffle_round, steps in entries:
            loaded.step(shuffle_round, num_steps=steps)
        if entries and state["neighbouring_relation"] != loaded.neighbouring_relation:
            raise ValueError("the saved history is damaged: its rounds have other neighbours than it says")
        check_none_forgotten(loaded.history, self.history)
        self.__dict__.update(loaded.__dict__)

    # -- composing --------------------------------------------------------------------------------------

    def _adversary(self) -> str:
        return self._rounds[0].adversary.value if self._rounds else "any"

    @property
    def _counts(self) -> dict[Round, int]:
        """Steps of each distinct round, in the order in which they first came."""
        counts = dict(self._earlier)
        if self._rounds:
            counts[self._rounds[-1]] = counts.get(self._rounds[-1], 0) + self._steps[-1]
        return counts

    @property
    def _resolution(self) -> Resolution:
        """How finely the history is resolved."""
        return COARSE if len(self._earlier) > _FEW_ROUNDS else _resolution_of(self._counts)

    def _upper_name(self, method: Method) -> str:
        self._names.update(each.pair_name for each in self._rounds[self._seen :])
        self._seen = len(self._rounds)
        return f"{' and '.join(sorted(self._names)) or 'blanket pair'}, {method.upper()}"

    def _total(self, cost: Callable[[Round], float]) -> float:
        return math.fsum(cost(each) * steps for each, steps in zip(self._rounds, self._steps, strict=True))

    def _pure_epsilon(self) -> float:
        return self._total(lambda each: each.local_epsilon)

    def _local_delta(self) -> float:
        """δ of the local guarantees, composed without amplification."""
        return min(self._total(lambda each: each.own_delta), 1.0)

    @property
    def _replacement(self) -> _Replacement:
        replaced = tuple((r, n) for r, n in self.history if r.replacement_distance or r.CHARGED_BY_RATIO)
        distance = math.fsum(r.replacement_distance * steps for r, steps in replaced)
        return _Replacement(replaced, distance=distance)

    def _cap(self, delta: float) -> float:
        """ε by basic composition of the local guarantees; infinite if their δ is too large for it."""
        return self._pure_epsilon() if self._local_delta() <= delta else math.inf

    def _in_parts(self, delta: float) -> float:
        """ε by basic composition of parts of the history, for histories whose ε is too large in one piece."""
        most = max(self._steps)
        parts = 2
        while parts <= 2 * most:
            total = 0.0
            for recorded, steps in self.history:
                size = -(-steps // parts)
                part = type(self)(method=self._method)
                part.step(recorded, num_steps=size)
                total += -(-steps // size) * part._in_one_piece(delta / (parts * len(self._rounds)))[0]
            if total < math.inf:
                return total
            parts *= 2
        return math.inf

    def _upper_compositions(self) -> Iterator[LossComposition]:
        """The history composed; in both directions if to add a record costs another ε than to remove it."""
        resolution, counts = self._resolution, self._counts
        if resolution is COARSE:
            return self._uppers.compositions(self._rounds, self._steps)
        return (LossComposition(laws, list(counts.values())) for laws in _laws(upper_law, counts, resolution))

    def _upper_orders(self) -> Iterator[RenyiComposition]:
        counts = self._counts
        for laws in _laws(upper_law, counts, _resolution_of(counts)):
            yield RenyiComposition(laws, list(counts.values()))

    def _composed_delta(self, epsilon: float) -> float:
        found = []
        if self._method == "pld":
            with suppress(ArithmeticError):  # rounds of very different scales share no grid
                found.append(max(each.delta(epsilon) for each in self._upper_compositions()))
        if not found or self._takes_orders:
            with suppress(ArithmeticError):  # losses beyond what floats can hold
                found.append(max(each.delta(epsilon) for each in self._upper_orders()))
        return min(found, default=1.0)

    @property
    def _takes_orders(self) -> bool:
        """Whether Rényi orders are asked: so many steps leave the grid of losses coarse, or none is used."""
        return self._method == "rdp" or sum(self._steps) > _MOST_LOSS_STEPS

    def _upper_epsilon(self, delta: float) -> tuple[float, str]:
        tightest = self._certified(delta)
        own = self._local_delta()
        if tightest[0] == math.inf and own > 0:
            raise ValueError(
                f"no ε at δ={delta:g}: the reports' own δ0 and cut tails add up to {own:.3g} for one client, "
                f"and to {self._replacement.charge(0.0):.3g} with pure randomizers instead of (ε0, δ0) ones; "
                f"use a smaller δ0 (more noise), fewer rounds, or a larger δ{self._remedies()}"
            )
        if tightest[0] == math.inf:
            raise ValueError(
                f"no ε at δ={delta:g} can be certified: these sums have next to no noise, or are too far "
                f"({self._replacement.distance:.3g}, charged 1 + e^ε times) from what covers them; use "
                "more coins or shares, more noise, fewer rounds, or a larger δ"
            )
        return tightest

    def _remedies(self) -> str:
        return "".join(f"; {each}" for each in dict.fromkeys(one.remedy for one in self._rounds) if each)

    def _certified(self, delta: float) -> tuple[float, str]:
        """The least certified ε and its bound's name; infinite if there is none."""
        found = self._answers.get(delta)
        if found is None:
            found = self._in_one_piece(delta)
            close = any(each.CHARGED_BY_RATIO for each in self._rounds)
            if found[0] == math.inf and close and sum(self._steps) > 1:
                found = self._in_parts(delta), f"{self._upper_name(self._method)}, in parts"
            self._answers[delta] = found
        return found

    def _in_one_piece(self, delta: float) -> tuple[float, str]:
        """As :meth:`_certified`, of the whole history at once."""
        name = self._upper_name(self._method)
        if not self._rounds:
            return 0.0, name
        found = [(self._cap(delta), _NO_AMPLIFICATION)]
        if self._method == "pld":
            found.append((self._by_losses(delta), name))
        if self._takes_orders or found[-1][0] == math.inf:
            with suppress(ArithmeticError):  # losses beyond what floats can hold
                bound = max(self._replacement.epsilon(each, delta) for each in self._upper_orders())
                found.append((bound, self._upper_name("rdp")))
        return min(found)

    def _by_losses(self, delta: float) -> float:
        """Certified ε by privacy losses; infinite if floats or one grid cannot hold them all."""
        try:
            return max(self._replacement.epsilon(each, delta) for each in self._upper_compositions())
        except ArithmeticError:
            return math.inf

    def _attained(
        self, ask: Callable[[LossComposition], float], *, every_family: bool = False
    ) -> Iterator[tuple[str, float]]:
        """What real instances of the history answer, by name; nothing where no grid is fine and wide enough.

        Of each round the family that leaks most is taken, in both directions: a record's meaning may differ
        from round to round, so families mix freely; the direction may not. With ``every_family``, each that
        all rounds have is composed as well.
        """
        for each in self._rounds[self._told :]:
            self._telling &= bool(lower_families(each))
            if self._telling:
                self._leading_names.add(_leading(each, COARSE))
        self._told = len(self._rounds)
        if not self._rounds or not self._telling:
            return
        resolution, named = self._resolution, []
        if resolution is COARSE:
            name = ", ".join(sorted(self._leading_names))
            named.append((name, self._lowers.compositions(self._rounds, self._steps)))
        if resolution is not COARSE or every_family:
            named.extend(self._attained_at_once(resolution, every_family=every_family))
        for name, compositions in named:
            with suppress(ArithmeticError):
                for composition in compositions:
                    yield name, ask(composition)

    def _attained_at_once(
        self, resolution: Resolution, *, every_family: bool
    ) -> Iterator[tuple[str, Iterator[LossComposition]]]:
        counts = self._counts
        picks = [{each: _leading(each, resolution) for each in counts}]
        if every_family:
            shared = set.intersection(*(set(lower_families(each)) for each in counts))
            leading = set(picks[0].values())
            picks += [dict.fromkeys(counts, name) for name in sorted(shared) if {name} != leading]
        for pick in picks[resolution is COARSE :]:
            laws = _laws(partial(_lower_law, families=pick), counts, resolution)
            composed = (LossComposition(each, list(counts.values())) for each in laws)
            yield ", ".join(sorted(set(pick.values()))), composed

    def _lower_epsilon(self, delta: float) -> tuple[float, str]:
        best, best_name, most = 0.0, "none", self._cap(delta)
        for name, value in self._attained(lambda composition: composition.epsilon(_above(delta))):
            if value > best:
                best, best_name = value, name
            if best >= (1 - 1e-6) * most:
                break
        return best, best_name


class BothDirections:
    """A history composed from one side, in both directions where they differ; what was composed is kept.

    Args:
        law_of: the law of a round at a resolution, or with the two datasets exchanged if ``reverse``.
        resolution: of the laws.
    """

    def __init__(self, law_of: Callable[..., PrivacyLossDistribution], resolution: Resolution) -> None:
        self._histories = [
            LossHistory(partial(law_of, resolution=resolution, reverse=reverse)) for reverse in (False, True)
        ]

    def compositions(self, rounds: list[Round], steps: list[int]) -> Iterator[LossComposition]:
        """The history, and the same reversed if that is another one."""
        for history in self._histories:
            yield LossComposition(rounds, steps, history=history)
            if not history.total.directed:
                break


def _laws(
    law_of: Callable[..., PrivacyLossDistribution], counts: Mapping[Round, int], resolution: Resolution
) -> Iterator[list[PrivacyLossDistribution]]:
    """The laws of distinct rounds, and the same reversed if they are others."""
    for reverse in (False, True):
        laws = [law_of(each, resolution=resolution, reverse=reverse) for each in counts]
        yield laws
        if all(law.symmetric for law in laws):
            break


def upper_law(each: Round, *, resolution: Resolution, reverse: bool) -> PrivacyLossDistribution:
    """The law of a dominating pair, or of the pair exchanged."""
    found = upper_losses(each, resolution)
    return found.reversed() if reverse else found


def _lower_law(
    each: Round, *, resolution: Resolution, reverse: bool, families: Mapping[Round, str] | None = None
) -> PrivacyLossDistribution:
    family = _leading(each, resolution) if families is None else families[each]
    return (reversed_lower_losses if reverse else lower_losses)(each, family, resolution)


def _leading(each: Round, resolution: Resolution) -> str:
    """The family that leaks most of those whose losses can be computed."""
    families = lower_families(each)
    for family in families:
        with suppress(ArithmeticError):  # no outcome that floats can hold
            lower_losses(each, family, resolution)
            return family
    return families[0]


@dataclass(frozen=True, slots=True)
class _Replacement:
    """What it costs that rounds are accounted through others that they are close to, taken together.

    Reports that are (ε0, δ0)-LDP are replaced by pure ones, sums with noise of coins by Gaussian mechanisms
    (``docs/proofs/accounting.md`` and ``docs/proofs/sums.md``). A total variation between the two, the
    ``distance``, is charged to δ, 1 + e^ε times. Where ε is large that is too much; of rounds whose
    likelihoods are within e^η of each other, η is charged to ε instead, twice.
    """

    history: tuple[tuple[Round, int], ...]
    distance: float

    def charge(self, epsilon: float) -> float:
        """What the distance adds to δ at ε."""
        return (1.0 + math.exp(min(epsilon, _LARGEST))) * self.distance if self.distance else 0.0

    def epsilon(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """The least ε at ``delta`` of the history, from what is composed in its place; rounded up."""
        delta *= 1 - _ROUNDOFF
        if not self.distance:
            return composition.epsilon(delta)
        charged = self._charged_to_delta(composition, delta)
        if self.charge(charged) <= _SMALL_CHARGE * delta:
            return charged
        return min(charged, self._charged_to_epsilon(composition, delta))

    def delta(self, composed: Callable[[float], float], epsilon: float) -> float:
        """δ at ε of the history, from δ of what is composed in its place, a function of ε; rounded up."""
        own = composed(epsilon) * (1 + _ROUNDOFF)
        charge = self.charge(epsilon)
        if charge <= _SMALL_CHARGE * own:
            return own + charge
        tail = max(_TAIL_SHARE * own, 1e-250)
        ratio, distance = self._closeness(epsilon, tail=tail)
        if not 2 * ratio <= epsilon < _LARGEST:
            return own + charge
        replaced = composed(epsilon - 2 * ratio) * (1 + _ROUNDOFF)
        replaced = math.exp(ratio) * (replaced + tail + (1 + math.exp(epsilon)) * distance)
        return min(own + charge, replaced * (1 + _ROUNDOFF))

    def _charged_to_delta(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """The least ε with composed δ plus the distance's charge at that very ε within ``delta``."""
        return _raised_until(lambda epsilon: (delta - self.charge(epsilon), 0.0), composition, start=0.0)

    def _charged_to_epsilon(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """ε of what is composed instead, and twice the η within whose e^η it is of the history.

        What the η does not cover is a tail, so small that e^ε times it is a thousandth of ``delta``
        (docs/proofs/sums.md, "Large ε").
        """

        def left(epsilon: float) -> tuple[float, float]:
            tail = _TAIL_SHARE * delta
            ratio, distance = self._closeness(epsilon, tail=tail)
            if not max(ratio, epsilon) < _LARGEST:
                return 0.0, 0.0
            return delta * math.exp(-ratio) - tail - (1 + math.exp(epsilon)) * distance, 2 * ratio

        return _raised_until(left, composition, start=composition.epsilon(delta / 2)) * (1 + _ROUNDOFF)

    def _closeness(self, epsilon: float, *, tail: float) -> tuple[float, float]:
        """η of the rounds that have one together, and the distance of those that have only a distance.

        Args:
            epsilon: at which a tail is charged 1 + e^ε times.
            tail: what all tails together may be charged.
        """
        close = [(r, steps) for r, steps in self.history if r.CHARGED_BY_RATIO]
        others = [(r, steps) for r, steps in self.history if not r.CHARGED_BY_RATIO]
        if not close:
            return math.inf, 0.0
        log_tail = math.log(tail) - float(np.logaddexp(0.0, epsilon))
        log_tail -= math.log(sum(steps for _, steps in close))
        ratio = math.fsum(r.replacement_ratio(log_tail) * steps for r, steps in close)
        return ratio, math.fsum(r.replacement_distance * steps for r, steps in others)


def _raised_until(
    left: Callable[[float], tuple[float, float]],
    composition: LossComposition | RenyiComposition,
    *,
    start: float,
) -> float:
    """ε that what is ``left`` of δ at that very ε allows, plus what is charged to ε there; or infinity.

    What is left falls with ε, so that ε is raised until it is enough; each step raises it, so few are needed.
    """
    epsilon = start
    for _ in range(200):
        target, charged = left(epsilon)
        if target <= 0:
            break
        needed = composition.epsilon(target)
        if needed <= epsilon or needed == math.inf:
            return needed + charged
        epsilon = needed * (1 + 1e-6)  # past the answer
    return math.inf


def _stretch(fits: Callable[[int], bool], *, known_good: int) -> int:
    """A number of steps, at least ``known_good``, that was checked to fit."""
    good, step = known_good, max(known_good, 16)
    for _ in range(8):
        if not fits(good + step):
            break
        good, step = good + step, step * 2
    while step > max(good // 64, 1):
        step //= 2
        if fits(good + step):
            good += step
    return good


def sealed(*, version: int, method: Method, **kept: Any) -> dict[str, Any]:
    """A state that says what it is for, and has a digest by which :func:`check_saved` knows it again."""
    state = {"neighbouring_relation": NEIGHBOURING_RELATION, **kept, "version": version, "method": method}
    return {**state, "digest": _digest(state)}


def _digest(state: Mapping[str, Any]) -> str:
    """The same for tuples and for the lists that JSON makes of them."""
    kept = {name: value for name, value in state.items() if name != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def check_saved(state: object, *, by: str, version: int, method: Method) -> None:
    """Check what a saved state says of itself, and that it is as it was written.

    A cohort that was halved, or a participant's round that is missing, would lower ε.
    """
    saved = state if isinstance(state, Mapping) else {}
    if type(saved.get("version")) is not int or saved["version"] != version:
        raise ValueError(f"not a state of {by}, or of a version this release cannot read")
    if saved.get("method") != method:
        raise ValueError(f"saved by method {saved.get('method')!r}, this accountant uses {method!r}")
    if saved.get("neighbouring_relation") not in tuple(NeighbouringRelation):
        raise ValueError("the state is for no neighbouring relation that is known here")
    try:
        kept_whole = saved.get("digest") == _digest(saved)
    except (TypeError, ValueError):
        kept_whole = False
    if not kept_whole:
        raise ValueError(
            "the saved history is damaged: it is not what was written; take an earlier checkpoint"
        )


def _most(each: float, *, beside: float, within: float) -> int:
    """How often ``each`` fits ``within`` a limit ``beside`` what is there already."""
    count = max(math.floor((within - beside) / each), 0)
    while count and beside + count * each > within:
        count -= 1
    return count


def check_none_forgotten(saved: Sequence[tuple[object, int]], recorded: Sequence[tuple[object, int]]) -> None:
    """Refuse a saved history, of entries and how often each, that does not go on from what was recorded.

    What was recorded since it was saved, or in its place, was released.
    """
    last = len(recorded) - 1
    goes_on = not recorded or (
        len(saved) > last
        and list(saved[:last]) == list(recorded[:last])
        and saved[last][0] == recorded[last][0]
        and saved[last][1] >= recorded[last][1]
    )
    if not goes_on:
        count, known = (sum(each[1] for each in entries) for entries in (saved, recorded))
        raise ValueError(
            f"the state's {count} rounds do not begin with the {known} of this accountant: what was released "
            "would be forgotten. Keep this accountant, or load the state into a new one"
        )


def _resolution_of(counts: Mapping[Round, int]) -> Resolution:
    if sum(counts.values()) == 1 and all(map(resolves_alone, counts)):
        return SINGLE
    return FINE if len(counts) <= _FEW_ROUNDS else COARSE


def pair_epsilon_interval(accountant: ShuffleAccountant, delta: float) -> tuple[float, float]:
    """Between which values the exact ε of the dominating pair lies: the error of the numerics alone.

    Pairs other than counts (envelopes over datasets, slots of many weights) are bounded from above only;
    with them in the history the lower end is what a real instance attains.
    """
    found, counts = accountant.epsilon(delta), accountant._counts
    if not counts:
        return 0.0, 0.0
    laws = [each.upper_losses_from_below(_resolution_of(counts)) for each in counts]
    known = [law for law in laws if law is not None]
    if any(each.replacement_distance for each in counts) or len(known) < len(counts):
        return found.lower, found.upper
    return min(LossComposition(known, list(counts.values())).epsilon(delta), found.upper), found.upper


def _above(delta: float) -> float:
    return min(delta * (1 + _ROUNDOFF), (1 + delta) / 2)
