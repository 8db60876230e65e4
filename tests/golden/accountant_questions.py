"""What the accountants say of every kind of round, history and saved state."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from answers import DATA, Questions

from shuffle_plugins.accounting import (
    Adversary,
    Blanket,
    FederatedAccountant,
    FederatedRound,
    LaplaceRound,
    Round,
    Sampling,
    ShuffleAccountant,
    ShuffleRound,
    SumRound,
    Tag,
    TaggedRound,
    delta_from_rdp,
    epsilon_from_rdp,
    pair_epsilon_interval,
)
from shuffle_plugins.accounting.pairs.gaussian_cover import gaussian_cover, log_ratio
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.mechanisms.categories.hadamard_response import ideal_hadamard_response
from shuffle_plugins.mechanisms.categories.k_rr import ideal_k_ary_response
from shuffle_plugins.mechanisms.categories.local_hashing import ideal_local_hashing
from shuffle_plugins.mechanisms.categories.subset_selection import ideal_subset_selection
from shuffle_plugins.mechanisms.categories.unary_encoding import ideal_optimal_unary_encoding, ideal_rappor
from shuffle_plugins.mechanisms.noise.additive_law import (
    discrete_laplace_blanket,
    gaussian_blanket,
    laplace_blanket,
)
from shuffle_plugins.protocols.shares.mixing import mixing_distance

DELTA = 1e-6
VECTOR_MECHANISMS = (
    "blanket-mixed-gaussian",
    "discrete-gaussian",
    "discrete-laplace",
    "gaussian",
    "l1-hadamard",
    "l2-bit-planes",
    "l2-block",
    "laplace",
    "linf-bit-planes",
    "linf-block",
    "linf-coordinate",
    "privunit",
    "privunit-g",
    "projunit",
    "sampled-bits",
    "sqkr",
)
CATEGORY_MECHANISMS = (
    "hadamard-response",
    "k-rr",
    "limited-hadamard",
    "local-hashing",
    "oue",
    "rappor",
    "subset-selection",
)
MECHANISMS = ("binary-rr", *VECTOR_MECHANISMS, *CATEGORY_MECHANISMS)
SAVED = DATA / "saved_states.json"

History = Iterable[tuple[Round, int]]

QUESTIONS = Questions()


def shuffled(**fields: Any) -> ShuffleRound:
    """A round of 200 of 2,000 clients at ε0 = 1, except for what is given."""
    return ShuffleRound(
        **{"local_epsilon": 1.0, "population": 2_000, "cohort": 200, **fields}, channel_fixed=True
    )


def everybody(reports: int = 200, **fields: Any) -> ShuffleRound:
    """A round of all clients."""
    return shuffled(population=reports, cohort=reports, sampling=Sampling.FULL, **fields)


def coins(**fields: Any) -> SumRound:
    """A round of a sum of vectors with fair coins."""
    return SumRound(
        **{
            "sensitivity": 100.0,
            "attained": 100,
            "trials": 1_000_000,
            "dim": 10,
            "population": 1_000,
            "cohort": 1_000,
            **fields,
        }
    )


def laplace(**fields: Any) -> LaplaceRound:
    """A round of a sum with discrete Laplace noise."""
    return LaplaceRound(
        **{
            "noise_epsilon": 0.5,
            "sensitivity": 100,
            "attained": 100,
            "population": 1_000,
            "cohort": 1_000,
            **fields,
        }
    )


def tagged(**fields: Any) -> TaggedRound:
    """A round of several tags."""
    return TaggedRound(
        **{
            "tags": (
                Tag(local_epsilon=1.0, count=3, places=True),
                Tag(local_epsilon=0.5, count=2, places=False),
            ),
            "population": 500,
            "cohort": 500,
            "opposite": True,
            **fields,
        }
    )


def accountant_of(history: History, *, method: Any = "pld") -> ShuffleAccountant:
    accountant = ShuffleAccountant(method=method)
    for each, steps in history:
        accountant.step(each, num_steps=steps)
    return accountant


def interval(found: Any) -> dict[str, Any]:
    """The fields of an interval of ε or of δ."""
    return {
        "lower": found.lower,
        "upper": found.upper,
        "relation": found.neighbouring_relation,
        "adversary": found.adversary,
        "upper_bound": found.upper_bound,
        "lower_bound": found.lower_bound,
    }


def ask_epsilon(history: Callable[[], History], *, method: Any = "pld", delta: float = DELTA) -> Any:
    return interval(accountant_of(history(), method=method).epsilon(delta))


def ask_all(history: Callable[[], History], *, delta: float = DELTA) -> dict[str, Any]:
    """Everything that an accountant can be asked."""
    accountant = accountant_of(history())
    found = accountant.epsilon(delta)
    return {
        "epsilon": interval(found),
        "spent": accountant.epsilon(delta, lower=False).upper,
        "upper": found.upper,
        "numerical": pair_epsilon_interval(accountant, delta),
        "bounds": [[b.name, b.kind, b.epsilon] for b in accountant.bounds(delta)],
        "delta at half": interval(accountant.delta(found.upper / 2)),
        "delta at 0": interval(accountant.delta(0.0)),
        "num_steps": accountant.num_steps,
    }


def _history(make: Callable[..., Round], num_steps: int = 1, **fields: Any) -> Callable[[], History]:
    return lambda: [(make(**fields), num_steps)]


# -- every kind of round ------------------------------------------------------------------------------------

_SCHEMES: dict[str, dict[str, Any]] = {
    "k of n": {},
    "poisson": {"sampling": Sampling.POISSON, "cohort": 150.5},
    "full": {"sampling": Sampling.FULL, "population": 300, "cohort": 300},
    "single pass": {"sampling": Sampling.SINGLE_PASS},
    "check-in": {"sampling": Sampling.CHECK_IN, "cohort": 62.5},
    "epoch": {"sampling": Sampling.EPOCH},
}
_KINDS: dict[str, Callable[[], Round]] = {}
for _scheme, _fields in _SCHEMES.items():
    for _adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
        for _level in (0.2, 1.0, 4.0):
            _KINDS[f"generic, {_scheme}, {_adversary}, {_level}"] = partial(
                shuffled, adversary=_adversary, local_epsilon=_level, **_fields
            )
        _KINDS[f"with a delta, {_scheme}, {_adversary}"] = partial(
            shuffled, adversary=_adversary, local_delta=1e-11, **_fields
        )
for _adversary in (Adversary.MODEL_OBSERVER, Adversary.SERVER):
    for _scheme, _fields in {
        "full": {},
        "k of n": {"sampling": Sampling.WITHOUT_REPLACEMENT, "population": 9_000},
        "single pass": {"sampling": Sampling.SINGLE_PASS, "population": 9_000},
    }.items():
        _KINDS[f"coins, {_scheme}, {_adversary}"] = partial(coins, adversary=_adversary, **_fields)
        _KINDS[f"tags, {_scheme}, {_adversary}"] = partial(tagged, adversary=_adversary, **_fields)
        if _scheme != "single pass":
            _KINDS[f"laplace, {_scheme}, {_adversary}"] = partial(laplace, adversary=_adversary, **_fields)
_KINDS |= {
    "coins, not attained": partial(coins, attained=0),
    "coins, drawn": partial(coins, coin_distance=1e-16, coin_ratio=1e-9),
    "coins, far from fair": partial(coins, coin_distance=1e-12),
    "coins, few": partial(coins, trials=200),
    "coins, little noise": partial(coins, sensitivity=1_000.0, attained=1_000),
    "coins, none": partial(coins, trials=0),
    "laplace, at a distance": partial(laplace, distance=1e-9),
    "laplace, not attained": partial(laplace, attained=0),
    "tags, some honest": partial(tagged, honest=350),
    "tags, no opposites": partial(tagged, opposite=False),
    "tags, bits only": partial(tagged, tags=(Tag(local_epsilon=0.8, count=4, places=False),)),
    "large": partial(shuffled, population=10**9, cohort=10**6, local_epsilon=6.0),
    "tiny": partial(shuffled, population=3, cohort=2),
    "one client": partial(everybody, 1),
    "loud": partial(shuffled, local_epsilon=30.0),
    "very loud": partial(everybody, local_epsilon=400.0),
    "quiet": partial(shuffled, local_epsilon=1e-6),
    "received": lambda: shuffled(sampling=Sampling.POISSON).received(180),
    "clones": lambda: everybody(mechanism="clones", blanket=Blanket.clones(1.0)),
    "bit, k of n": lambda: shuffled(mechanism="bit", blanket=Blanket.bit(1.0)),
    "bit, full": lambda: everybody(mechanism="bit", blanket=Blanket.bit(1.0)),
    "bit, epoch": lambda: shuffled(mechanism="bit", blanket=Blanket.bit(1.0), sampling=Sampling.EPOCH),
    "bit, inexact": lambda: shuffled(mechanism="bit", blanket=Blanket.bit(1.0, exact=False)),
    "atoms": lambda: shuffled(
        mechanism="atoms",
        blanket=Blanket.from_atoms(
            local_epsilon=1.0,
            atoms=[
                (math.e, 1.0, 0.1),
                (1.0, math.e, 0.1),
                (1.0, 1.0, 0.9 - math.e / 10),
            ],
        ),
    ),
}
for _name, _make in _KINDS.items():
    if _name.startswith("generic") and _name.endswith(", 1.0") and "k of n" not in _name:
        continue  # an ε0 between two that are asked about
    QUESTIONS.add(f"one round: {_name}", lambda make=_make: ask_all(lambda: [(make(), 1)]))
    if _name.startswith("generic") and _name.endswith(", 0.2"):
        continue  # composed as those at ε0 = 4 are
    QUESTIONS.add(f"100 rounds: {_name}", lambda make=_make: ask_epsilon(lambda: [(make(), 100)]))
    QUESTIONS.add(
        f"30 rounds by Rényi orders: {_name}",
        lambda make=_make: ask_epsilon(lambda: [(make(), 30)], method="rdp"),
    )
for _delta in (0.3, 1e-2, 1e-4, 1e-10, 1e-40, 1e-200):
    for _name in ("generic, k of n, model-observer, 1.0", "generic, full, model-observer, 4.0"):
        for _steps in (1, 40):
            QUESTIONS.add(
                f"delta {_delta}: {_steps} of {_name}",
                lambda make=_KINDS[_name], steps=_steps, delta=_delta: ask_epsilon(
                    lambda: [(make(), steps)], delta=delta
                ),
            )
    for _name in ("coins, full, model-observer", "laplace, full, model-observer", "tags, some honest"):
        QUESTIONS.add(
            f"delta {_delta}: {_name}",
            lambda make=_KINDS[_name], delta=_delta: ask_epsilon(lambda: [(make(), 1)], delta=delta),
        )
for _epsilon in (0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 20.0):
    for _name in (
        "generic, k of n, model-observer, 1.0",
        "generic, poisson, model-observer, 4.0",
        "coins, full, model-observer",
        "laplace, full, model-observer",
        "tags, full, model-observer",
        "with a delta, full, server",
    ):
        QUESTIONS.add(
            f"delta at epsilon {_epsilon}: 10 of {_name}",
            lambda make=_KINDS[_name], epsilon=_epsilon: interval(
                accountant_of([(make(), 10)]).delta(epsilon)
            ),
        )
for _steps in (10, 1_000, 10**5, 10**7):
    _small = _history(shuffled, _steps, population=10**6)
    QUESTIONS.add(f"{_steps} small rounds", partial(ask_epsilon, _small))
    QUESTIONS.add(f"{_steps} rounds", partial(ask_epsilon, _history(shuffled, _steps)))


# -- every mechanism ----------------------------------------------------------------------------------------


def blanket_of(name: str, *, local_epsilon: float, dim: int) -> dict[str, Any]:
    blanket = registry.blanket(name, local_epsilon=local_epsilon, dim=dim)
    return {"state": blanket.state(), "mass": blanket.mass, "tail": blanket.tail}


def mechanism_round(name: str, *, local_epsilon: float, dim: int, **fields: Any) -> ShuffleRound:
    mechanism = registry.get(name, local_epsilon=local_epsilon, dim=dim)
    found: ShuffleRound = mechanism.round(**{"population": 3_000, "cohort": 300, **fields})
    return found


def mechanism_costs(name: str, *, local_epsilon: float, dim: int) -> dict[str, Any]:
    found = mechanism_round(name, local_epsilon=local_epsilon, dim=dim)
    full = mechanism_round(
        name, local_epsilon=local_epsilon, dim=dim, population=300, cohort=300, sampling=Sampling.FULL
    )
    return {
        "own_delta": found.own_delta,
        "distance": found.replacement_distance,
        "pair": found.pair_name,
        "sampled": named_costs(found, 5),
        "full": named_costs(full, 1),
    }


def named_costs(found: ShuffleRound, num_steps: int) -> dict[str, Any]:
    """What rounds cost. Mechanisms of equal laws cost the same, up to the name in the bound from below."""
    if found.blanket is None:
        return law_costs(found, num_steps)
    costs = law_costs(replace(found, mechanism=_ANY), num_steps)
    return {**costs, "lower_bound": costs["lower_bound"].replace(_ANY, found.mechanism)}


@cache
def law_costs(found: ShuffleRound, num_steps: int) -> dict[str, Any]:
    return interval(accountant_of([(found, num_steps)]).epsilon(1e-4))


_ANY = "any mechanism"


QUESTIONS.add("mechanisms by name", lambda: sorted(MECHANISMS))
for _name in MECHANISMS:
    _dims = (1,) if _name == "binary-rr" else (3, 64, 1_000) if _name in CATEGORY_MECHANISMS else (2, 50, 999)
    for _dim in _dims:
        for _level in (0.5, 2.0, 6.0):
            QUESTIONS.add(
                f"blanket: {_name}, {_dim}, {_level}",
                partial(blanket_of, _name, local_epsilon=_level, dim=_dim),
            )
    QUESTIONS.add(
        f"costs: {_name}, 2.0",
        partial(mechanism_costs, _name, local_epsilon=2.0, dim=_dims[len(_dims) // 2]),
    )
for _level in (0.1, 1.0, 5.0):
    for _categories in (2, 3, 10, 1_000):
        QUESTIONS.add(
            f"k-ary response: {_level}, {_categories}",
            lambda e=_level, k=_categories: ask_epsilon(
                lambda: [
                    (
                        shuffled(
                            local_epsilon=e,
                            mechanism="k-rr",
                            blanket=ideal_k_ary_response(local_epsilon=e, categories=k),
                        ),
                        3,
                    )
                ]
            ),
        )
        for _oracle in (ideal_subset_selection, ideal_rappor, ideal_optimal_unary_encoding):
            QUESTIONS.add(
                f"blanket of {_oracle.__name__.removeprefix('ideal_')}: {_level}, {_categories}",
                lambda f=_oracle, e=_level, k=_categories: f(local_epsilon=e, categories=k).state(),
            )
    QUESTIONS.add(
        f"subsets of a given size: {_level}",
        lambda e=_level: ideal_subset_selection(local_epsilon=e, categories=12, size=4).state(),
    )
    for _buckets in (None, 2, 7):
        QUESTIONS.add(
            f"blanket of local_hashing: {_level}, {_buckets}",
            lambda e=_level, g=_buckets: ideal_local_hashing(local_epsilon=e, buckets=g).state(),
        )
    QUESTIONS.add(
        f"blanket of hadamard_response: {_level}",
        lambda e=_level: ideal_hadamard_response(local_epsilon=e).state(),
    )
    QUESTIONS.add(f"blanket of laplace: {_level}", lambda e=_level: laplace_blanket(e).state())
    QUESTIONS.add(
        f"blanket of discrete laplace: {_level}",
        lambda e=_level: discrete_laplace_blanket(local_epsilon=e, steps=8).state(),
    )
    for _form in (Blanket.generic, Blanket.clones, Blanket.bit):
        QUESTIONS.add(f"blanket {_form.__name__}: {_level}", lambda f=_form, e=_level: f(e).state())
for _sigma in (0.7, 3.0):
    QUESTIONS.add(
        f"blanket of gaussian: {_sigma}", lambda s=_sigma: gaussian_blanket(sigma=s, radius=1.0).state()
    )


# -- histories ----------------------------------------------------------------------------------------------


def _mixed() -> History:
    return [
        (shuffled(), 10),
        (shuffled(local_epsilon=2.0, cohort=50), 3),
        (everybody(500, local_epsilon=0.3), 2),
        (shuffled(sampling=Sampling.POISSON), 4),
        (coins(), 1),
        (laplace(), 1),
        (tagged(), 1),
    ]


QUESTIONS.add("history: nothing", partial(ask_all, list))
QUESTIONS.add("history: every kind", partial(ask_all, _mixed))
QUESTIONS.add("history: every kind, Rényi", partial(ask_epsilon, _mixed, method="rdp"))
QUESTIONS.add(
    "history: coins and reports of (ε0, δ0)",
    partial(ask_all, lambda: [(coins(), 3), (shuffled(local_delta=1e-12), 2)]),
)
QUESTIONS.add(
    "history: one loud among quiet ones",
    partial(ask_all, lambda: [(shuffled(local_epsilon=8.0), 1), (shuffled(local_epsilon=0.05), 100)]),
)


def growing(rounds: Iterable[Round]) -> list[dict[str, Any]]:
    """An accountant that is asked after each round."""
    accountant = ShuffleAccountant()
    found = []
    for each in rounds:
        accountant.step(each)
        found.append(interval(accountant.epsilon(DELTA)))
    return found


def upper_ends(rounds: Iterable[Round], *, before: int = 0) -> list[float]:
    """The same of a history of many kinds, of which ``before`` are recorded at first."""
    accountant = ShuffleAccountant()
    found = []
    for index, each in enumerate(rounds):
        accountant.step(each)
        if index >= before:
            found.append(accountant.epsilon(DELTA, lower=False).upper)
    return found


def allowed(target: float, *, make: Callable[[], Round], most: int = 3_000) -> dict[str, Any]:
    """How many rounds are let through under a target."""
    accountant = ShuffleAccountant()
    while accountant.num_steps < most and not accountant.would_exceed(
        make(), target_epsilon=target, delta=DELTA
    ):
        accountant.step(make())
    return {"steps": accountant.num_steps, "spent": accountant.epsilon(DELTA, lower=False).upper}


QUESTIONS.add("growing: equal rounds", lambda: growing(shuffled() for _ in range(12)))
QUESTIONS.add("growing: different rounds", lambda: growing(shuffled(cohort=100 + 7 * i) for i in range(6)))
QUESTIONS.add("growing: every kind", lambda: growing(each for each, _ in _mixed()))
QUESTIONS.add(
    "growing: many kinds", lambda: upper_ends((shuffled(cohort=50 + i) for i in range(44)), before=30)
)
for _target in (0.3, 1.0):
    QUESTIONS.add(
        f"allowed within {_target}: reports",
        partial(allowed, _target, make=partial(shuffled, local_epsilon=2.0)),
    )
    QUESTIONS.add(f"allowed within {_target}: coins", partial(allowed, _target, make=coins))
QUESTIONS.add(
    "rounds left",
    lambda: [
        accountant_of([(shuffled(local_delta=delta), 7)]).rounds_left(
            shuffled(local_delta=delta), delta=DELTA
        )
        for delta in (0.0, 1e-12, 1e-9)
    ],
)


# -- federated rounds ---------------------------------------------------------------------------------------


class _Generic:
    """The least that a federated round asks of a mechanism."""

    def __init__(self, local_epsilon: float = 1.5, local_delta: float = 0.0) -> None:
        self.local_epsilon, self.local_delta = local_epsilon, local_delta

    def round(
        self, *, population: int, cohort: int, sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    ) -> ShuffleRound:
        return ShuffleRound(
            local_epsilon=self.local_epsilon,
            local_delta=self.local_delta,
            population=population,
            cohort=cohort,
            sampling=sampling,
            channel_fixed=True,
        )


class _Coins:
    """A sum of fair coins as a mechanism."""

    local_epsilon, local_delta = float("inf"), 0.0

    def round(
        self, *, population: int, cohort: int, sampling: Sampling = Sampling.WITHOUT_REPLACEMENT
    ) -> SumRound:
        return coins(trials=10_000 * cohort, population=population, cohort=cohort, sampling=sampling)


def _people(count: int, *, first: int = 0) -> list[str]:
    return [f"client-{i}" for i in range(first, first + count)]


def drawn(reports: int = 90, *, mechanism: Any = None, **fields: Any) -> FederatedRound:
    return FederatedRound.drawn(
        _Generic() if mechanism is None else mechanism,
        **{"candidates": 1_000, "invited": 100, "reports": reports, **fields},
    )


def secret(reports: int = 90, *, mechanism: Any = None, **fields: Any) -> FederatedRound:
    return FederatedRound.secret(
        _Generic() if mechanism is None else mechanism, **{"answered": 950, "reports": reports, **fields}
    )


def seen(found: FederatedRound) -> dict[str, Any]:
    """Each side of a round, and what it costs there."""
    return {
        "state": found.state(),
        "reports": found.reports,
        "secret": found.is_secret,
        "observer": interval(accountant_of([(found.observer, 3)]).epsilon(DELTA)),
        "server": interval(accountant_of([(found.server, 3)]).epsilon(DELTA)),
    }


_ASKED = {Adversary.MODEL_OBSERVER: "observer", Adversary.SERVER: "server", Adversary.LOCAL: "local"}


def spending(accountant: FederatedAccountant, *, delta: float = DELTA) -> dict[str, Any]:
    found = accountant.spending(delta)
    return {
        "observer": interval(found.observer),
        "server": interval(found.server),
        "local_epsilon": found.local_epsilon,
        "rounds": found.num_rounds,
        "worst": found.worst_client_rounds,
        "spent": {
            _ASKED[each]: accountant.epsilon(delta, adversary=each, lower=False).upper for each in Adversary
        },
    }


def several(*, method: Any = "pld") -> FederatedAccountant:
    """Rounds of several kinds: named and unnamed participants, discarded rounds, a change of names."""
    accountant = FederatedAccountant(method=method)
    for index in range(6):
        accountant.step(drawn(80 + index), participants=_people(95, first=20 * index))
    accountant.step(drawn(40), participants=_people(50), released=False)
    accountant.step(drawn(70, mechanism=_Generic(0.7)), participants=None)
    accountant.rename()
    accountant.step(secret(), participants=_people(950))
    accountant.step(drawn(85), participants=_people(100, first=500))
    return accountant


def ask_several(build: Callable[[], FederatedAccountant], *, delta: float = DELTA) -> dict[str, Any]:
    return spending(build(), delta=delta)


def sums() -> FederatedAccountant:
    accountant = FederatedAccountant()
    for index in range(4):
        accountant.step(drawn(90 - index, mechanism=_Coins()), participants=_people(95, first=30 * index))
    return accountant


def of_approximate() -> FederatedAccountant:
    accountant = FederatedAccountant()
    for _ in range(3):
        accountant.step(drawn(mechanism=_Generic(1.0, 1e-12)), participants=_people(95))
    return accountant


def federated_growing(adversary: Adversary) -> dict[str, Any]:
    """Rounds that a budget lets through."""
    accountant = FederatedAccountant()
    spent = []
    for index in range(40):
        one = drawn(80 + 3 * (index % 5))
        if accountant.would_exceed(one, max_epsilon=2.5, delta=DELTA, adversary=adversary):
            break
        accountant.step(one, participants=_people(95, first=10 * index))
        spent.append(accountant.epsilon(DELTA, adversary=adversary, lower=False).upper)
    return {"rounds": accountant.num_rounds, "spent": spent}


for _name, _federated in {
    "drawn": drawn,
    "drawn, some honest": partial(drawn, honest_fraction=0.6),
    "drawn, all": partial(drawn, candidates=100),
    "drawn, coins": partial(drawn, mechanism=_Coins()),
    "secret": secret,
    "secret, at a rate": partial(secret, rate=0.2),
    "secret, some honest": partial(secret, honest_fraction=0.35, rate=0.1),
    "secret, coins": partial(secret, mechanism=_Coins()),
    "drawn, with a delta": partial(drawn, mechanism=_Generic(1.0, 1e-12)),
}.items():
    QUESTIONS.add(f"federated round: {_name}", lambda make=_federated: seen(make()))
QUESTIONS.add("federated: nothing", partial(ask_several, FederatedAccountant))
QUESTIONS.add("federated: several kinds", partial(ask_several, several))
QUESTIONS.add("federated: several kinds, large delta", partial(ask_several, several, delta=1e-2))
QUESTIONS.add("federated: several kinds, Rényi", partial(ask_several, partial(several, method="rdp")))
QUESTIONS.add("federated: sums", partial(ask_several, sums))
QUESTIONS.add("federated: (ε0, δ0) reports", partial(ask_several, of_approximate))
for _adversary, _called in _ASKED.items():
    QUESTIONS.add(f"federated within 2.5: {_called}", partial(federated_growing, _adversary))


# -- saved states -------------------------------------------------------------------------------------------

STATES: dict[str, Callable[[], Any]] = {
    **{
        f"round: {name}": lambda make=make: make().state()
        for name, make in _KINDS.items()
        if name != "coins, none"
        and not (name.startswith("generic") and name.endswith((", 0.2", ", 4.0")))  # states like that at 1.0
    },
    **{
        f"round: of {name}": lambda name=name: mechanism_round(name, local_epsilon=2.0, dim=50).state()
        for name in ("gaussian", "k-rr", "laplace", "linf-block", "privunit", "subset-selection")
    },
    "history: every kind": lambda: accountant_of(_mixed()).state_dict(),
    "history: Rényi": lambda: accountant_of([(shuffled(), 9)], method="rdp").state_dict(),
    "federated: several kinds": lambda: several().state_dict(),
    "federated: sums": lambda: sums().state_dict(),
    "federated round: drawn": lambda: drawn().state(),
    "federated round: coins": lambda: drawn(mechanism=_Coins()).state(),
}
"""States as they are saved; ``saved_states.json`` holds those that later code must still be able to read."""


def saved() -> Mapping[str, Any]:
    """The saved states, as an application would read them from its files."""
    found: Mapping[str, Any] = json.loads(Path(SAVED).read_text(encoding="utf-8"))
    return found


def loaded(name: str) -> Any:
    """What a saved state costs once it is read back."""
    state = saved()[name]
    kind = name.split(":")[0]
    if kind == "round":
        back = Round.from_state(_tuples(state))
        delta = 1e-2 if name.startswith("round: of") else DELTA
        return {"same": back.state(), "epsilon": ask_epsilon(lambda: [(back, 4)], delta=delta)}
    if kind == "federated round":
        return seen(FederatedRound.from_state(state))
    if kind == "federated":
        federated = FederatedAccountant()
        federated.load_state_dict(state)
        return {**spending(federated), "same": _without_digest(federated.state_dict())}
    accountant = ShuffleAccountant(method=state["method"])
    accountant.load_state_dict(_tuples(state))
    return {"epsilon": interval(accountant.epsilon(DELTA)), "same": _without_digest(accountant.state_dict())}


def _without_digest(state: Any) -> Any:
    """A state but for what depends on the last digit of each of its numbers, which processors differ in."""
    return {key: state[key] for key in state if key != "digest"} if isinstance(state, dict) else state


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


for _name, _state in STATES.items():
    QUESTIONS.add(
        f"state, as text: {_name}",
        lambda state=_state: json.dumps(_without_digest(state()), sort_keys=True),
    )
    QUESTIONS.add(f"state, read back: {_name}", partial(loaded, _name))


# -- what bounds are made of --------------------------------------------------------------------------------

for _trials in (100, 1_000, 10**5, 3 * 10**7):
    QUESTIONS.add(
        f"gaussian cover: {_trials}",
        lambda n=_trials: {
            "deviation": gaussian_cover(n).deviation,
            "distance": gaussian_cover(n).distance,
            "ratio": [log_ratio(n, log_tail=tail) for tail in (-5.0, -30.0, -200.0)],
        },
    )
for _clients, _shares, _modulus in ((10, 4, 1_000), (1_000, 5, 10**6), (10**5, 6, 10**9), (10**7, 3, 10**12)):
    QUESTIONS.add(
        f"share mixing: {_clients}, {_shares}, {_modulus}",
        partial(mixing_distance, clients=_clients, shares=_shares, modulus=_modulus),
    )
for _at in (1e-2, 1e-5, 1e-12):
    QUESTIONS.add(
        f"conversion: {_at}",
        lambda at=_at: {
            "epsilon": epsilon_from_rdp(
                orders=[1.5, 2.0, 8.0, 64.0], rdp=[0.01, 0.02, 0.1, float("inf")], delta=at
            ),
            "delta": delta_from_rdp(
                orders=[1.5, 2.0, 8.0, 64.0], rdp=[0.01, 0.02, 0.1, 1.5], epsilon=100 * at
            ),
        },
    )
