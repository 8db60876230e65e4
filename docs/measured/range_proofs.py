"""Range proofs: how long they make a message, and what a liar can do."""

from __future__ import annotations

from measured.parts import Sentences, Tables, result

PROOFS = "docs/guides/range-proofs.md"
SHUFFLING = "docs/guides/shuffling.md"
TABLES: Tables = {}


def _bytes_to_server(kind: str) -> dict[int, int]:
    """Bytes of a client's message to the server, by the number of its counts."""
    costs = result("benchmarks/range_proofs")["costs"]
    return {of["length"]: of["bytes_to_server"] for of in costs if of["kind"] == kind}


def sentences() -> Sentences:
    """Pieces of text on messages with range proofs, and on the length of coins."""
    plain, proved = (_bytes_to_server(kind) for kind in ("additive share", "Prio3SumVecWithMultiproof"))
    ratios = [proved[length] / plain[length] for length in plain]
    longer = f"{min(ratios):.0f} to {max(ratios):.0f} times as long"
    one, _, few = result("benchmarks/range_proofs")["influence"]
    shortest, longest = (
        f"{of['radii_of_one_clients_coins']:.2g} at d = {of['dim']:,} and n = {of['cohort']:,}"
        for of in (one, few)
    )
    return {
        PROOFS: [
            f"client's message {longer}",
            f"The noise multiplier is {one['noise_multiplier']:g}.",
            f"z·√(d/n) radii: {shortest}, and {longest}.",
            f"{proved[one['dim']] / 1e6:.2g} GB for 1,000 clients at d = {one['dim']:,}",
        ],
        SHUFFLING: [f"Replies are then {longer}"],
    }
