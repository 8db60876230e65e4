"""What the accountants say of every kind of round and history; calibrations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from answers import Questions

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
    calibrate_cohort,
    calibrate_local_epsilon,
    calibrate_num_steps,
    pair_epsilon_interval,
)
from shuffle_plugins.mechanisms import registry

DELTA = 1e-6
MECHANISMS = registry.available(*registry.ONE_MESSAGE)
CATEGORY_MECHANISMS = registry.available(registry.Kind.CATEGORIES)
OBSERVER, SERVER = Adversary.MODEL_OBSERVER, Adversary.SERVER

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
    own = {"sensitivity": 100.0, "attained": 100, "trials": 1_000_000, "dim": 10}
    return SumRound(**{**own, "population": 1_000, "cohort": 1_000, **fields})


def laplace(**fields: Any) -> LaplaceRound:
    """A round of a sum with discrete Laplace noise."""
    own = {"noise_epsilon": 0.5, "sensitivity": 100, "attained": 100}
    return LaplaceRound(**{**own, "population": 1_000, "cohort": 1_000, **fields})


def tagged(**fields: Any) -> TaggedRound:
    """A round of several tags."""
    tags = (Tag(local_epsilon=1.0, count=3, places=True), Tag(local_epsilon=0.5, count=2, places=False))
    return TaggedRound(**{"tags": tags, "population": 500, "cohort": 500, "opposite": True, **fields})


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
_COMPOSED: list[str] = []
"""Kinds of rounds that are asked about a hundred times over, too."""
for _scheme, _fields in _SCHEMES.items():
    for _adversary in (OBSERVER, SERVER):
        _KINDS[f"generic, {_scheme}, {_adversary}, 4.0"] = partial(
            shuffled, adversary=_adversary, local_epsilon=4.0, **_fields
        )
    _KINDS[f"with a delta, {_scheme}, {OBSERVER}"] = partial(shuffled, local_delta=1e-11, **_fields)
    _COMPOSED += [f"generic, {_scheme}, {OBSERVER}, 4.0", f"with a delta, {_scheme}, {OBSERVER}"]
for _scheme, _fields in {
    "full": {},
    "k of n": {"sampling": Sampling.WITHOUT_REPLACEMENT, "population": 9_000},
    "single pass": {"sampling": Sampling.SINGLE_PASS, "population": 9_000},
}.items():
    _of_sums = {"coins": coins, "tags": tagged} | ({"laplace": laplace} if _scheme != "single pass" else {})
    for _name, _sum in _of_sums.items():
        _KINDS[f"{_name}, {_scheme}, {SERVER}"] = partial(_sum, adversary=SERVER, **_fields)
        _KINDS[f"{_name}, {_scheme}, {OBSERVER}"] = partial(_sum, **_fields)
        _COMPOSED.append(f"{_name}, {_scheme}, {OBSERVER}")
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
}
for _name, _make in _KINDS.items():
    QUESTIONS.add(f"one round: {_name}", lambda make=_make: ask_all(lambda: [(make(), 1)]))
for _name in _COMPOSED:
    _history = lambda make=_KINDS[_name], steps=100: [(make(), steps)]  # noqa: E731
    QUESTIONS.add(f"100 rounds: {_name}", partial(ask_epsilon, _history))
    QUESTIONS.add(
        f"30 rounds by Rényi orders: {_name}",
        partial(ask_epsilon, partial(_history, steps=30), method="rdp"),
    )
for _delta in (0.3, 1e-10, 1e-200):
    for _name, _steps in {
        "generic, k of n, model-observer, 4.0": 40,
        "coins, full, model-observer": 1,
    }.items():
        QUESTIONS.add(
            f"delta {_delta}: {_steps} of {_name}",
            lambda make=_KINDS[_name], steps=_steps, delta=_delta: ask_epsilon(
                lambda: [(make(), steps)], delta=delta
            ),
        )
for _epsilon in (0.01, 0.5, 20.0):
    for _name in ("generic, poisson, model-observer, 4.0", "tags, full, model-observer"):
        QUESTIONS.add(
            f"delta at epsilon {_epsilon}: 10 of {_name}",
            lambda make=_KINDS[_name], epsilon=_epsilon: interval(
                accountant_of([(make(), 10)]).delta(epsilon)
            ),
        )
for _steps in (10, 10**5, 10**7):
    QUESTIONS.add(f"{_steps} rounds", partial(ask_epsilon, lambda steps=_steps: [(shuffled(), steps)]))

# -- every mechanism ----------------------------------------------------------------------------------------


def mechanism_costs(name: str) -> dict[str, Any]:
    dim = 1 if name == "binary-rr" else 64 if name in CATEGORY_MECHANISMS else 50
    mechanism = registry.get(name, local_epsilon=2.0, dim=dim)
    found: ShuffleRound = mechanism.round(population=3_000, cohort=300)
    full = mechanism.round(population=300, cohort=300, sampling=Sampling.FULL)
    return {
        "own_delta": found.own_delta,
        "distance": found.replacement_distance,
        "pair": found.pair_name,
        "sampled": interval(accountant_of([(found, 5)]).epsilon(1e-4)),
        "full": interval(accountant_of([(full, 1)]).epsilon(1e-4)),
    }


for _name in MECHANISMS:
    QUESTIONS.add(f"costs: {_name}, 2.0", partial(mechanism_costs, _name))

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


def allowed(target: float, *, make: Callable[[], Round]) -> dict[str, Any]:
    """How many rounds are let through under a target."""
    accountant = ShuffleAccountant()
    while not accountant.would_exceed(make(), target_epsilon=target, delta=DELTA):
        accountant.step(make())
    return {"steps": accountant.num_steps, "spent": accountant.epsilon(DELTA, lower=False).upper}


QUESTIONS.add("growing: different rounds", lambda: growing(shuffled(cohort=100 + 7 * i) for i in range(6)))
QUESTIONS.add("growing: every kind", lambda: growing(each for each, _ in _mixed()))
QUESTIONS.add("allowed within 1.0: reports", partial(allowed, 1.0, make=partial(shuffled, local_epsilon=2.0)))
QUESTIONS.add("allowed within 1.0: coins", partial(allowed, 1.0, make=coins))
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
    own = {"candidates": 1_000, "invited": 100, "reports": reports}
    return FederatedRound.drawn(mechanism or _Generic(), **{**own, **fields})


def secret(reports: int = 90, *, mechanism: Any = None, **fields: Any) -> FederatedRound:
    return FederatedRound.secret(mechanism or _Generic(), **{"answered": 950, "reports": reports, **fields})


_ASKED = {OBSERVER: "observer", SERVER: "server", Adversary.LOCAL: "local"}


def spending(accountant: FederatedAccountant) -> dict[str, Any]:
    found = accountant.spending(DELTA)
    return {
        "observer": interval(found.observer),
        "server": interval(found.server),
        "local_epsilon": found.local_epsilon,
        "rounds": found.num_rounds,
        "worst": found.worst_client_rounds,
        "spent": {
            _ASKED[each]: accountant.epsilon(DELTA, adversary=each, lower=False).upper for each in Adversary
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


for _name, _build in {
    "nothing": FederatedAccountant,
    "several kinds": several,
    "several kinds, Rényi": partial(several, method="rdp"),
    "sums": sums,
    "(ε0, δ0) reports": of_approximate,
}.items():
    QUESTIONS.add(f"federated: {_name}", lambda build=_build: spending(build()))

# -- calibrations -------------------------------------------------------------------------------------------

_TARGETS = {"target_epsilon": 0.8, "delta": DELTA}
_FIXED: dict[str, Any] = {"channel_fixed": True}
_SOME = {"population": 2_000, "cohort": 200, "num_steps": 10}
for _scheme, _adversary in ((Sampling.WITHOUT_REPLACEMENT, OBSERVER), (Sampling.EPOCH, SERVER)):
    QUESTIONS.add(
        f"largest local epsilon: {_scheme}, {_adversary}",
        partial(
            calibrate_local_epsilon, **_TARGETS, **_SOME, **_FIXED, sampling=_scheme, adversary=_adversary
        ),
    )
QUESTIONS.add(
    "most rounds: without-replacement, server",
    lambda: calibrate_num_steps(**_TARGETS, shuffle_round=shuffled(local_epsilon=0.6, adversary=SERVER)),
)
for _scheme in (Sampling.WITHOUT_REPLACEMENT, Sampling.CHECK_IN):
    QUESTIONS.add(
        f"largest cohort: {_scheme}, {OBSERVER}",
        partial(
            calibrate_cohort,
            **_TARGETS,
            **_FIXED,
            population=500,
            local_epsilon=0.5,
            num_steps=5,
            sampling=_scheme,
            adversary=OBSERVER,
        ),
    )
