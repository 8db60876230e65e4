"""The first pages: what there is, what a small shuffle buys, and how long questions take."""

from __future__ import annotations

from typing import Any

from measured.parts import ROOT, Sentences, Tables, result
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.published import PUBLISHED_BOUNDS, PUBLISHED_CLAIMS
from shuffle_plugins.core import rounded

TABLES: Tables = {}
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def _published() -> str:
    """How many published bounds there are, of how many papers, and how many are none here."""
    listed = [*PUBLISHED_BOUNDS, *PUBLISHED_CLAIMS]
    papers = {each.source.partition(",")[0] for each in listed}
    invalid = len(PUBLISHED_CLAIMS) + sum(not bound.valid for bound in PUBLISHED_BOUNDS)
    return f"{len(listed)}, from {len(papers)} papers; {_NUMBERS[invalid]} of them are listed as no bounds"


def _few_clients() -> str:
    """What the worst mechanism leaks although a hundred reports were shuffled."""
    accountant = ShuffleAccountant()
    accountant.step(ShuffleRound(local_epsilon=4.0, population=100, cohort=100, channel_fixed=True))
    return (
        "With a hundred reports at ε0 = 4 it buys next to nothing: ε may be "
        f"{rounded(accountant.epsilon(1e-5).lower, up=False, digits=3)} at δ = 1e-5."
    )


def _questions() -> list[str]:
    """How long an accountant takes that is asked after every round."""
    found: dict[str, Any] = result("benchmarks/growing_histories")
    upper, both = found["shuffle_upper"], found["shuffle_both_ends"]
    tenth = upper["rounds"] // 10
    assert both["rounds"] % tenth == 0
    alone = upper["seconds_at_each_tenth"][both["rounds"] // tenth - 1]
    return [
        f"takes {100 * alone / both['seconds']:.0f} % of the time where it is asked after each of "
        f"{both['rounds']:,} rounds",
        f"so {upper['rounds']:,} questions took {upper['seconds']:.0f} s",
    ]


def sentences() -> Sentences:
    """Pieces of text on the first pages and in the guide to the accountant."""
    proofs = len(list((ROOT / "docs/proofs").glob("*.md")))
    clients = sorted({row["clients"] for row in result("benchmarks/protocols")["largest"]})
    powers = " to ".join(f"10^{len(str(each)) - 1}" for each in (clients[0], clients[-1]))
    return {
        "docs/README.md": [
            _published(),
            f"and [{_NUMBERS[proofs - 1]} more](#proofs)",
            f"for {powers} clients",
        ],
        "docs/guides/scaling.md": [f"for {powers} clients"],
        "docs/concepts.md": [_few_clients()],
        "docs/guides/accounting.md": _questions(),
    }
