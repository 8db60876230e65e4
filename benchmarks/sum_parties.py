"""What each party of a round does for one client: seconds of its processor, by length of the vector.

Run: python benchmarks/sum_parties.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from shuffle_plugins.secure_aggregation import (
    Expansion,
    ResidueLayout,
    Residues,
    RoundVerifier,
    Sealed,
    SumTerms,
    VerifiedTerms,
    commitment,
    open_seed,
    seal_seed,
    sealed_seed_size,
    share,
    share_with_proof,
)
from shuffle_plugins.shuffler import RoundContext
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, open_reports, seal
from shuffle_plugins.shuffler.keys import SealingKey, ServiceKey, SigningKey, public_key_bytes

RESULTS = Path(__file__).parent / "results" / "sum_parties.json"
SETTINGS = ((13_706, 26), (100_000, 29), (1_000_000, 32), (10_000_000, 35))
"""(counts of a client, bits of each in a share): P_vec's of 10^4, 10^5, 10^6 and 10^7 clients."""

PROVEN = ((6_130, 2**14 - 1), (13_706, 2**14 - 1))
"""(counts of a client, the largest) where they are proven to be in range."""

REPORTS = (100, 16_000)
"""Bytes of reports that are sealed for a mixer and opened by the server after it."""

_Result = TypeVar("_Result")


def timed(action: Callable[[], _Result], *, repeats: int) -> tuple[float, _Result]:
    """(median seconds of the processor, the last result)."""
    seconds, result = [], action()
    for _ in range(repeats):
        start = time.process_time()
        result = action()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def measured(size: int, bits: int) -> dict[str, Any]:
    """Times and sizes of every party for one dimension and one width of counts."""
    layout, repeats = ResidueLayout(size, bits), 31 if size < 1_000_000 else 3
    counts = np.random.default_rng(1).integers(0, 8_192, size)
    key, signing_key, check_seed = ServiceKey.generate(), SigningKey.generate(), secrets.token_bytes(32)
    context = RoundContext(run="benchmark", token=bytes(16), fingerprint=bytes(32))
    terms = SumTerms(context=context, layout=layout, aggregators=(key.public.sealing,))

    sharing, made = timed(
        lambda: share(counts, layout=layout, aggregators=1, check_seed=check_seed), repeats=repeats
    )
    packing, data = timed(made.share.to_bytes, repeats=repeats)
    sealing, envelope = timed(
        lambda: seal_seed(
            made.seeds[0],
            terms=terms,
            share=data,
            aggregator_key=terms.aggregators[0],
            signing_key=signing_key,
        ),
        repeats=repeats,
    )
    total = layout.zero()

    def read_and_add() -> bytes:
        total.add(Residues.from_bytes(data, layout=layout))
        return commitment(data)

    server, committed = timed(read_and_add, repeats=repeats)
    enrolled = frozenset([public_key_bytes(signing_key)])
    sealed = Sealed(committed, envelope)
    opening, (_, seed) = timed(
        lambda: open_seed(sealed, terms=terms, private_key=key.sealing, enrolled=enrolled),
        repeats=max(repeats, 31),
    )
    expansion = Expansion(layout)
    seeds = [seed] * 16
    expanding, _ = timed(lambda: expansion.add(*seeds), repeats=repeats)
    return {
        "size": size,
        "bits": bits,
        "client_share_seconds": sharing + packing,
        "client_seal_seconds": sealing,
        "server_seconds": server,
        "aggregator_open_seconds": opening,
        "aggregator_expand_seconds": expanding / len(seeds),
        "bytes_to_server": len(data),
        "bytes_to_aggregator": len(envelope),
    }


def proven(size: int, largest: int) -> dict[str, Any]:
    """One row of a verified sum. The aggregator's seconds are those of both of its steps."""
    counts = np.random.default_rng(1).integers(0, largest, size, endpoint=True)
    layout = ResidueLayout.of_sum(size=size, largest=largest, clients=4_096)
    context = RoundContext(run="benchmark", token=bytes(16), fingerprint=bytes(32))
    terms = VerifiedTerms(context=context, layout=layout, aggregators=(bytes(32),), largest=largest)
    prio3, server = terms.prio3, RoundVerifier[int](terms)
    sharing, made = timed(lambda: share_with_proof(counts, terms=terms), repeats=15)
    starting, _ = timed(lambda: server.start(0, made.share), repeats=15)
    answering, (_, answer) = timed(
        lambda: terms.started(made.secrets[0], aggregator=1, verify_key=server.verify_key), repeats=15
    )

    def decide() -> bytes:
        server.start(0, made.share)
        return server.decide(0, [answer])

    deciding, message = timed(decide, repeats=15)
    total = prio3.agg_init()
    adding, _ = timed(
        lambda: prio3.agg_update(
            total, prio3.verify_next(terms.kept(made.secrets[0], aggregator=1), message)
        ),
        repeats=15,
    )
    return {
        "size": size,
        "largest": largest,
        "client_share_seconds": sharing,
        "server_seconds": deciding,
        "server_start_seconds": starting,
        "aggregator_verify_seconds": answering,
        "aggregator_add_seconds": adding,
        "bytes_to_server": len(made.share),
        "bytes_to_aggregator": sealed_seed_size(len(made.secrets[0])),
        "bytes_answered": len(answer),
    }


def mixed(report_bytes: int) -> dict[str, Any]:
    """One row of a mixed round: what a client and the server do; ``mixer.py`` is for the mixer."""
    mixer, analyzer, signing_key = ServiceKey.generate(), SealingKey.generate(), SigningKey.generate()
    context = RoundContext(run="benchmark", token=bytes(16), fingerprint=bytes(32))
    report = secrets.token_bytes(report_bytes)
    sealing, envelope = timed(
        lambda: seal(
            report,
            size=report_bytes,
            context=context,
            analyzer_key=public_key_bytes(analyzer),
            mixer_key=mixer.public.sealing,
            signing_key=signing_key,
        ),
        repeats=101,
    )
    opener = EnvelopeOpener(
        context=context,
        private_key=mixer.sealing,
        enrolled=frozenset([public_key_bytes(signing_key)]),
        analyzer_key=public_key_bytes(analyzer),
    )
    inner = opener.open(envelope).inner
    opening, _ = timed(
        lambda: list(open_reports([inner], context=context, analyzer_private_key=analyzer)), repeats=101
    )
    return {
        "report_bytes": report_bytes,
        "client_seal_seconds": sealing,
        "server_open_seconds": opening,
        "bytes_to_mixer": len(envelope),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measured(size, bits) for size, bits in SETTINGS]
    found = {
        "machine": {"python": platform.python_version(), "threads": 1},
        "shared": rows,
        "verified": [proven(size, largest) for size, largest in PROVEN],
        "mixed": [mixed(report_bytes) for report_bytes in REPORTS],
    }
    options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
