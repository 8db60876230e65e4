"""Sums, frequencies and range proofs: what they cost, and how near they come."""

from __future__ import annotations

import math
from typing import Any

from measured.parts import Sentences, Tables, result, table

OTHERS = "docs/reference/other-histograms.md"
PROOFS = "docs/guides/range-proofs.md"


def growth() -> str:
    """Errors of histograms against the number of clients."""
    keys = ("theorem", "one_message", "many_messages", "central_gaussian", "central_laplace")
    head = (
        "n",
        "Theorem 5.2, constants in",
        "one message, exact pair",
        "coins",
        "trusted, Gaussian",
        "trusted, discrete Laplace",
    )
    rows = result("benchmarks/frequencies")["growth"]
    return table(head, ((f"{row['clients']:,}", *(f"{row[key]:.2e}" for key in keys)) for row in rows))


_PEERS = (
    ("pure-ldp", "direct encoding"),
    ("pure-ldp", "optimal unary encoding"),
    ("pure-ldp", "optimal local hashing"),
    ("pure-ldp", "Hadamard response"),
    ("multi-freq-ldpy", "GRR"),
    ("multi-freq-ldpy", "subset selection"),
    ("multi-freq-ldpy", "OUE"),
)


def peers() -> str:
    """Errors and times of other packages over ours."""

    def span(values: list[float], digits: int) -> str:
        least, most = (f"{each:.{digits}f}" for each in (min(values), max(values)))
        return least if least == most else f"{least} to {most}"

    def row(package: str, method: str) -> tuple[str, ...]:
        rows = [
            each
            for each in result("benchmarks/frequencies")["rows"]
            if (each["package"], each["method"]) == (package, method)
        ]
        errors = (
            [each["error_ratio"] for each in rows if each["calibration"] == calibration]
            for calibration in ("Theorem 3.1", "exact pair")
        )
        times = [each["time_ratio"] for each in rows]
        return (f"{package}, {method}", *(span(each, 1) for each in errors), span(times, 0))

    head = ("", "× error, calibrated by Theorem 3.1", "× error, by our exact pair", "× time")
    return table(head, (row(*each) for each in _PEERS))


_SEARCHES = (
    ("decoys", "decoys"),
    ("decoys, in groups", "decoys, one round each"),
    ("everybody's coins, summed", "everybody's coins"),
    ("shares of Laplace noise, summed", "shares of Laplace noise"),
    ("counted unary encoding", "counted unary encoding"),
    ("one report, k-ary response", "one report, shuffled (k-rr)"),
    ("one report, Hadamard response", "one report, shuffled (hadamard-response)"),
    ("trusted server, Gaussian", "Gaussian noise"),
)


def heavy_hitters() -> str:
    """Frequent values of a large domain that each search found."""
    found = result("examples/heavy_hitters")["searches"]
    few, many = ({row["name"]: row for row in found[size]} for size in ("100000", "1000000"))

    def row(title: str, key: str) -> tuple[str, ...]:
        of = few[key]
        bits = f"{of['bits']:,}" if of.get("bits") else ""
        level = of.get("local_epsilon")
        spent = "" if title.startswith("trusted") else "none" if level is None else f"{level:.0f}"
        return (title, bits, spent, str(of["found"]), str(of["of_hundred"]), str(many[key]["found"]))

    head = (
        "",
        "bits, first round",
        "ε0 in all",
        "found, n = 100,000",
        "of the top 100",
        "found, n = 1,000,000",
    )
    return table(head, (row(*each) for each in _SEARCHES))


def liars() -> str:
    """How far one liar moves a sum."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        own = of["noise_deviations_per_coordinate_within_the_range"]
        return (
            f"{of['dim']:,}",
            f"{of['cohort']:,}",
            f"{of['radii_within_all_messages']:,.0f}",
            f"{of['radii_within_the_range']:,.0f}",
            f"{of['radii_of_the_noise']:,.0f}",
            f"{own:.2g}" if own < 1 else f"{own:.1f}",
        )

    head = (
        "d",
        "clients",
        "a liar within all messages",
        "a liar within the proven range",
        "the sum's noise",
        "a liar in one coordinate, in deviations of its noise",
    )
    return table(head, (row(of) for of in result("benchmarks/range_proofs")["influence"]))


def _size(number: int) -> str:
    if number == 0:
        return "–"
    if number < 1_000:
        return f"{number} B"
    return f"{number / 1e3:.0f} kB" if number < 1e6 else f"{number / 1e6:.3g} MB"


def _time(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    if milliseconds < 0.05:
        return "< 0.1 ms"
    return f"{milliseconds:.1f} ms" if milliseconds < 0.95 else f"{milliseconds:.0f} ms"


def range_proofs() -> str:
    """Bytes and time of shares with proofs."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        plain = of["kind"] == "additive share"
        return (
            f"{of['length']:,}",
            "additive, no proof" if plain else f"`{of['kind']}`",
            *(_size(of[f"bytes_{way}"]) for way in ("to_server", "to_aggregator", "between")),
            *(_time(of[f"{who}_seconds"]) for who in ("client", "server", "aggregator")),
        )

    head = (
        "d",
        "shares",
        "client to server",
        "client to aggregator",
        "aggregator to server",
        "client",
        "server, each client",
        "aggregator, each client",
    )
    costs = result("benchmarks/range_proofs")["costs"]
    return table(head, (row(of) for of in costs if of["length"] > 10_000))


def rates() -> str:
    """Powers of n and d of the excess loss of private optimisers."""
    powers = {-1 / 2: "−1/2", -4 / 5: "−4/5", -2 / 3: "−2/3", -1: "−1", -4 / 3: "−4/3", -2: "−2"}
    powers |= {1 / 4: "1/4", 2 / 5: "2/5", 1 / 3: "1/3", 1 / 2: "1/2", 2 / 3: "2/3", 1: "1"}

    def power(value: float) -> str:
        return next(text for known, text in powers.items() if abs(known - value) < 1e-9)

    def measured(value: float) -> str:
        return f"{value:.2f}".replace("-", "−")

    rows = (
        (
            of["title"],
            power(of["expected"]),
            measured(of["slope"]),
            power(of["dim_expected"]),
            measured(of["dim_slope"]),
        )
        for of in result("benchmarks/optimizers")["rates"]
    )
    return table(("method", "power of n, theorem", "measured", "power of d, theorem", "measured"), rows)


TABLES: Tables = {
    OTHERS: {"growth": growth, "peers": peers, "heavy hitters": heavy_hitters},
    PROOFS: {"liars": liars, "costs": range_proofs},
    "docs/reference/benchmarks.md": {"rates": rates},
}


def sentences() -> Sentences:
    """Pieces of text with what optimisers reach."""
    rates = result("benchmarks/optimizers")["rates"]
    apart = max(abs(of[f"{what}slope"] - of[f"{what}expected"]) for of in rates for what in ("", "dim_"))
    return {
        "docs/reference/benchmarks.md": [f"powers of n and d are within {math.ceil(100 * apart) / 100:g} of"],
    }
