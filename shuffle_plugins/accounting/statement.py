"""A privacy statement, filled from an accountant by whoever knows the rest.

It says what "How to DP-fy ML" (Ponomareva et al. 2023, section 5.3) and NIST SP 800-226 ask for.
"""

from __future__ import annotations

import math
import platform
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib import metadata
from typing import Any, Self

from shuffle_plugins.accounting.accountant import ShuffleAccountant
from shuffle_plugins.accounting.federated.accountant import ClientSpread, FederatedAccountant
from shuffle_plugins.accounting.federated.rounds import FederatedRound
from shuffle_plugins.accounting.rounds.round import Round
from shuffle_plugins.accounting.terms import (
    NEIGHBOURING_RELATION,
    Adversary,
    EpsilonInterval,
    Method,
    Unit,
    delta_warning,
    known,
)
from shuffle_plugins.core import checks, rounded

_NOTHING_RECORDED = "no round was recorded: this says nothing of anything that was released all the same"
_UNRECORDED = (
    "unknown: the rounds do not record who shuffles or adds up, and who runs the training. Somebody must be "
    "trusted to let nobody see more of the rounds than is said under them"
)
_UNKNOWN_CLIPPING = (
    "unknown to the accountant. The mechanism must have got vectors inside the ball that it is made for"
)
_COMPOSITION: dict[Method, str] = {
    "pld": "privacy loss distributions, composed on a grid with every numerical error charged to ε or δ",
    "rdp": "Rényi divergences at real orders, converted to (ε, δ)",
}
_UNIT = {
    Unit.CLIENT: "all data of one client. What a client stands for (a person, a device, an organisation) is "
    "for whoever runs the training to say",
    Unit.RECORD: "a single record. Somebody who has several is protected for each of them by itself, and "
    "less for all of them together",
    Unit.USER: "all data of one person, provided that every person is one client and no two share one",
}
_RELEASED = (
    "what the rounds release, and whatever is computed from it without further access to the data: the model "
    "after every round as well as the last one"
)
_UNCOVERED = (
    "other releases from the same data: what they cost adds to this",
    "several units together: for m of them this implies no more than (m·ε, m·e^((m−1)·ε)·δ)",
    "what the data of all others tell about somebody, as every statistic of a population does",
    "drop-outs that depend on the data: who fails to answer, and when",
    "side channels: time, memory, the length of messages, logs and error messages",
    "who the {member}s are and how many: n is public, and neighbouring datasets are of the same size",
    "rounding in privunit, privunit-g, projunit, blanket-mixed-gaussian and gaussian, which are proved for "
    "real numbers and computed in float64 (other mechanisms of this package draw whole numbers, and charge "
    "what their law is off by)",
    "randomness that can be guessed: a SeededRandomness protects nobody, and all of it, with the vectors "
    "that seed reports name, takes ChaCha20 for random",
)


class Cover(StrEnum):
    """Whether ε covers an access to the data."""

    COVERED = "covered"
    NOT_COVERED = "not covered"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class DataAccess:
    """Something that is computed from the clients' data; ``detail`` says why ε covers it, or when."""

    what: str
    cover: Cover
    detail: str


_ROUNDS = DataAccess(what="the rounds listed", cover=Cover.COVERED, detail="all of them together")
_TUNING = DataAccess(
    what="choice of model, hyperparameters, clipping norm and number of rounds",
    cover=Cover.NOT_COVERED,
    detail="if they were chosen by trials on these data, the trials cost ε as well",
)
_REST = DataAccess(
    what="public statistics, preprocessing, evaluation and all else that was computed from the data",
    cover=Cover.UNKNOWN,
    detail="not covered, unless it was recorded as a round",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """What holds against one adversary; ``"any"`` if nothing was recorded.

    ``epsilon`` is None if none can be certified; ``detail`` says whose it is, or why there is none.
    """

    adversary: str
    sees: str
    delta: float
    epsilon: EpsilonInterval | None
    detail: str = ""

    @classmethod
    def of_nothing(cls, *, delta: float) -> Self:
        """ε = 0, as nothing was recorded."""
        found = EpsilonInterval.below(0.0, bound="there is nothing to bound", delta=delta, adversary="any")
        return cls(adversary="any", sees="sees nothing", delta=delta, epsilon=found, detail=_NOTHING_RECORDED)

    @classmethod
    def of_sum(cls, local_epsilon: float, *, delta: float, detail: str = "") -> Self:
        """What is left if nobody is trusted: Σ ε0, or nothing if that is infinite."""
        return cls.bounded(
            local_epsilon,
            bound="Σ ε0, no amplification",
            adversary=Adversary.LOCAL,
            delta=delta,
            detail=detail,
            none="none: what a client sends is not private by itself, or Σ δ0 of its reports exceeds δ",
        )

    @classmethod
    def bounded(
        cls, upper: float, *, bound: str, adversary: Adversary, delta: float, detail: str, none: str
    ) -> Self:
        """From an upper end alone, with its bound's name; ``none`` is the detail where it is infinite."""
        found = EpsilonInterval.below(upper, bound=bound, delta=delta, adversary=adversary.value)
        finite = upper < math.inf
        epsilon, detail = (found, detail) if finite else (None, none)
        return cls(
            adversary=adversary.value, sees=adversary.sees, delta=delta, epsilon=epsilon, detail=detail
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedRounds:
    """Rounds of one kind, whose numbers of clients may differ.

    Attributes:
        mechanism: what makes them private, as they describe it.
        unreleased: how many of them let nothing out, and are charged before the server alone.
        local_epsilon: of what a client sends in one; infinite if that alone is not private, None if unknown.
        population, cohort: smallest and largest; None if unknown.
        secrecy: what of the sampling must stay secret.
        source: where the bounds on these rounds come from.
    """

    mechanism: str
    rounds: int
    unreleased: int
    local_epsilon: float | None
    local_delta: float
    population: tuple[int, int]
    cohort: tuple[float, float] | None
    sampling: str
    seen: str
    secrecy: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedTarget:
    """A budget against an adversary, and the certified ε of the rounds so far at its δ."""

    epsilon: float
    delta: float
    adversary: str
    spent: float

    @property
    def exceeded(self) -> bool:
        """Whether the rounds cost more than the budget."""
        return not self.spent <= self.epsilon

    @property
    def warning(self) -> str | None:
        """That the budget is exceeded; None if it is not."""
        budget = f"ε ≤ {self.epsilon:g} at δ = {self.delta:g} against the {self.adversary}"
        return f"the budget {budget} is exceeded" if self.exceeded else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyStatement:
    """Everything that has to be said beside an ε, what is not known as unknown; ``print`` it.

    Attributes:
        member: what n counts, in a word: the unit, but for clients each of which holds many records.
        method: how upper bounds compose; None if no accountant composed them.
        trust: who is trusted, and for what.
        clipping: how vectors come into the mechanism's ball.
        warnings: what voids the statement or weakens it.

    Example:
        >>> accountant = ShuffleAccountant()
        >>> print(PrivacyStatement.of(accountant, delta=1e-6).guarantees[0].epsilon.upper)
        0.0
    """

    subject: str
    unit: Unit
    member: str = "client"
    guarantees: tuple[Guarantee, ...]
    rounds: tuple[StatedRounds, ...]
    composition: str
    method: Method | None = None
    trust: tuple[str, ...] = (_UNRECORDED,)
    clipping: str = _UNKNOWN_CLIPPING
    accesses: tuple[DataAccess, ...]
    warnings: tuple[str, ...] = ()
    target: StatedTarget | None = None
    spread: ClientSpread | None = None
    versions: tuple[tuple[str, str], ...] = field(default_factory=lambda: _versions_of())

    @classmethod
    def of(
        cls,
        accountant: ShuffleAccountant | FederatedAccountant,
        *,
        delta: float,
        subject: str = "the rounds of an accountant",
        unit: Unit = Unit.CLIENT,
        trust: Sequence[str] = (_UNRECORDED,),
        clipping: str = _UNKNOWN_CLIPPING,
        accesses: Sequence[DataAccess] = (),
        warnings: Sequence[str] = (),
        target_epsilon: float | None = None,
        target_delta: float | None = None,
        target_adversary: Adversary = Adversary.MODEL_OBSERVER,
        senders_known: bool = True,
        packages: Iterable[str] = (),
    ) -> Self:
        """The statement of an accountant's rounds; nothing is recorded in it.

        Args:
            subject: what was trained or computed, as a noun.
            unit: what a client stands for. Rounds that draw single records are stated for ``RECORD``.
            accesses: accesses to the data beside the rounds.
            target_epsilon, target_delta: a budget, if any; at ``delta`` by default.
            target_adversary: against whom the budget is, of federated rounds; others know their own.
            senders_known: whether to state what is left if every report is seen with its sender's name.
            packages: distributions beside this one whose versions belong into the statement.
        """
        checks.delta(delta)
        unit = checks.choice(Unit, "unit", unit)
        federated = isinstance(accountant, FederatedAccountant)
        spread = accountant.client_spread(delta) if isinstance(accountant, FederatedAccountant) else None
        rounds, of_records = _stated(accountant)
        member = Unit.CLIENT.value if of_records else unit.value
        target, over = None, None
        if target_epsilon is not None:
            budget = delta if target_delta is None else checks.delta(target_delta, name="target_delta")
            checks.target_epsilon(target_epsilon)
            whom: dict[str, Any] = {"adversary": target_adversary} if federated else {}
            spent = accountant.epsilon(budget, **whom, lower=False)
            target = StatedTarget(
                epsilon=target_epsilon, delta=budget, adversary=spent.adversary, spent=spent.upper
            )
            over = target.warning
        population = max((each.population[1] for each in rounds), default=None)
        found = (*warnings, over, delta_warning(delta, population=population))
        return cls(
            subject=subject,
            unit=Unit.RECORD if of_records else unit,
            member=member,
            guarantees=tuple(
                each
                for each in _guarantees(accountant, delta)
                if senders_known or each.adversary != Adversary.LOCAL
            ),
            rounds=rounds,
            composition=_COMPOSITION[accountant.method],
            method=accountant.method,
            trust=tuple(trust),
            clipping=clipping,
            accesses=(*((_ROUNDS,) if rounds else ()), *(accesses or (_REST,)), _TUNING),
            warnings=tuple(filter(None, found)),
            target=target,
            spread=spread,
            versions=_versions_of(*packages),
        )

    @property
    def num_rounds(self) -> int:
        """How many rounds there are."""
        return sum(each.rounds for each in self.rounds)

    @property
    def neighbouring_relation(self) -> str:
        """How neighbouring datasets differ."""
        return NEIGHBOURING_RELATION

    @property
    def unit_detail(self) -> str:
        """What the unit of privacy is, in a sentence."""
        return _UNIT[self.unit]

    @property
    def released(self) -> str:
        """What was released at the cost of the stated ε; a sentence that says so if nothing was."""
        if not self.rounds:
            return _NOTHING_RECORDED
        known = any(each.epsilon is not None for each in self.guarantees)
        return _RELEASED if known else "nothing, as there is none"

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What ε does not cover, whatever was run."""
        return tuple(each.format(member=self.member) for each in _UNCOVERED)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers, strings and None; None where a number is infinite or unknown.

        Keys stay as they are while ``schema_version`` is 1: ``warnings``, ``trust`` and ``not_covered`` are
        lists of sentences; ``guarantees`` has for each adversary ``sees``, ``delta``, ``lower``, ``upper``,
        the bounds behind them, and ``detail``; ``rounds`` for each kind of round the mechanism, ``rounds``,
        ``unreleased``, ``local_epsilon``, ``local_delta``, ``population`` and ``cohort`` (least and most),
        ``sampling``, ``secrecy``, ``seen`` and ``source``; ``data_accesses`` ``what``, ``covered``
        (``"covered"``, ``"not covered"`` or ``"unknown"``) and ``detail``. ``budget`` is None without one,
        ``clients`` where not all of them are known.
        """
        target, spread = self.target, self.spread
        return {
            "schema": "shuffle-plugins privacy statement",
            "schema_version": 1,
            "subject": self.subject,
            "warnings": list(self.warnings),
            "guarantees": [_guarantee_dict(each) for each in self.guarantees],
            "budget": None if target is None else _finite(asdict(target)) | {"exceeded": target.exceeded},
            "unit": {"name": self.unit.value, "meaning": self.unit_detail},
            "neighbouring_relation": self.neighbouring_relation,
            "released": self.released,
            "trust": list(self.trust),
            "num_rounds": self.num_rounds,
            "rounds": [_finite(asdict(each)) for each in self.rounds],
            "clipping": self.clipping,
            "composition": {"method": self.method, "meaning": self.composition},
            "clients": None if spread is None else _finite(asdict(spread)),
            "data_accesses": [
                {"what": each.what, "covered": each.cover.value, "detail": each.detail}
                for each in self.accesses
            ],
            "not_covered": list(self.uncovered),
            "versions": dict(self.versions),
        }

    @property
    def _title(self) -> str:
        count = self.num_rounds
        rounds = f"{count:,} round{'s' if count > 1 else ''}" if count else "nothing recorded"
        return f"Of {self.subject}: {rounds}."

    def to_text(self, *, width: int = 100) -> str:
        """Plain text in lines of at most ``width`` columns."""
        lines = ["PRIVACY STATEMENT", *_wrapped(self._title, width=width)]
        for heading, items in _parts(self):
            lines += ["", heading]
            for item, below in items:
                lines += _wrapped(item, width=width, first="  ", then="  ")
                for line in below:
                    lines += _wrapped(line, width=width, first="    - ", then="      ")
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """Markdown, with a heading for each part."""
        lines = ["# Privacy statement", "", _escaped(self._title)]
        for heading, items in _parts(self):
            lines += ["", f"## {heading}", ""]
            for item, below in items:
                lines.append(f"- {_escaped(item)}")
                lines += [f"  - {_escaped(line)}" for line in below]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.to_text()


# -- what an accountant says ---------------------------------------------------------------------------------


def _stated(accountant: ShuffleAccountant | FederatedAccountant) -> tuple[tuple[StatedRounds, ...], bool]:
    """The rounds by kind, in the order in which kinds first came, and whether any are of single records."""
    history: Iterable[tuple[Round, int, Round | FederatedRound, bool]]
    if isinstance(accountant, FederatedAccountant):
        history = ((each.observer, 1, each, released) for each, _, released in accountant.history)
    else:
        history = ((each, steps, each, True) for each, steps in accountant.history)
    kinds: dict[tuple[Any, ...], StatedRounds] = {}
    of_records = False
    for each, steps, whole, released in history:
        if each.neighbouring_relation != NEIGHBOURING_RELATION:
            raise ValueError(
                f"a statement is for {NEIGHBOURING_RELATION} neighbours, not {each.neighbouring_relation}"
            )
        of_records |= each.UNIT is Unit.RECORD
        one = StatedRounds(
            mechanism=each.description,
            rounds=steps,
            unreleased=0 if released else steps,
            local_epsilon=each.local_epsilon,
            local_delta=whole.local_delta,
            population=(each.population, each.population),
            cohort=(each.cohort, each.cohort),
            sampling=each.sampling.value,
            seen=each.seen,
            secrecy=whole.secrecy,
            source=each.SOURCE,
        )
        key = (each.KIND, one.mechanism, one.local_delta, one.sampling, one.secrecy)
        known = kinds.get(key, replace(one, rounds=0, unreleased=0))
        kinds[key] = replace(
            known,
            rounds=known.rounds + steps,
            unreleased=known.unreleased + one.unreleased,
            population=(min(*known.population, each.population), max(*known.population, each.population)),
            cohort=(min(*known.cohort, each.cohort), max(*known.cohort, each.cohort)),  # type: ignore[misc]
        )
    return tuple(kinds.values()), of_records


def _guarantees(accountant: ShuffleAccountant | FederatedAccountant, delta: float) -> Iterator[Guarantee]:
    if not accountant.history:
        yield Guarantee.of_nothing(delta=delta)
        return
    asked: dict[Adversary, Callable[[float], EpsilonInterval]]
    if isinstance(accountant, FederatedAccountant):
        most = f"in {accountant.worst_client_rounds} of {accountant.num_rounds} rounds"
        whose = {
            Adversary.MODEL_OBSERVER: "for any client",
            Adversary.SERVER: f"for the client that took part most often, {most}; every other client's is no "
            "larger",
        }
        asked = {each: partial(accountant.epsilon, adversary=each) for each in whose}
        local_epsilon = accountant.epsilon(delta, adversary=Adversary.LOCAL, lower=False).upper
        of_whom = "for the client that reported most"
    else:
        whose = {accountant.history[0][0].adversary: ""}
        asked = dict.fromkeys(whose, accountant.epsilon)
        local_epsilon, of_whom = accountant.local_epsilon(delta), "for a client that took part in every round"
    for adversary, detail in whose.items():
        found: EpsilonInterval | None = None
        try:
            found = asked[adversary](delta)
        except ValueError as error:  # δ was checked: no ε can be certified
            detail = "; ".join(filter(None, (detail, str(error))))
        yield Guarantee(
            adversary=adversary.value, sees=adversary.sees, delta=delta, epsilon=found, detail=detail
        )
    yield Guarantee.of_sum(local_epsilon, delta=delta, detail=of_whom)


def _versions_of(*packages: str) -> tuple[tuple[str, str], ...]:
    from shuffle_plugins import __version__

    found = [("shuffle-plugins", __version__), ("python", platform.python_version())]
    for name in ("numpy", "scipy", *packages):
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append((name, "unknown"))
    return tuple(found)


# -- plain values and text -----------------------------------------------------------------------------------

_Items = Iterable[tuple[str, tuple[str, ...]]]


def _guarantee_dict(each: Guarantee) -> dict[str, Any]:
    found = each.epsilon
    return {
        "adversary": each.adversary,
        "sees": each.sees,
        "delta": each.delta,
        "lower": None if found is None or found.lower_bound == "none" else found.lower,
        "upper": None if found is None else found.upper,
        "lower_bound": None if found is None else found.lower_bound,
        "upper_bound": None if found is None else found.upper_bound,
        "detail": each.detail,
    }


def _finite(plain: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: None in place of infinity, lists in place of tuples."""
    return {
        name: None if value == math.inf else list(value) if isinstance(value, tuple) else value
        for name, value in plain.items()
    }


def _parts(statement: PrivacyStatement) -> Iterator[tuple[str, _Items]]:
    """Headings, and what stands under them: paragraphs of a list, each with lines below it."""
    if statement.warnings:
        yield "Warnings", [(text, ()) for text in statement.warnings]
    yield "Guarantees", _guarantee_items(statement)
    neighbours = (
        f"Neighbouring datasets: {statement.neighbouring_relation}. They are of the same public size, and "
        "differ in one unit."
    )
    released = f"ε covers {statement.released}." if statement.rounds else _sentence(statement.released)
    unit = f"{statement.unit.capitalize()}: {statement.unit_detail}."
    yield "Unit of privacy", [(text, ()) for text in (unit, neighbours, released)]
    yield "Trust", [(_sentence(text), ()) for text in statement.trust]
    if statement.rounds:
        yield "Rounds", _round_items(statement)
    yield "Clipping", [(_sentence(statement.clipping), ())]
    yield "Composition", _composition_items(statement)
    accesses = statement.accesses
    yield (
        "Accesses to the data",
        [
            (f"{_sentence(each.what, end='')}: {each.cover}. {_sentence(each.detail)}", ())
            for each in accesses
        ],
    )
    yield "Not covered", [(_sentence(text), ()) for text in statement.uncovered]
    yield "Versions", [(", ".join(f"{name} {version}" for name, version in statement.versions), ())]


def _guarantee_items(statement: PrivacyStatement) -> _Items:
    for each in statement.guarantees:
        found = each.epsilon
        below = [f"The adversary {each.sees}."] if statement.rounds else []
        if each.detail:
            below.append(_sentence(each.detail))
        if found is not None and statement.rounds:
            below.append(f"Upper end, a proven bound: {found.upper_bound}.")
            below.append(
                "Lower end: none is known."
                if found.lower_bound == "none"
                else f"Lower end, attained by a real mechanism and dataset: {found.lower_bound}."
            )
        epsilon = "No ε" if found is None else known("ε", found)
        yield f"{epsilon} at δ = {each.delta:g}, adversary: {each.adversary}.", tuple(below)
    target = statement.target
    if target is not None:
        over = ", which EXCEEDS it" if target.exceeded else ""
        budget = f"Budget: ε ≤ {target.epsilon:g} at δ = {target.delta:g}, adversary: {target.adversary}"
        yield f"{budget}; {_up(target.spent)} spent{over}.", ()


def _round_items(statement: PrivacyStatement) -> _Items:
    shown = 12  # the JSON has all
    for each in statement.rounds[:shown]:
        unreleased = f", {each.unreleased:,} of which let nothing out" if each.unreleased else ""
        worst = "Generic: the bound for any mechanism of that ε0, whichever was used."
        yield (
            f"{each.rounds:,} × {each.mechanism}{unreleased}.",
            (
                *([worst] if "generic" in each.mechanism.split() else []),
                f"Local ε0 = {_local(each)}, δ0 = {each.local_delta:g}, of what one {statement.member} sends "
                "in a round.",
                f"Accounted for as k = {_range(each.cohort)} of n = {_range(each.population)} "
                f"{statement.member}s, sampled {each.sampling}: {each.secrecy}.",
                f"Nobody may see more than {each.seen}.",
                f"Bounds: {each.source}.",
            ),
        )
    more = statement.rounds[shown:]
    if more:
        count = sum(each.rounds for each in more)
        yield f"{count:,} rounds of {len(more):,} more kinds; the JSON has all.", ()


def _composition_items(statement: PrivacyStatement) -> _Items:
    method = "" if statement.method is None else f"{statement.method.upper()}: "
    yield f"{_sentence(method + statement.composition)} Rounds may follow from earlier ones.", ()
    spread = statement.spread
    if spread is not None:
        yield (
            f"Rounds of a client, of {spread.clients:,} known by name: {spread.fewest_rounds:,} at least, "
            f"{spread.median_rounds:,} in the middle, {spread.most_rounds:,} at most. Against the server "
            f"ε ≤ {_up(spread.fewest_epsilon)} for the first of these clients, "
            f"≤ {_up(spread.median_epsilon)} for the second.",
            (),
        )


def _up(value: float) -> str:
    return rounded(value, up=True)


def _local(each: StatedRounds) -> str:
    if each.local_epsilon is None:
        return "unknown"
    return "infinite (private only in the sum)" if math.isinf(each.local_epsilon) else _up(each.local_epsilon)


def _range(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "unknown"
    low, high = ends
    return f"{low:,.12g}" if low == high else f"{low:,.12g} to {high:,.12g}"


def _sentence(text: str, *, end: str = ".") -> str:
    """The text with a capital letter and a full stop; names such as ε0 stay as they are."""
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:] + ("" if text.endswith(".") else end)


def _wrapped(text: str, *, width: int, first: str = "", then: str = "") -> list[str]:
    wrapper = textwrap.TextWrapper(
        width=width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*<])|(\])(?=\()", r"\\\1\2", text)
