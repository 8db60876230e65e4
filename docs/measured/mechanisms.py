"""Mechanisms: error, bits and time."""

from __future__ import annotations

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.core import rounded
from shuffle_plugins.planning import report_error

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


def short() -> str:
    """Error of the best report of at most 15 bits, over that of one sign."""
    rows = result("benchmarks/mechanisms")["short"]
    equal = max(row["local_epsilon"] for row in rows if row["ratio"] > 0.995)
    better = [row for row in rows if row["local_epsilon"] > equal]
    head = ("ε0", f"≤ {equal:g}", *(f"{row['local_epsilon']:g}" for row in better))
    return table(head, [("ratio", "1", *(f"{row['ratio']:.2f}" for row in better))])


_PEERS = (
    ("fht-cpu", "fht-cpu 1.0.1", ""),
    ("ffht-unofficial", "FFHT (ffht-unofficial 0.3)", ""),
    ("hadamard-transform", "hadamard-transform 0.2.0", ""),
    ("pyfwht", "pyfwht 2.0.1, float64", "float64, "),
)


def hadamard() -> str:
    """Other Hadamard transforms' time over ours."""
    found = result("benchmarks/hadamard")["a peer's time over ours"]

    def cell(peer: str, what: str) -> str:
        of = found.get(what, {}).get(peer)
        if of is None:
            return ""
        least, mean, most = (of[name] for name in ("least", "geometric mean", "largest"))
        digits = 2 if mean < 2 else 1 if mean < 10 else 0
        return f"{mean:.{digits}f} ({least:.{digits}f}–{most:.{digits}f})"

    rows = (
        (
            name,
            cell(peer, f"in place, {kind}one row"),
            cell(peer, f"in place, {kind}batches of 10 and more"),
            "" if kind else cell(peer, "new tensor, one row"),
            "" if kind else cell(peer, "new tensor, batches of 10 and more"),
        )
        for peer, name, kind in _PEERS
    )
    head = (
        "peer",
        "one row in place",
        "batches of 10 to 1000 in place",
        "one row, new tensor",
        "batches, new tensor",
    )
    return table(head, rows)


TABLES: Tables = {
    MECHANISMS: {"equal epsilon": equal_epsilon},
    BENCHMARKS: {"at most 15 bits": short, "Hadamard": hadamard},
}


def sentences() -> Sentences:
    """Pieces of text with errors and lengths of reports."""
    found = result("benchmarks/mechanisms")
    ratios, wire = [row["ratio"] for row in found["errors"]], found["wire"]
    asked = {"local_epsilon": 2.0, "dim": 13_706, "radius": 1.0, "norm": "l2"}
    block, least = (report_error(name, **asked) for name in ("l2-block", "privunit"))  # type: ignore[arg-type]
    return {
        "README.md": [
            f"**{block.bits} bits** for a gradient of {asked['dim']:,} numbers, with "
            f"{block.variance / least.variance:.1f} times the squared error of the most accurate mechanism, "
            f"which takes {least.bits:,} bits (at ε0 = 2; [all {len(ratios)} of one report]",
        ],
        MECHANISMS: [
            f"| `{name}` | l2 | {float(f'{report.variance:.4g}'):,.0f} |"
            for name, report in (("privunit", least), ("l2-block", block))
        ],
        BENCHMARKS: [
            f"between {min(ratios):.4f} and {max(ratios):.4f} for all {len(ratios)} mechanisms",
            f"at d = {wire['dim']:,} are {wire['report_bytes']:,} bytes, where float32 vectors are "
            f"{wire['float32_bytes']:,}: {wire['saving']:,.0f} times fewer, and the thesis's "
            f"{wire['saving_without_header']:,.0f} without",
        ],
    }
