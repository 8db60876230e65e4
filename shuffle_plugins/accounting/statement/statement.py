"""A privacy statement, filled from an accountant by whoever knows the rest.

It says what "How to DP-fy ML" (Ponomareva et al. 2023, section 5.3) and NIST SP 800-226 ask for.
Accountants and rounds describe themselves, and hosts add what they alone know.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Self

from shuffle_plugins.accounting.accountant import ShuffleAccountant
from shuffle_plugins.accounting.federated.accountant import ClientSpread, FederatedAccountant
from shuffle_plugins.accounting.statement import text
from shuffle_plugins.accounting.statement.parts import (
    NOTHING_RECORDED,
    Cover,
    DataAccess,
    Guarantee,
    StatedRounds,
    StatedTarget,
)
from shuffle_plugins.accounting.statement.reading import compared, read
from shuffle_plugins.accounting.terms import NEIGHBOURING_RELATION, Adversary, Method, Unit
from shuffle_plugins.core import checks

SCHEMA_VERSION = 1
"""Version of :meth:`PrivacyStatement.to_dict`, which changes if a key goes away or means another thing."""

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
    "randomness that can be guessed: a SeededRandomness protects nobody",
)
_TUNING = "choice of model, hyperparameters, clipping norm and number of rounds"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyStatement:
    """Everything that has to be said beside an ε; ``print`` it.

    What is not known is said to be unknown. Make it by :meth:`of`, ``engine.statement()`` of Opacus,
    ``strategy.statement()`` of Flower, or ``shuffle-plugins statement`` in a shell.

    Attributes:
        subject: what was trained or computed.
        unit: the unit of privacy.
        member: what n counts, in a word: the unit, but for clients each of which holds many records.
        guarantees: one for each adversary.
        rounds: by kind, in the order in which kinds first came.
        composition: how the rounds' costs are put together.
        method: how upper bounds compose; None if no accountant composed them.
        trust: who is trusted, and for what.
        clipping: how vectors come into the mechanism's ball.
        accesses: what is computed from the data, and whether ε covers it.
        warnings: what voids the statement or weakens it.
        target: the budget; None if there is none.
        spread: how unevenly rounds are spread over clients; None if that is not known.
        versions: (name, version) of the software that made the statement.

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
    versions: tuple[tuple[str, str], ...] = field(default_factory=lambda: versions_of())

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
        """The statement of an accountant's rounds.

        Args:
            accountant: the rounds; nothing is recorded in it.
            delta: δ in (0, 1).
            subject: what was trained or computed, as a noun.
            unit: what a client stands for. Rounds that draw single records are stated for ``RECORD``.
            trust: a sentence for each party that is trusted.
            clipping: a sentence on how vectors come into the mechanism's ball.
            accesses: accesses to the data beside the rounds.
            warnings: what voids or weakens the statement, beside what is found here.
            target_epsilon: budget; None for none.
            target_delta: δ of the budget; ``delta`` by default.
            target_adversary: against whom the budget is, of federated rounds; others know their own.
            senders_known: whether to state what is left if every report is seen with its sender's name.
            packages: distributions beside this one whose versions belong into the statement.

        Raises:
            ValueError: if ``delta`` or the budget is out of range.
        """
        checks.delta(delta)
        if target_delta is not None:
            checks.delta(target_delta, name="target_delta")
        found = read(accountant, delta=delta)
        declared = checks.choice(Unit, "unit", unit)
        target = None
        if target_epsilon is not None:
            target = compared(
                accountant,
                epsilon=target_epsilon,
                delta=delta if target_delta is None else target_delta,
                adversary=target_adversary,
            )
        return cls(
            subject=subject,
            unit=Unit.RECORD if found.unit is Unit.RECORD else declared,
            member=str(Unit.CLIENT if found.unit is Unit.RECORD else declared),
            guarantees=tuple(
                each for each in found.guarantees if senders_known or each.adversary != Adversary.LOCAL
            ),
            rounds=found.rounds,
            composition=_COMPOSITION[accountant.method],
            method=accountant.method,
            trust=tuple(trust),
            clipping=clipping,
            accesses=_accesses(accesses, any_rounds=bool(found.rounds)),
            warnings=tuple(
                filter(
                    None,
                    (
                        *warnings,
                        None if target is None else target.warning,
                        delta_warning(delta, population=found.largest_population),
                    ),
                )
            ),
            target=target,
            spread=found.spread,
            versions=versions_of(*packages),
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
            return NOTHING_RECORDED
        known = any(each.epsilon is not None for each in self.guarantees)
        return _RELEASED if known else "nothing, as there is none"

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What ε does not cover, whatever was run."""
        return tuple(each.format(member=self.member) for each in _UNCOVERED)

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers, strings and None; None where a number is infinite or unknown."""
        return text.as_dict(self, version=SCHEMA_VERSION)

    def to_text(self, *, width: int = 100) -> str:
        """Plain text in lines of at most ``width`` columns."""
        return text.as_text(self, width=width)

    def to_markdown(self) -> str:
        """Markdown, with a heading for each part."""
        return text.as_markdown(self)

    def __str__(self) -> str:
        """The statement as plain text, as :meth:`to_text` gives it."""
        return self.to_text()


def versions_of(*packages: str) -> tuple[tuple[str, str], ...]:
    """(name, version) of this package, of Python, and of installed distributions."""
    from shuffle_plugins import __version__

    found = [("shuffle-plugins", __version__), ("python", platform.python_version())]
    for name in ("numpy", "scipy", *packages):
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append((name, "unknown"))
    return tuple(found)


def _accesses(others: Sequence[DataAccess], *, any_rounds: bool) -> tuple[DataAccess, ...]:
    rounds = DataAccess(what="the rounds listed", cover=Cover.COVERED, detail="all of them together")
    tuning = DataAccess(
        what=_TUNING,
        cover=Cover.NOT_COVERED,
        detail="if they were chosen by trials on these data, the trials cost ε as well",
    )
    rest = DataAccess(
        what="public statistics, preprocessing, evaluation and all else that was computed from the data",
        cover=Cover.UNKNOWN,
        detail="not covered, unless it was recorded as a round",
    )
    return (*((rounds,) if any_rounds else ()), *(others or (rest,)), tuning)


def delta_warning(delta: float, *, population: int | None) -> str | None:
    """That δ is more than one client's share of the population; None if it is not, or there are no rounds."""
    if population is None or delta <= 1 / population:
        return None
    return "δ is above 1/population: showing the data of one client, drawn at random, would be allowed"
