"""Frequencies: what searches for frequent values find, and where another package's decoder fails."""

from __future__ import annotations

import math

from measured.parts import Sentences, Tables, result

FREQUENCIES = "docs/guides/frequencies.md"
TABLES: Tables = {}
_ROUNDS = {"100000": 3, "1000000": 4}
"""Rounds of a search, by its number of clients."""
_NUMBERS = {4: "four", 8: "eight", 9: "nine"}


def _heavy_hitters() -> list[str]:
    """What searches hear of a value, and find."""
    found = result("examples/heavy_hitters")["searches"]
    assert all(of["found"] == of["held"] for rows in found.values() for of in rows)
    few, many = ({of["name"]: of for of in found[clients]} for clients in _ROUNDS)
    heard = []
    for rows, rounds in zip((few, many), _ROUNDS.values(), strict=True):
        odds = math.exp(rows["one report, shuffled (k-rr)"]["local_epsilon"] / rounds)
        heard.append(_NUMBERS[round((odds + (1 << 16)) / odds)])
    coins, counted = (
        [rows[name] for rows in (few, many)]
        for name in ("everybody's coins", "counted unary, symmetric, all rounds")
    )
    more = [100 * (one["found"] / other["found"] - 1) for one, other in zip(coins, counted, strict=True)]
    return [
        "search found was held by somebody: precision was 1 throughout",
        f"one holder of a value in {heard[0]} (n = 100,000) or {heard[1]} (1,000,000)",
        f"it takes {few['one report, shuffled (k-rr)']['bits']} bits instead of "
        f"{counted[0]['bits'] / 8e3:.0f} kB",
        f"Coins find {min(more):.0f} to {max(more):.0f} % more than the symmetric encoding for "
        f"{_NUMBERS[round(coins[0]['bits'] / counted[0]['bits'])]} times the bits",
        f"Rounds: {_ROUNDS['100000']} for 100,000 clients, {_ROUNDS['1000000']} for a million",
    ]


def _failing() -> str:
    """Where another package's decoder fails."""
    failed = result("benchmarks/frequencies")["failed"]
    (kind,) = {(of["package"], of["method"], of["calibration"]) for of in failed}
    assert kind == ("pure-ldp", "Hadamard response", "exact pair")
    (categories,) = {of["case"].partition("K = ")[2] for of in failed}
    return f"pure-ldp's Hadamard response fails with {categories} categories at the ε0 of our exact pair"


def sentences() -> Sentences:
    """Pieces of text on searches, and on another package."""
    return {FREQUENCIES: [*_heavy_hitters(), _failing()]}
