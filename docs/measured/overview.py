"""The first pages: for whom this is, and what a small shuffle buys."""

from __future__ import annotations

from measured.parts import Sentences, Tables, frontier, result, table
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.core import rounded
from shuffle_plugins.planning import training_recipe

FIT = "docs/start/fit.md"
_LEVELS = (1.0, 2.0, 4.0)
_DELTA = 1e-6


def _one_round(clients: int, local_epsilon: float) -> float:
    """ε of a round in which everybody sends one report, of the worst mechanism."""
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(local_epsilon=local_epsilon, population=clients, cohort=clients, channel_fixed=True)
    )
    return accountant.epsilon(_DELTA, lower=False).upper


def _halves(local_epsilon: float) -> int:
    """The least number of clients, of two digits, with which ε is at most half of ε0."""
    steps = [digits * 10**power for power in range(5) for digits in range(10, 100)]
    lowest, highest = 0, len(steps) - 1
    while lowest < highest:
        middle = (lowest + highest) // 2
        if _one_round(steps[middle], local_epsilon) <= local_epsilon / 2:
            highest = middle
        else:
            lowest = middle + 1
    return steps[lowest]


def few_clients() -> str:
    """ε of one round by clients and ε0, and from how many clients on shuffling halves it."""
    rows = [
        (f"n = {n:,}", *(rounded(_one_round(n, level), up=True, digits=2) for level in _LEVELS))
        for n in (10, 100, 1_000, 10_000)
    ]
    rows.append(("half of ε0 from n =", *(f"{_halves(level):,}" for level in _LEVELS)))
    return table(("", *(f"ε0 = {level:g}" for level in _LEVELS)), rows)


def parameters() -> str:
    """With how many parameters the recipe's signal is 20 times the noise: that falls as their root."""

    def most(clients: int, **how: str) -> str:
        recipe = training_recipe(target_epsilon=3.0, delta=_DELTA, population=clients, dim=1_000, **how)
        ratio = recipe.expected_noise.signal_to_noise_ratio_over(recipe.num_steps)
        return f"{float(f'{1_000 * (ratio / 20) ** 2:.1e}'):,.0f}"

    rows = [
        (f"{clients:,}", most(clients), most(clients, mechanism="vector-sum"))
        for clients in (1_000, 10_000, 100_000)
    ]
    return table(("clients or records", "one report", "sum"), rows)


def _sent() -> str:
    """What a client of the frontier's MNIST sends in a round at ε = 3."""
    report, seed, total = (
        next(
            run["bytes_per_round"]
            for run in frontier()
            if (run["data"], run["arm"], run["target_epsilon"]) == ("mnist", arm, "3")
        )
        for arm in ("one report", "seed", "sum")
    )
    return (
        f"sends {report:,} bytes a round as a report, {seed} as a seed (66 with Flower's framing), or "
        f"{total:,} for a sum before it is shared out"
    )


TABLES: Tables = {FIT: {"few clients": few_clients, "parameters": parameters}}


def sentences() -> Sentences:
    """Pieces of text on whom this is for, and on scaling."""
    clients = sorted({row["clients"] for row in result("benchmarks/protocols")["largest"]})
    powers = " to ".join(f"10^{len(str(each)) - 1}" for each in (clients[0], clients[-1]))
    return {
        FIT: [_sent()],
        "docs/guides/scaling.md": [f"for {powers} clients"],
    }
