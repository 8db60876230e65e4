"""What a shared sum costs: expansion against the keystream alone, a client's share, an aggregator's memory.

Run: python benchmarks/secure_sum.py [--json FILE] [--clients N]. What FILE holds already is not measured
again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import secrets
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import cryptography
import torch

from shuffle_plugins.protocols import VectorSum
from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation import (
    Aggregator,
    Expansion,
    ResidueLayout,
    Sealed,
    SumTerms,
    commitment,
    seal_seed,
    sealed_seed_size,
    share,
)
from shuffle_plugins.shuffler import RoundContext, SpentTokens
from shuffle_plugins.shuffler.keys import (
    ServiceKey,
    SigningKey,
    public_key_bytes,
    read_service_key,
    write_private_key,
)

RESULTS = Path(__file__).parent / "results" / "secure_sum.json"
DIM = 13_706
COHORT = 4_096
LARGEST = 6_400  # ones that a client may have under a label, about as in examples/mnist_vector_sum.py
REPEATS = 31
_ZEROS = bytes(1 << 17)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--clients", type=int, default=100_000, help="of the stream through one aggregator")
    parser.add_argument("--aggregate", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.aggregate:
        aggregate(options.aggregate)
        return
    torch.set_num_threads(1)
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    found["machine"] = {
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "cryptography": cryptography.__version__,
    }
    measured: dict[str, Callable[[], Any]] = {
        "expansion": lambda: [expansion(size, bits) for size in (DIM, 1_000_000) for bits in (8, 16, 26, 40)],
        "client": lambda: [client(aggregators) for aggregators in (1, 2)],
        "aggregator": lambda: [stream(clients) for clients in (1_000, 10_000, options.clients)],
    }
    for name, measure in measured.items():
        if name not in found:
            found[name] = measure()
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        print(name, json.dumps(found[name], indent=1))


def median_seconds(*actions: Callable[[], Any]) -> list[float]:
    """Median seconds of the processor for each action; they take turns, so that all are slowed alike."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(REPEATS):
        for times, action in zip(seconds, actions, strict=True):
            start = time.process_time()
            action()
            times.append(time.process_time() - start)
    return [statistics.median(times) for times in seconds]


def expansion(size: int, bits: int) -> dict[str, Any]:
    """A seed's expansion, added to a sum, beside the same bytes of the keystream in the same pieces."""
    layout = ResidueLayout(size, bits)
    length, seeds = size * layout.dtype.itemsize, [secrets.token_bytes(32) for _ in range(16)]
    total, buffer = Expansion(layout), bytearray(len(_ZEROS) + 64)
    repeats = max(1, (1 << 20) // length)

    def keystream() -> None:
        for _ in range(repeats):
            for seed in seeds:
                cipher = Keystream(seed).encryptor(0)
                for start in range(0, length, len(_ZEROS)):
                    cipher.update_into(_ZEROS[: min(len(_ZEROS), length - start)], buffer)

    def expand_and_add() -> None:
        for _ in range(repeats):
            total.add(*seeds)

    alone, added = median_seconds(keystream, expand_and_add)
    return {
        "size": size,
        "bits": bits,
        "keystream_bytes_per_second": round(repeats * 16 * length / alone),
        "expansion_bytes_per_second": round(repeats * 16 * length / added),
        "share_of_keystream": round(alone / added, 3),
    }


def client(aggregators: int) -> dict[str, Any]:
    """A client's report made and packed as it is, and shared and sealed."""
    protocol = VectorSum(dim=DIM, cohort=COHORT, radius=0.1, levels=400, coins=LARGEST - 800)
    counts = protocol.counts
    layout = ResidueLayout.of_sum(size=counts.size, largest=counts.highest - counts.lowest, clients=COHORT)
    keys = tuple(ServiceKey.generate().public.sealing for _ in range(aggregators))
    context = RoundContext(run="benchmark", token=bytes(16), fingerprint=bytes(32))
    terms = SumTerms(context=context, layout=layout, aggregators=keys)
    signing_key, vector = SigningKey.generate(), torch.full((1, DIM), 0.1 / DIM**0.5)
    sizes = set()

    signing_key.sign(b"")  # loads what is loaded once

    def plain() -> None:
        protocol.randomize(vector).to_bytes()

    def shared() -> None:
        mine = protocol.total(protocol.randomize(vector)).numpy() - counts.lowest
        split = share(mine, layout=layout, aggregators=aggregators, check_seed=bytes(32))
        data = split.share.to_bytes()
        envelopes = [
            seal_seed(seed, terms=terms, share=data, aggregator_key=key, signing_key=signing_key)
            for seed, key in zip(split.seeds, keys, strict=True)
        ]
        sizes.add(len(data) + sum(map(len, envelopes)))

    plain()
    shared()
    without, with_shares = median_seconds(plain, shared)
    [size] = sizes
    return {
        "aggregators": aggregators,
        "coordinates": DIM,
        "largest_count": counts.highest,
        "bits": layout.bits,
        "plain_report_seconds": without,
        "shared_seconds": with_shares,
        "shared_over_plain": round(with_shares / without, 3),
        "plain_report_bytes": protocol.layout.report_bytes,
        "shared_bytes": size,
    }


# -- one aggregator's process ------------------------------------------------------------------------------

_FRAME = struct.Struct(f"<32s{sealed_seed_size()}s")


def stream(clients: int) -> dict[str, Any]:
    """So many clients' envelopes through an aggregator in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, key = Path(name), ServiceKey.generate()
        write_private_key(folder / "key", key)
        SpentTokens.create(folder / "state", public_key=key.public.sealing)
        seeds = (hashlib.sha256(b"%d" % i).digest() for i in range(clients))
        signing_keys = [SigningKey.from_private_bytes(seed) for seed in seeds]
        (folder / "enrolled").write_bytes(b"".join(map(public_key_bytes, signing_keys)))
        command = [sys.executable, __file__, "--aggregate", name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            terms = terms_of(key)
            for signing_key in signing_keys:
                data = secrets.token_bytes(16)  # the digest of a share; the share itself goes to the server
                envelope = seal_seed(
                    secrets.token_bytes(32),
                    terms=terms,
                    share=data,
                    aggregator_key=key.public.sealing,
                    signing_key=signing_key,
                )
                process.stdin.write(_FRAME.pack(commitment(data), envelope))
            process.stdin.close()
            return dict(json.loads(process.stdout.read()))


def terms_of(key: ServiceKey) -> SumTerms:
    context = RoundContext(run="benchmark", token=bytes(16), fingerprint=bytes(32))
    layout = ResidueLayout.of_sum(size=DIM, largest=LARGEST, clients=100_000)
    return SumTerms(context=context, layout=layout, aggregators=(key.public.sealing,))


def aggregate(folder: Path) -> None:
    """The aggregator: takes envelopes from standard input, and says what it took to add their seeds up."""
    key = read_service_key(folder / "key")
    listed = (folder / "enrolled").read_bytes()
    enrolled = frozenset(listed[i : i + 32] for i in range(0, len(listed), 32))
    aggregator = Aggregator(key=key, enrolled=enrolled, minimum=2, state=folder / "state")
    before, started = peak_megabytes(), time.process_time()
    found = aggregator.add_up(received(sys.stdin.buffer), terms=terms_of(key))
    seconds = time.process_time() - started
    print(
        json.dumps(
            {
                "clients": found.added,
                "coordinates": DIM,
                "words": found.added * DIM,
                "processor_seconds": round(seconds, 2),
                "clients_per_second": round(found.added / seconds),
                "peak_megabytes": peak_megabytes(),
                "peak_megabytes_before_the_first_client": before,
                "bytes_received_per_client": _FRAME.size,
                "bytes_of_the_answer": len(found.total.to_bytes()),
            }
        )
    )


def received(source: IO[bytes]) -> Iterator[Sealed]:
    while frame := source.read(_FRAME.size):
        yield Sealed(*_FRAME.unpack(frame))


def peak_megabytes() -> float:
    """The most memory that this process has had, without that of the one that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


if __name__ == "__main__":
    main()
