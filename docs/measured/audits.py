"""Audits: what attacks prove, beside what is certified."""

from __future__ import annotations

from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import registry

AUDIT, MEASURED = "docs/guides/audit.md", "docs/reference/benchmarks.md"


def _proven(row: dict[str, Any]) -> tuple[str, ...]:
    certified, audited = row["certified"], row["epsilon"]
    return (
        f"{row['delta']:g}",
        rounded(certified, up=True),
        rounded(audited, up=False),
        f"{audited / certified:.0%}",
    )


def reports() -> str:
    """Attacks on shuffled reports."""
    return table(
        ("mechanism", "round", "δ", "certified ε", "audited ε", "share", "attack", "everybody else"),
        (
            (
                f"`{row['mechanism']}`",
                row["round"],
                *_proven(row),
                row["attack"],
                row["neighbours"].rpartition(", everybody else ")[2],
            )
            for row in result("examples/audit")
        ),
    )


def sums() -> str:
    """Attacks on sums of several messages per client."""
    return table(
        ("sum", "δ", "certified ε", "audited ε", "share"),
        ((f"`{row['sum']}`", *_proven(row)) for row in result("examples/audit_sums")),
    )


TABLES: Tables = {MEASURED: {"reports": reports, "sums": sums}}


def sentences() -> Sentences:
    """Pieces of text with numbers of audits."""
    attacked, summed = result("examples/audit"), result("examples/audit_sums")
    reached = [row["epsilon"] / row["certified"] for row in attacked]
    (confidence,) = {row["confidence"] for row in (*attacked, *summed)}
    once, composed = (
        max(row["num_trials"] for row in attacked if (row["num_steps"] > 1) == several)
        for several in (False, True)
    )
    certified = [
        rounded(row["certified"], up=True)
        for row in result("examples/audit")
        if (row["mechanism"], row["round"]) == ("binary-rr", "10 of 50")
    ]
    ends = []
    for delta in (0.01, 0.001):
        accountant = ShuffleAccountant()
        blanket = registry.blanket("binary-rr", local_epsilon=2.0, dim=1)
        accountant.step(
            ShuffleRound(
                local_epsilon=2.0,
                population=50,
                cohort=10,
                mechanism="binary-rr",
                blanket=blanket,
                channel_fixed=True,
            )
        )
        ends.append(rounded(accountant.epsilon(delta).lower, up=False, digits=3))
    return {
        AUDIT: [f"prove {100 * min(reached):.0f} to {100 * max(reached):.0f} % of the certified ε"],
        MEASURED: [
            f"confidence {100 * confidence:g} %, {once:,} trials per dataset ({composed:,} for composed "
            "rounds)",
            f"confidence {100 * confidence:g} %, one seed",
            f"is known to attain {' and '.join(ends)}",
            f"where {' and '.join(certified)} are certified",
        ],
    }
