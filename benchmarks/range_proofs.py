"""What a range proof costs: bytes and seconds per client and per aggregator, beside a plain additive share.

Run: python benchmarks/range_proofs.py [--json FILE]. What FILE holds already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import secrets
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.secure_aggregation import Expansion, ResidueLayout, share
from shuffle_plugins.secure_aggregation.prio3 import Prio3, Prio3SumVec, Prio3SumVecWithMultiproof

RESULTS = Path(__file__).parent / "results" / "range_proofs.json"
SETTINGS = ((6_130, 2**14 - 1), (13_706, 2**14 - 1), (100_000, 2**14 - 1))
"""(length of the vector, largest count)."""

CLIENTS = 4_096  # of the sum that a plain share has room for
REPEATS = 15
CONTEXT = b"benchmark"
_Result = TypeVar("_Result")
Counts = NDArray[np.int64]


def timed(action: Callable[[], _Result]) -> tuple[float, _Result]:
    """(median seconds of several calls, the last result)."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        result = action()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), result


def plain(counts: Counts, largest: int) -> dict[str, Any]:
    """An additive share, without a proof."""
    layout = ResidueLayout.of_sum(size=len(counts), largest=largest, clients=CLIENTS)
    seed = secrets.token_bytes(32)
    client, made = timed(lambda: share(counts, layout=layout, aggregators=1, check_seed=seed))
    total, expansion = layout.zero(), Expansion(layout)
    server, _ = timed(lambda: total.add(made.share))
    aggregator, _ = timed(lambda: expansion.add(made.seeds[0]))
    return {
        "client_seconds": client,
        "server_seconds": server,
        "aggregator_seconds": aggregator,
        "bytes_to_server": len(made.share.to_bytes()),
        "bytes_to_aggregator": len(made.seeds[0]),
        "bytes_between": 0,
    }


def proven(prio3: Prio3[Any, Any], counts: Counts) -> dict[str, Any]:
    """A report of Prio3, its verification, and its addition to two sums."""
    key = secrets.token_bytes(32)
    client, report = timed(lambda: prio3.shard(counts, context=CONTEXT))
    sums = [prio3.agg_init() for _ in range(2)]

    def start(aggregator: int) -> Any:
        return prio3.verify_init(
            verify_key=key,
            context=CONTEXT,
            aggregator=aggregator,
            nonce=report.nonce,
            public_share=report.public_share,
            input_share=report.input_shares[aggregator],
        )

    leader, (first, one) = timed(lambda: start(0))
    helper, (second, other) = timed(lambda: start(1))
    decided, message = timed(lambda: prio3.verifier_shares_to_message([one, other], context=CONTEXT))
    states = (first, second)

    def finish(aggregator: int) -> Any:
        return prio3.agg_update(sums[aggregator], prio3.verify_next(states[aggregator], message))

    adding, results = timed(lambda: [finish(aggregator) for aggregator in range(2)])
    encoded = [prio3.encode_agg_share(result) for result in results]
    assert np.array_equal(prio3.unshard(encoded, num_measurements=1), counts)
    return {
        "client_seconds": client,
        "server_seconds": leader + decided + adding / 2,
        "aggregator_seconds": helper + adding / 2,
        "bytes_to_server": len(report.nonce) + len(report.public_share) + len(report.input_shares[0]),
        "bytes_to_aggregator": len(report.nonce) + len(report.public_share) + len(report.input_shares[1]),
        "bytes_between": len(other) + len(message),
    }


def measured(length: int, largest: int, kind: str) -> dict[str, Any]:
    """One row: one way to share vectors of one length."""
    counts = np.random.default_rng(1).integers(0, largest, length, endpoint=True)
    parameters = {"length": length, "max_measurement": largest}
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "additive share": lambda: plain(counts, largest),
        "Prio3SumVec": lambda: proven(Prio3SumVec(**parameters), counts),
        "Prio3SumVecWithMultiproof": lambda: proven(Prio3SumVecWithMultiproof(**parameters), counts),
    }
    ways[kind]()  # compiles
    return {"length": length, "largest": largest, "kind": kind, **ways[kind]()}


def influence() -> list[dict[str, Any]]:
    """How far one client can move the sum of P_vec, in radii of the ball in which an honest client stays."""
    rows = []
    for dim, cohort in ((6_130, 4_096), (13_706, 4_096), (13_706, 100)):
        protocol = VectorSum.with_noise(dim=dim, cohort=cohort, noise_multiplier=4.12)
        width = protocol.counts.highest - protocol.counts.lowest
        rows.append(
            {
                "dim": dim,
                "cohort": cohort,
                "noise_multiplier": 4.12,
                "levels": protocol.levels,
                "coins": protocol.coins,
                "radii_of_one_clients_coins": (dim * protocol.coins) ** 0.5 / 2 / protocol.levels,
                "bits_of_a_count": width.bit_length(),
                "radii_within_the_range": dim**0.5 * width / 2 / protocol.levels,
                "radii_within_all_messages": dim**0.5
                * protocol.messages_per_coordinate
                / 2
                / protocol.levels,
                "radii_of_the_noise": (dim * cohort * protocol.coins) ** 0.5 / 2 / protocol.levels,
                "noise_deviations_per_coordinate_within_the_range": width / (cohort * protocol.coins) ** 0.5,
            }
        )
    return rows


def main() -> None:
    """Measure what is missing, and print and store everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS)
    path = parser.parse_args().json
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"costs": []}
    results["influence"] = influence()
    results["machine"] = {"python": platform.python_version(), "numba": numba.__version__, "threads": 1}
    done = {(row["length"], row["kind"]) for row in results["costs"]}
    for length, largest in SETTINGS:
        for kind in ("additive share", "Prio3SumVec", "Prio3SumVecWithMultiproof"):
            if (length, kind) in done:
                continue
            row = measured(length, largest, kind)
            row["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            results["costs"].append(row)
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
