"""Mechanisms: error, bits and time."""

from __future__ import annotations

from measured.parts import Tables, result, table
from shuffle_plugins.core import rounded

BENCHMARKS = "docs/reference/benchmarks.md"
MECHANISMS = "docs/guides/mechanisms.md"


def equal_epsilon() -> str:
    """PrivUnit and the blanket-mixed Gaussian mechanism at the same ε after shuffling."""
    return table(
        ("ε ≤", "ε0 of `privunit`", "ε0 of `blanket-mixed-gaussian`", "its error, over that of `privunit`"),
        (
            (
                rounded(of["epsilon"][1], up=True, digits=3),
                f"{of['local_epsilon']:g}",
                rounded(of["mixed_local_epsilon"], up=False),
                f"{of['mixed_variance'] / of['variance']:.2f}",
            )
            for of in result("benchmarks/mechanisms")["shuffled"]
        ),
    )


TABLES: Tables = {MECHANISMS: {"equal epsilon": equal_epsilon}}
