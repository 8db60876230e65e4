"""The accountant: a history of rounds, and what it costs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

from shuffle_plugins.accounting.composition.growing import GrowingHistory
from shuffle_plugins.accounting.composition.pld import LossComposition
from shuffle_plugins.accounting.composition.renyi import RenyiComposition
from shuffle_plugins.accounting.instances import Instances
from shuffle_plugins.accounting.intervals import DeltaInterval, EpsilonInterval, NamedBound
from shuffle_plugins.accounting.losses.distribution import (
    COARSE,
    FINE,
    SINGLE,
    PrivacyLossDistribution,
    Resolution,
)
from shuffle_plugins.accounting.replacement import ROUNDOFF, Replacement
from shuffle_plugins.accounting.rounds.round import Round, check_recordable, resolves_alone, upper_losses
from shuffle_plugins.accounting.terms import NEIGHBOURING_RELATION, Method, check_method
from shuffle_plugins.core import checks

_STATE_VERSION = 3
_MOST_FINE_ROUNDS = 32  # distinct rounds that are composed finely; with more, a question takes seconds
_MOST_STEPS = 10**12  # as of core.checks.num_steps
_MOST_LOSS_STEPS = 10**6  # beyond which the grid of losses is so coarse that Rényi orders may be tighter
_CROSSING = 1e-6  # relative; bounds that cross by more than their numerical errors are a defect
_CLOSED = 1 - 1e-6  # share of what costs no amplification: no lower end is looked for above it
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

    Raises:
        ValueError: if ``method`` is unknown.

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
        self._sums = _Sums()  # of the same entries
        self._epsilons: dict[float, EpsilonInterval] = {}
        self._uppers: dict[float, tuple[float, str]] = {}
        self._allowance: _Allowance | None = None
        self._upper_history = GrowingHistory(_coarse_law)
        self._instances = Instances()

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}, {self._method}: {self.num_steps:,} rounds, "
            f"adversary: {self._adversary()}>"
        )

    # -- recording --------------------------------------------------------------------------------------

    def step(self, shuffle_round: Round, *, num_steps: int = 1) -> None:
        """Record ``num_steps`` rounds. Call it before the rounds' output is released.

        Raises:
            TypeError: if ``shuffle_round`` is not a round of a kind that is accounted.
            ValueError: if ``num_steps`` is not a positive int, the round is measured against another
                adversary than the history, or a third party's round has no kind or numbers out of range.
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
                self._sums = self._sums.joined(rounds[-1], self._steps[-1])
            rounds.append(shuffle_round)
            self._steps.append(num_steps)
        if self._epsilons or self._uppers:
            self._epsilons, self._uppers = {}, {}
        allowance = self._allowance
        if allowance is not None and not allowance.covers(rounds[-1], before=len(rounds) - 1):
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

    @property
    def method(self) -> Method:
        """How upper bounds compose: ``"pld"`` or ``"rdp"``."""
        return self._method

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
            delta: in (0, 1).
            lower: False leaves the lower end at 0, which takes half the time: for budgets and calibrations,
                which compare upper ends. Where no ε can be certified that end is then infinite.

        Raises:
            ValueError: if ``delta`` is not in (0, 1), or, unless ``lower`` is false, less than what the
                rounds' own δ0 adds up to.
        """
        checks.delta(delta)
        if not lower:
            return self._interval(delta, (0.0, "none"), self._certified(delta))
        found = self._epsilons.get(delta)
        if found is None:
            attained, certified = self._lower_epsilon(delta), self._upper_epsilon(delta)
            if attained[0] > certified[0] * (1 + _CROSSING):
                raise ArithmeticError(
                    f"the bounds cross: {attained[1]} gives at least {attained[0]}, {certified[1]} at most "
                    f"{certified[0]}; check that every round's blanket is its mechanism's, and report it"
                )
            found = self._epsilons[delta] = self._interval(delta, attained, certified)
        return found

    def _interval(
        self, delta: float, attained: tuple[float, str], certified: tuple[float, str]
    ) -> EpsilonInterval:
        return EpsilonInterval(
            lower=min(attained[0], certified[0]),
            upper=certified[0],
            delta=delta,
            neighbouring_relation=NEIGHBOURING_RELATION,
            adversary=self._adversary(),
            upper_bound=certified[1],
            lower_bound=attained[1],
        )

    def delta(self, epsilon: float) -> DeltaInterval:
        """δ at ε ≥ 0.

        Raises:
            ValueError: if ``epsilon`` is negative or not finite.
        """
        epsilon = checks.number("epsilon", epsilon, at_least=0)
        upper = lower = 0.0
        upper_name, lower_name = self._upper_name(self._method), "none"
        if self._rounds:
            upper = self._replacement.delta(self._composed_delta, epsilon)
            upper = min(upper, 1.0, self._local_delta() if epsilon >= self._pure_epsilon() else 1.0)
            for name, value in self._attained(lambda composition: composition.delta(epsilon)):
                if value >= lower:
                    lower, lower_name = value * (1 - ROUNDOFF), name
        return DeltaInterval(
            lower=min(lower, upper),
            upper=upper,
            epsilon=epsilon,
            neighbouring_relation=NEIGHBOURING_RELATION,
            adversary=self._adversary(),
            upper_bound=upper_name,
            lower_bound=lower_name,
        )

    def local_epsilon(self, delta: float) -> float:
        """Σ ε0 of all rounds: the ε at δ of a client that took part in each of them, if nobody is trusted.

        Infinite if a round has no finite ε0, or Σ δ0 of a client's reports exceeds ``delta``.

        Raises:
            ValueError: if ``delta`` is not in (0, 1).
        """
        return self._cap(checks.delta(delta))

    def would_exceed(
        self, shuffle_round: Round, *, num_steps: int = 1, target_epsilon: float, delta: float
    ) -> bool:
        """Whether recording these rounds would take the certified ε at ``delta`` over ``target_epsilon``.

        Costs one composition; where the history already ends with such a round, a few, and then next to
        nothing while that kind goes on.

        Raises:
            ValueError: as :meth:`step` and :meth:`epsilon`.
        """
        checks.target_epsilon(target_epsilon)
        checks.delta(delta)
        checks.num_steps(num_steps)
        self._check_joins(shuffle_round)
        goes_on = bool(self._rounds) and self._rounds[-1] == shuffle_round
        before = len(self._rounds) - goes_on
        taken = self._steps[-1] if goes_on else 0
        allowance = self._allowance
        if (
            allowance is not None
            and allowance.covers(shuffle_round, before=before)
            and (allowance.target_epsilon, allowance.delta) == (target_epsilon, delta)
            and taken + num_steps <= allowance.steps
        ):
            return False

        def fits(more: int) -> bool:
            if taken + more > _MOST_STEPS:
                return False
            return self._with(shuffle_round, num_steps=more)._certified(delta)[0] <= target_epsilon

        if not fits(num_steps):
            return True
        self._allowance = _Allowance(
            shuffle_round=shuffle_round,
            before=before,
            target_epsilon=target_epsilon,
            delta=delta,
            steps=taken + (_stretch(fits, known_good=num_steps) if goes_on else num_steps),
        )
        return False

    def _with(self, shuffle_round: Round, *, num_steps: int) -> Self:
        """This history and further rounds; what was composed of it is shared."""
        longer = type(self)(method=self._method)
        longer._rounds, longer._steps = self._rounds.copy(), self._steps.copy()
        longer._earlier, longer._sums = self._earlier.copy(), self._sums
        longer._upper_history = self._upper_history
        longer.step(shuffle_round, num_steps=num_steps)
        return longer

    def rounds_left(self, shuffle_round: Round, *, delta: float) -> tuple[float, float]:
        """How many more such rounds may have an ε at ``delta``, which the δ0 of all reports use up.

        Returns:
            (amplified, any): after more than the first no more than the sum of all ε0 can be certified (basic
            composition), after more than the second no ε at all. Both are infinite for rounds without δ0, and
            for those whose δ0 is not charged, as they are accounted by their likelihoods.

        Raises:
            ValueError: if ``delta`` is not in (0, 1).
        """
        checks.delta(delta)
        if not shuffle_round.local_delta or not shuffle_round.replacement_distance:
            return math.inf, math.inf
        distance = math.fsum(r.replacement_distance * steps for r, steps in self.history if r.local_delta)
        last = _most(shuffle_round.own_delta, beside=self._local_delta(), within=delta)
        amplified = _most(shuffle_round.replacement_distance, beside=distance, within=delta / 2)
        return min(amplified, last), last

    def bounds(self, delta: float) -> tuple[NamedBound, ...]:
        """Every bound this package has of its own on ε at δ.

        Raises:
            ValueError: if ``delta`` is not in (0, 1).
        """
        checks.delta(delta)
        if not self._rounds:
            return ()
        source = "; ".join(sorted({each.SOURCE for each in self._rounds}))
        upper = partial(NamedBound, kind="upper", source=source)
        found = []
        with suppress(ArithmeticError):  # losses beyond what floats can hold
            orders = self._replacement.epsilon(RenyiComposition(*self._upper_laws()), delta)
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
            history=tuple((r.state(), steps) for r, steps in self.history),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the history by a saved one. On any error this accountant stays as it was.

        Raises:
            ValueError: if the state is damaged, of another version or of another method.
        """
        check_saved(state, by=type(self).__name__, version=_STATE_VERSION, method=self._method)
        loaded = ShuffleAccountant(method=self._method)
        if not isinstance(state.get("history"), (list, tuple)):
            raise ValueError("the saved history is damaged: it is not a list of entries")
        try:
            entries = [(Round.from_state(round_state), steps) for round_state, steps in state["history"]]
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"the saved history is damaged: {error}") from error
        for shuffle_round, steps in entries:
            loaded.step(shuffle_round, num_steps=steps)
        self._rounds, self._steps = loaded._rounds, loaded._steps
        self._earlier, self._sums = loaded._earlier, loaded._sums
        self._epsilons, self._uppers, self._allowance = {}, {}, None

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
    def _whole(self) -> _Sums:
        """Sums over the whole history."""
        return self._sums.joined(self._rounds[-1], self._steps[-1]) if self._rounds else self._sums

    @property
    def _resolution(self) -> Resolution:
        """How finely the history is resolved."""
        return COARSE if len(self._earlier) > _MOST_FINE_ROUNDS else resolution_of(self._counts)

    def _upper_name(self, method: Method) -> str:
        return f"{' and '.join(sorted(self._whole.names)) or 'blanket pair'}, {method.upper()}"

    def _pure_epsilon(self) -> float:
        return math.fsum(self._whole.local_epsilon)

    def _local_delta(self) -> float:
        """δ of the local guarantees, composed without amplification."""
        return min(math.fsum(self._whole.own_delta), 1.0)

    @property
    def _replacement(self) -> Replacement:
        return Replacement(self._whole.replaced, distance=math.fsum(self._whole.distance))

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
                part = ShuffleAccountant(method=self._method)
                part.step(recorded, num_steps=size)
                total += -(-steps // size) * part._in_one_piece(delta / (parts * len(self._rounds)))[0]
            if total < math.inf:
                return total
            parts *= 2
        return math.inf

    def _upper_laws(self) -> tuple[list[PrivacyLossDistribution], list[int]]:
        distinct = self._counts
        resolution = resolution_of(distinct)
        return [upper_losses(r, resolution) for r in distinct], list(distinct.values())

    def _upper_composition(self) -> LossComposition:
        if self._resolution is COARSE:
            return self._upper_history.composition(self._rounds, self._steps)
        return LossComposition(*self._upper_laws())

    def _composed_delta(self, epsilon: float) -> float:
        found = []
        if self._method == "pld":
            with suppress(ArithmeticError):  # rounds of very different scales share no grid
                found.append(self._upper_composition().delta(epsilon))
        if not found or self._takes_orders:
            with suppress(ArithmeticError):  # losses beyond what floats can hold
                found.append(RenyiComposition(*self._upper_laws()).delta(epsilon))
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
                "use a smaller δ0 (more noise), fewer rounds, or a larger δ"
            )
        if tightest[0] == math.inf:
            raise ValueError(
                f"no ε at δ={delta:g} can be certified: these sums have next to no noise, or are too far "
                f"({self._replacement.distance:.3g}, charged 1 + e^ε times) from what covers them; use "
                "more coins or shares, more noise, fewer rounds, or a larger δ"
            )
        return tightest

    def _certified(self, delta: float) -> tuple[float, str]:
        """The least certified ε and its bound's name; infinite if there is none."""
        found = self._uppers.get(delta)
        if found is None:
            found = self._in_one_piece(delta)
            close = any(r.CHARGED_BY_RATIO for r, _ in self._whole.replaced)
            if found[0] == math.inf and close and sum(self._steps) > 1:
                found = self._in_parts(delta), f"{self._upper_name(self._method)}, in parts"
            self._uppers[delta] = found
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
            try:
                laws, steps = self._upper_laws()
            except ArithmeticError:  # losses beyond what floats can hold
                return min(found)
            orders = RenyiComposition(laws, steps)
            found.append((self._replacement.epsilon(orders, delta), self._upper_name("rdp")))
        return min(found)

    def _by_losses(self, delta: float) -> float:
        """Certified ε by privacy losses; infinite if floats or one grid cannot hold them all."""
        try:
            return self._replacement.epsilon(self._upper_composition(), delta)
        except ArithmeticError:
            return math.inf

    def _attained(
        self, ask: Callable[[LossComposition], float], *, every_family: bool = False
    ) -> Iterator[tuple[str, float]]:
        """What real instances of the history answer, each by its name."""
        return self._instances.attained(
            (self._rounds, self._steps),
            ask,
            resolution=self._resolution,
            every_family=every_family,
        )

    def _lower_epsilon(self, delta: float) -> tuple[float, str]:
        best, best_name, most = 0.0, "none", self._cap(delta)
        for name, value in self._attained(lambda composition: composition.epsilon(_above(delta))):
            if value > best:
                best, best_name = value, name
            if best >= _CLOSED * most:
                break
        return best, best_name


class _Sums(NamedTuple):
    """What a history adds up to, entry by entry.

    Sums are kept as the few floats whose sum is exact, so that it does not matter when they were added up.

    Attributes:
        local_epsilon: of all reports of one client.
        own_delta: of all rounds without amplification.
        distance: between the rounds and their stand-ins.
        names: of the rounds' pairs.
        replaced: entries that are accounted through a stand-in.
    """

    local_epsilon: tuple[float, ...] = ()
    own_delta: tuple[float, ...] = ()
    distance: tuple[float, ...] = ()
    names: frozenset[str] = frozenset()
    replaced: tuple[tuple[Round, int], ...] = ()

    def joined(self, recorded: Round, steps: int) -> _Sums:
        """With one more entry."""
        distance = recorded.replacement_distance
        stands_in = distance > 0 or recorded.CHARGED_BY_RATIO
        return _Sums(
            local_epsilon=_exact_sum(self.local_epsilon, recorded.local_epsilon * steps),
            own_delta=_exact_sum(self.own_delta, recorded.own_delta * steps),
            distance=_exact_sum(self.distance, distance * steps),
            names=self.names | {recorded.pair_name},
            replaced=(*self.replaced, (recorded, steps)) if stands_in else self.replaced,
        )


def _exact_sum(parts: tuple[float, ...], number: float) -> tuple[float, ...]:
    """Floats of the same exact sum as ``parts`` and a number (Shewchuk 1997), or infinity."""
    rest = []
    for part in parts:
        larger, smaller = (number, part) if abs(number) > abs(part) else (part, number)
        number = larger + smaller
        if math.isinf(number):
            return (math.inf,)
        lost = smaller - (number - larger)
        if lost:
            rest.append(lost)
    return (*rest, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowance:
    """So many steps of a round, after the first ``before`` entries, were found to stay within a target."""

    shuffle_round: Round
    before: int
    target_epsilon: float
    delta: float
    steps: int

    def covers(self, shuffle_round: Round, *, before: int) -> bool:
        return before == self.before and (
            shuffle_round is self.shuffle_round or shuffle_round == self.shuffle_round
        )


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
    """A state that says what it is for, and has a digest by which :func:`check_saved` knows it again.

    Args:
        version: of the state's format.
        method: how the accountant composes.
        kept: the history and what goes with it, as plain values.
    """
    state = {"version": version, "method": method, "neighbouring_relation": NEIGHBOURING_RELATION, **kept}
    return {**state, "digest": _digest(state)}


def _digest(state: Mapping[str, Any]) -> str:
    """The same for tuples and for the lists that JSON makes of them."""
    kept = {name: value for name, value in state.items() if name != "digest"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def check_saved(state: object, *, by: str, version: int, method: Method) -> None:
    """Check what a saved state of an accountant says about itself.

    Args:
        state: what was saved in a checkpoint.
        by: name of the accountant's class.
        version: of states that it writes.
        method: how it composes.

    Raises:
        ValueError: if the state is of another version, method or neighbouring relation, or not as it was
            written: a cohort that was halved, or a participant's round that is missing, would lower ε.
    """
    saved = state if isinstance(state, Mapping) else {}
    if type(saved.get("version")) is not int or saved["version"] != version:
        raise ValueError(f"not a state of {by}, or of a version this release cannot read")
    if saved.get("method") != method:
        raise ValueError(f"saved by method {saved.get('method')!r}, this accountant uses {method!r}")
    if saved.get("neighbouring_relation") != NEIGHBOURING_RELATION:
        raise ValueError("the state is for another neighbouring relation")
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


def resolution_of(counts: Mapping[Round, int]) -> Resolution:
    """How finely a history is resolved, given the steps of each distinct round."""
    if sum(counts.values()) == 1 and all(map(resolves_alone, counts)):
        return SINGLE
    return FINE if len(counts) <= _MOST_FINE_ROUNDS else COARSE


def _coarse_law(recorded: Round) -> PrivacyLossDistribution:
    return upper_losses(recorded, COARSE)


def _above(delta: float) -> float:
    return min(delta * (1 + ROUNDOFF), (1 + delta) / 2)
