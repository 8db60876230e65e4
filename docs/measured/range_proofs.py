"""Range proofs: how long they make a message, and what a liar can do."""

from __future__ import annotations

import math

from measured.parts import Sentences, Tables, result
from shuffle_plugins.secure_aggregation.prio3 import Prio3SumVecWithMultiproof

PROOFS = "docs/guides/range-proofs.md"
TABLES: Tables = {}


def _bytes_to_server(kind: str) -> dict[int, int]:
    """Bytes of a client's message to the server, by the number of its counts."""
    costs = result("benchmarks/range_proofs")["costs"]
    return {of["length"]: of["bytes_to_server"] for of in costs if of["kind"] == kind}


def _false_proof(prio3: Prio3SumVecWithMultiproof) -> float:
    """-log2 of the probability with which a false proof passes, at most.

    It needs a root of a polynomial: in the randomness of a chunk, whose degree is the chunk's length, or
    where the proof's polynomial is asked for, whose degree is twice that of a wire.
    """
    circuit = prio3.valid
    degree = circuit.chunk_length + 2 * (circuit.wire_length - 1)
    return prio3.proofs * math.log2(circuit.field.modulus / degree)


def _passing() -> list[str]:
    """How probably false proofs pass."""
    always = _false_proof(Prio3SumVecWithMultiproof(length=10**6, max_measurement=1))
    ten = 10 * math.floor(always / 10)
    return [
        f"a probability below 2^-{ten}, for vectors of up to a million bits in all",
        f"a probability below T · 2^-{ten}",
    ]


def sentences() -> Sentences:
    """Pieces of text on messages with range proofs."""
    plain, proved = (_bytes_to_server(kind) for kind in ("additive share", "Prio3SumVecWithMultiproof"))
    ratios = [proved[length] / plain[length] for length in plain]
    longer = f"{min(ratios):.0f} to {max(ratios):.0f} times as long"
    one = result("benchmarks/range_proofs")["influence"][0]
    (shared,) = {of["bytes_to_aggregator"] for of in result("benchmarks/sum_parties")["shared"]}
    (seed, largest) = next(
        (of["bytes_to_aggregator"], of["largest"])
        for of in result("benchmarks/range_proofs")["costs"]
        if of["kind"] == "additive share"
    )
    return {
        PROOFS: [
            *_passing(),
            f"Counts of {largest.bit_length()} bits",
            f"Envelopes add {shared - seed} bytes",
            f"client's message {longer}",
            f"The noise multiplier is {one['noise_multiplier']:g}.",
        ],
    }
