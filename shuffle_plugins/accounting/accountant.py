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
from shuffle_plugins.accounting.losses import COARSE, FINE, PrivacyLossDistribution, Resolution
from shuffle_plugins.accounting.rounds.groups import LabelledRound
from shuffle_plugins.accounting.rounds.round import (
    Round,
    check_recordable,
    lower_families,
    lower_losses,
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
_AT_ONCE = 32  # distinct rounds that are composed anew for every question, which is the finest
_CLOSE = 0.99  # share of the upper end from which no larger lower end is looked for
_LARGEST = 700.0  # e to this power is a float
_ROUNDOFF = 1e-9  # relative, of a computed δ, which is moved to the safe side: small ε0 leave few digits
_SMALL_CHARGE = 1e-2  # share of δ below which the distance is charged to δ alone: less is not to be gained
_TAIL_SHARE = 1e-3  # share of δ that may be spent on tails where η is charged to ε
_NO_AMPLIFICATION = "local epsilon, no amplification"


class BudgetExceeded(RuntimeError):
    """A round would cost more than the budget; nothing of it was recorded or released."""


class ShuffleAccountant:
    """Adds up rounds and says what they cost together: replace-one neighbours at public, fixed population.

    Rounds may follow adaptively on each other and may differ in every field but the adversary. ``method``
    says how upper bounds compose: ``"pld"`` (tightest) or ``"rdp"`` (Rényi divergences, 5–15 % looser).

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
        self._named = self._told = 0  # entries whose pairs' names, and whose instances, are known
        self._names: set[str] = set()
        self._leading: set[str] = set()  # names of instances
        self._telling = True  # whether every entry that is known has an instance
        self._epsilons: dict[float, EpsilonInterval] = {}
        self._answers: dict[float, tuple[float, str]] = {}
        self._allowance: tuple[tuple[Any, ...], int] | None = None  # a question, and steps that are within
        self._uppers, self._lowers = BothDirections(upper_law), BothDirections(_lower_law)

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

    def of_group(self, local_epsilon: float) -> Self:
        """The same history for the members of the group of this ε0, of every ``LabelledRound`` in it."""
        found = type(self)(method=self.method)
        for recorded, num_steps in self.history:
            own = recorded.member(local_epsilon) if isinstance(recorded, LabelledRound) else recorded
            found.step(own, num_steps=num_steps)
        return found

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

        ``lower=False`` leaves the lower end at 0, which takes half the time: for budgets and calibrations.
        Where no ε can be certified the upper end is then infinite, and not a ValueError.
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
            certified = self._certified(delta)
            if certified[0] == math.inf:
                raise ValueError(f"no ε at δ={delta:g}{self._why_none(delta)}")
            attained = self._lower_epsilon(delta, upper=certified[0])
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
        upper, lower, lower_name = 0.0, 0.0, "none"
        upper_name = self._upper_name(self._method)
        if self._rounds:
            upper = self._replacement.delta(self._of_stand_ins, epsilon)
            upper = min(upper, 1.0, self._local_delta() if epsilon >= self._pure_epsilon() else 1.0)
            lower, lower_name = self._best_attained(lambda each: each.delta(epsilon), upper=upper)
            lower *= 1 - _ROUNDOFF
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
            return self.and_rounds(shuffle_round, num_steps=more)._certified(delta)[0] <= target_epsilon

        if not fits(num_steps):
            return True
        steps = taken + (_stretch(fits, known_good=num_steps) if goes_on else num_steps)
        self._allowance = question, steps
        return False

    def and_rounds(self, shuffle_round: Round, *, num_steps: int) -> Self:
        """An accountant of this history and further rounds, to ask what these would cost."""
        longer = type(self)(method=self._method)
        longer._rounds, longer._steps = self._rounds.copy(), self._steps.copy()
        longer._earlier = self._earlier.copy()
        longer._uppers = self._uppers
        longer.step(shuffle_round, num_steps=num_steps)
        return longer

    def rounds_left(self, shuffle_round: Round, *, delta: float) -> tuple[float, float]:
        """How many more such rounds may have an ε at ``delta``, which the δ0 of all reports use up.

        Two numbers: after more than the first only the sum of all ε0 can be certified (basic composition),
        after more than the second no ε at all. Infinite where no δ0 is charged.
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
        found.extend(
            NamedBound(name=name, kind="lower", epsilon=min(value, tightest), source=source)
            for name, value in self._attained(lambda composed: composed.epsilon(_above(delta)))
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
        """Replace the history by a saved one; on any error this accountant stays as it was.

        A state that does not begin with the rounds recorded here is refused: those were released.
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
        """Steps of each distinct round."""
        counts = dict(self._earlier)
        if self._rounds:
            counts[self._rounds[-1]] = counts.get(self._rounds[-1], 0) + self._steps[-1]
        return counts

    def _upper_name(self, method: Method) -> str:
        self._names.update(each.pair_name for each in self._rounds[self._named :])
        self._named = len(self._rounds)
        return f"{' and '.join(sorted(self._names)) or 'blanket pair'}, {method.upper()}"

    def _total(self, cost: Callable[[Round], float]) -> float:
        return math.fsum(cost(each) * steps for each, steps in zip(self._rounds, self._steps, strict=True))

    def _pure_epsilon(self) -> float:
        return self._total(lambda each: each.local_epsilon)

    def _local_delta(self) -> float:
        return min(self._total(lambda each: each.own_delta), 1.0)

    @property
    def _replacement(self) -> _Replacement:
        replaced = tuple((r, n) for r, n in self.history if r.replacement_distance or r.CHARGED_BY_RATIO)
        distance = math.fsum(r.replacement_distance * steps for r, steps in replaced)
        return _Replacement(replaced, distance=distance)

    def _cap(self, delta: float) -> float:
        """ε by basic composition of the local guarantees."""
        return self._pure_epsilon() if self._local_delta() <= delta else math.inf

    def _composed(self, directions: BothDirections) -> Iterator[LossComposition]:
        return directions.compositions(self._rounds, self._steps, self._counts)

    def _upper_orders(self) -> Iterator[RenyiComposition]:
        counts = self._counts
        for exchanged in (False, True):
            laws = [upper_law(each, _resolution_of(counts), exchanged=exchanged) for each in counts]
            yield RenyiComposition(laws, list(counts.values()))
            if all(law.symmetric for law in laws):
                break

    def _of_stand_ins(self, epsilon: float) -> float:
        found = []
        if self._method == "pld":
            with suppress(ArithmeticError):  # rounds of very different scales share no grid
                found.append(max(each.delta(epsilon) for each in self._composed(self._uppers)))
        if not found or self._takes_orders:
            with suppress(ArithmeticError):  # losses beyond what floats can hold
                found.append(max(each.delta(epsilon) for each in self._upper_orders()))
        return min(found, default=1.0)

    @property
    def _takes_orders(self) -> bool:
        # Of a million steps the grid of losses is so coarse that orders may be tighter.
        return self._method == "rdp" or sum(self._steps) > 10**6

    def _why_none(self, delta: float) -> str:
        own, replacement = self._local_delta(), self._replacement
        if own > 0:
            remedies = dict.fromkeys(each.remedy for each in self._rounds if each.remedy)
            return (
                f": the reports' own δ0 and cut tails add up to {own:.3g} for one client, "
                f"and to {replacement.charge(0.0):.3g} with pure randomizers instead of (ε0, δ0) ones; "
                + "; ".join(["use a smaller δ0 (more noise), fewer rounds, or a larger δ", *remedies])
            )
        return (
            " can be certified: these sums have next to no noise, or are too far "
            f"({replacement.distance:.3g}, charged 1 + e^ε times) from what covers them; use "
            "more coins or shares, more noise, fewer rounds, or a larger δ"
        )

    def _certified(self, delta: float) -> tuple[float, str]:
        found = self._answers.get(delta)
        if found is None:
            found = self._answers[delta] = self._in_one_piece(delta)
        return found

    def _in_one_piece(self, delta: float) -> tuple[float, str]:
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
        """Infinite if floats or one grid cannot hold all losses."""
        try:
            return max(self._replacement.epsilon(each, delta) for each in self._composed(self._uppers))
        except ArithmeticError:
            return math.inf

    def _attained(self, ask: Callable[[LossComposition], float]) -> Iterator[tuple[str, float]]:
        """What real instances of the history answer, by name; nothing where no grid is fine and wide enough.

        A record's meaning may differ from round to round, so of each the family that leaks most is taken; the
        direction may not. Then each family that all rounds have, if these are of few kinds.
        """
        for each in self._rounds[self._told :]:  # a long history is asked again and again
            self._telling &= bool(lower_families(each))
            if self._telling:
                self._leading.add(_leading(each, COARSE if len(self._earlier) > _AT_ONCE else FINE))
        self._told = len(self._rounds)
        if not self._rounds or not self._telling:
            return
        asked = [(", ".join(sorted(self._leading)), self._lowers)]
        if len(self._counts) <= _AT_ONCE:
            shared = set.intersection(*(set(lower_families(each)) for each in self._counts))
            others = sorted(name for name in shared if {name} != self._leading)
            asked += [(name, BothDirections(partial(_lower_law, family=name))) for name in others]
        for name, directions in asked:
            best = -math.inf
            with suppress(ArithmeticError):
                for composition in self._composed(directions):
                    best = max(best, ask(composition))
            if best > -math.inf:
                yield name, best

    def _lower_epsilon(self, delta: float, *, upper: float) -> tuple[float, str]:
        return self._best_attained(lambda each: each.epsilon(_above(delta)), upper=upper)

    def _best_attained(self, ask: Callable[[LossComposition], float], *, upper: float) -> tuple[float, str]:
        """The largest answer of a real instance, or the first that is close to the upper end."""
        best = 0.0, "none"
        for name, value in self._attained(ask):
            if value > best[0]:
                best = value, name
            if value >= _CLOSE * upper:
                break
        return best


class BothDirections:
    """Histories composed from one side, in both directions where they differ; what was composed is kept.

    ``law_of`` is the law of a round at a resolution, also with the two datasets exchanged. Up to
    ``most_fine`` distinct rounds are resolved finely.
    """

    def __init__(self, law_of: Callable[..., PrivacyLossDistribution], *, most_fine: int = _AT_ONCE) -> None:
        self._law_of, self._most_fine = law_of, most_fine
        self._kept: dict[tuple[Resolution, bool], LossHistory[Round]] = {}

    def compositions(
        self, rounds: list[Round], steps: list[int], counts: Mapping[Round, int]
    ) -> Iterator[LossComposition]:
        """The history, of which ``counts`` has the steps of distinct rounds; and exchanged, if it differs."""
        resolution = FINE if len(counts) <= self._most_fine else COARSE
        for exchanged in (False, True):
            law_of = partial(self._law_of, resolution=resolution, exchanged=exchanged)
            if len(counts) <= _AT_ONCE:
                laws = [law_of(each) for each in counts]
                yield LossComposition(laws, list(counts.values()))
                symmetric = all(law.symmetric for law in laws)
            else:
                history = self._kept.setdefault((resolution, exchanged), LossHistory(law_of))
                yield LossComposition(rounds, steps, history=history)
                symmetric = not history.total.directed
            if symmetric:
                break


def upper_law(each: Round, resolution: Resolution, *, exchanged: bool) -> PrivacyLossDistribution:
    """:func:`upper_losses`, also of the pair with its two datasets exchanged."""
    found = upper_losses(each, resolution)
    return found.reversed() if exchanged else found


def _lower_law(
    each: Round, resolution: Resolution, *, exchanged: bool, family: str | None = None
) -> PrivacyLossDistribution:
    return lower_losses(each, family or _leading(each, resolution), resolution, exchanged=exchanged)


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
    """What it costs that rounds are accounted through stand-ins that they are close to.

    A total variation between the two, the ``distance``, is charged to δ, 1 + e^ε times. Where ε is large that
    is too much; of rounds whose likelihoods are within e^η of each other, η is charged to ε instead, twice
    (``docs/proofs/accounting.md``; ``docs/proofs/sums.md``, "Large ε").
    """

    history: tuple[tuple[Round, int], ...]
    distance: float

    def charge(self, epsilon: float) -> float:
        return (1.0 + math.exp(min(epsilon, _LARGEST))) * self.distance if self.distance else 0.0

    def epsilon(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        """The least ε at ``delta``, from what is composed in the history's place; rounded up."""
        delta *= 1 - _ROUNDOFF
        if not self.distance:
            return composition.epsilon(delta)
        # The least ε with composed δ plus the distance's charge at that very ε within δ.
        charged = _raised_until(lambda epsilon: (delta - self.charge(epsilon), 0.0), composition, start=0.0)
        if self.charge(charged) <= _SMALL_CHARGE * delta:
            return charged
        return min(charged, self._charged_to_epsilon(composition, delta))

    def delta(self, composed: Callable[[float], float], epsilon: float) -> float:
        """δ at ε, from δ of what is composed in the history's place, a function of ε; rounded up."""
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

    def _charged_to_epsilon(self, composition: LossComposition | RenyiComposition, delta: float) -> float:
        def left(epsilon: float) -> tuple[float, float]:
            tail = _TAIL_SHARE * delta
            ratio, distance = self._closeness(epsilon, tail=tail)
            if not max(ratio, epsilon) < _LARGEST:
                return 0.0, 0.0
            return delta * math.exp(-ratio) - tail - (1 + math.exp(epsilon)) * distance, 2 * ratio

        return _raised_until(left, composition, start=composition.epsilon(delta / 2)) * (1 + _ROUNDOFF)

    def _closeness(self, epsilon: float, *, tail: float) -> tuple[float, float]:
        """η of the rounds that have one, and the distance of the others; tails are charged ``tail`` at ε."""
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
    """The least ε that what is ``left`` of δ at that very ε allows, plus what is charged to ε there."""
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
    """A number of steps that was checked to fit."""
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
    """A state with a digest by which :func:`check_saved` knows it again."""
    state = {"neighbouring_relation": NEIGHBOURING_RELATION, **kept, "version": version, "method": method}
    return {**state, "digest": _digest(state)}


def _digest(state: Mapping[str, Any]) -> str:
    """The same for tuples and for the lists that JSON makes of them."""
    kept = {name: value for name, value in state.items() if name != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def check_saved(state: object, *, by: str, version: int, method: Method) -> None:
    """Refuse a state of something else, or that was changed: a cohort that was halved would lower ε."""
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
    count = max(math.floor((within - beside) / each), 0)
    while count and beside + count * each > within:
        count -= 1
    return count


def check_none_forgotten(saved: Sequence[tuple[object, int]], recorded: Sequence[tuple[object, int]]) -> None:
    """Refuse a history, of entries and how often each, that does not go on from what was recorded here."""
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
    return FINE if len(counts) <= _AT_ONCE else COARSE


def pair_epsilon_interval(accountant: ShuffleAccountant, delta: float) -> tuple[float, float]:
    """Between which values the exact ε of the dominating pair lies: the error of the numerics alone.

    With pairs in the history that are bounded from above only, the lower end is what an instance attains.
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
