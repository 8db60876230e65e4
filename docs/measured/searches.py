"""Frequencies: what histograms and searches for frequent values cost, and where another's decoder fails."""

from __future__ import annotations

import math

from measured.parts import Sentences, Tables, result
from shuffle_plugins.core import rounded

FREQUENCIES = "docs/guides/frequencies.md"
OTHERS = "docs/reference/other-histograms.md"
TABLES: Tables = {}
_ROUNDS = {"100000": 3, "1000000": 4}
"""Rounds of a search, by its number of clients."""
_NUMBERS = {4: "four", 9: "nine"}


def _heavy_hitters() -> list[str]:
    """What searches hear of a value, and find."""
    found = result("examples/heavy_hitters")["searches"]
    assert all(of["found"] == of["held"] for rows in found.values() for of in rows)
    few, many = ({of["name"]: of for of in found[clients]} for clients in _ROUNDS)
    heard = []
    for rows, rounds in zip((few, many), _ROUNDS.values(), strict=True):
        odds = math.exp(rows["one report, shuffled (k-rr)"]["local_epsilon"] / rounds)
        heard.append(_NUMBERS[round((odds + (1 << 16)) / odds)])
    decoys, counted = few["decoys"], few["counted unary encoding"]
    return [
        "search found was held by somebody: precision was 1 throughout",
        f"one holder of a value in {heard[0]} (n = 100,000) or {heard[1]} (1,000,000)",
        f"it takes {few['one report, shuffled (k-rr)']['bits']} bits. "
        f"Rounds: {_ROUNDS['100000']} for 100,000 clients, {_ROUNDS['1000000']} for a million",
        f"sends {counted['bits'] / decoys['bits']:.0f} times the bits in the first round (n = 100,000), "
        f"and finds {100 * (1 - counted['found'] / decoys['found']):.0f} % less",
    ]


def _messages() -> str:
    """What a search by decoys sends in its first round."""
    few, many = (
        next(of["bits"] / 17 for of in rows if of["name"] == "decoys")
        for rows in (result("examples/heavy_hitters")["searches"][clients] for clients in _ROUNDS)
    )
    return f"at n = 100,000 {few:.0f} messages of 17 bits in the first round, at a million {many:.0f}"


def _histograms() -> list[str]:
    """Errors of a histogram of 100 categories, 10,000 clients, at (1, 1e-6)."""
    found = result("benchmarks/protocols")["shared_noise"]
    error, drawn, messages, rounds = (found[key] for key in ("error", "drawn", "messages", "rounds"))
    central = 10_000 * math.sqrt(result("benchmarks/frequencies")["growth"][0]["central_gaussian"])
    assert error["decoys"] / rounds["1"]["decoys"] == 1
    missing = {share: rounded(epsilon, up=True, digits=3) for share, epsilon in found["missing"].items()}
    least = result("benchmarks/protocols")["histograms"]["detectable"]
    return [
        f"{messages['10000']:.2f} messages at n = 10,000, {messages['100000']:.2f} at n = 100,000",
        f"{error['laplace']:.1f} clients in ℓ2 (drawn: {drawn['laplace']:.1f}) | "
        f"{error['decoys']:.1f} (drawn: {drawn['decoys']:.1f})",
        f"A trusted server that adds Gaussian noise has {central:.1f}",
        f"({rounds['5']['decoys']:.0f} against {rounds['5']['laplace']:.0f} clients; "
        f"{rounds['10']['decoys']:.0f} against {rounds['10']['laplace']:.0f} for ten)",
        f"at {found['provided']:.1f} in place of {error['laplace']:.1f}",
        f"10 % of the clients missing ε = {missing['0.1']} in place of 1, with 20 % {missing['0.2']}, "
        f"with half {missing['0.5']}",
        f"values of {least['decoy-histogram, all']} clients are found by all, "
        f"of {least['decoy-histogram, groups']} in groups",
        f"at n = 10,000 | its category, and once in a while a decoy: {messages['10000']:.2f} messages",
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
    over = {
        name: sorted(ratios)[len(ratios) // 2]
        for name, ratios in result("benchmarks/protocols")["histograms"]["over_gaussian"].items()
    }
    return {
        FREQUENCIES: [_messages(), *_histograms()],
        OTHERS: [
            *_heavy_hitters(),
            _failing(),
            f"`LaplaceHistogram` has {over['laplace']:.2f} times the trusted server's Gaussian, "
            f"`DecoyHistogram` {over['decoys']:.2f} times",
        ],
    }
