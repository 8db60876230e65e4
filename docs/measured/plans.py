"""Plans: computed, not measured."""

from __future__ import annotations

from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning import expected_noise

PLANNING = "docs/guides/planning.md"


def scientific(value: float, digits: int = 2) -> str:
    """A number in powers of ten with this many digits, such as 9.8e-5 for two."""
    return f"{value:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e")


def _interval(ends: list[float], digits: int = 4) -> str:
    lower, upper = ends
    return f"[{rounded(lower, up=False, digits=digits)}, {rounded(upper, up=True, digits=digits)}]"


def rounds() -> str:
    """What everybody's reports in T rounds give."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        return (
            f"{of['num_steps']:,}",
            rounded(of["local_epsilon"], up=False),
            _interval(of["epsilon"]),
            scientific(of["error"]),
            scientific(of["bits_per_client"]),
            f"{of['over_curator']:.{0 if of['over_curator'] > 10 else 1}f}",
        )

    head = ("T (k = n)", "ε0", "certified ε", "error", "bits per client", "× trusted curator")
    return table(head, (row(of) for of in result("benchmarks/plans")["rounds"]))


def split() -> str:
    """The same number of reports in more or fewer rounds."""
    plans = result("benchmarks/plans")
    found = [*plans["split"], plans["rounds"][0]]
    return table(
        ("k·T = 10⁶ as", "10³ × 10³", "10⁴ × 100", "10⁵ × 10", "10⁶ × 1"),
        [
            ("ε0", *(rounded(of["local_epsilon"], up=False, digits=3) for of in found)),
            ("error", *(scientific(of["error"], 3) for of in found)),
        ],
    )


_DRAWN = {
    "server": "server",
    "clients": "clients, in secret",
    "nobody": "nobody",
    "in turn": "server, in turn",
}


def secret() -> str:
    """Who draws the clients of a sum."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        return (
            _DRAWN[of["drawn_by"]],
            f"{of['data_of']:,}",
            f"{of['answering']:,}",
            str(of["charged"]),
            rounded(of["noise_multiplier"], up=True, digits=3),
            _interval(of["epsilon"], 3),
            scientific(of["error"], 3),
            scientific(of["bits_per_client"]),
        )

    head = (
        "who draws",
        "data of",
        "answer",
        "rounds charged",
        "noise over the radius",
        "certified ε",
        "error",
        "bits per client",
    )
    return table(head, (row(of) for of in result("benchmarks/plans")["sums"]))


TABLES: Tables = {PLANNING: {"rounds": rounds, "split": split, "secret": secret}}


def sentences() -> Sentences:
    """Pieces of text about plans."""
    plans = result("benchmarks/plans")
    short = plans["thrifty"]
    server, clients, *_ = plans["sums"]
    noise = expected_noise(registry.get("privunit", local_epsilon=4.0, dim=26_010, radius=1.0), cohort=6_000)
    return {
        PLANNING: [
            f"over the noise's root mean square length: {noise.signal_to_noise_ratio:.2g}",
            f"it is T = {short['thrifty_steps']} instead of {short['best_steps']:,}: "
            f"{short['bits_over']:.0f} times fewer bits for "
            f"{100 * (short['error_over'] - 1):.1f} % more error.",
            f"In secret the error is {server['error'] / clients['error']:.0f} times smaller than where",
            f"of the client that is drawn most often: {server['charged']} of 300 here",
        ]
    }
