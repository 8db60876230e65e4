"""What a shared sum costs: expansion against the keystream alone, a client's share, an aggregator's memory;
and what windows of sums cost beside it.

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

from shuffle_plugins.mechanisms import PrivateSum
from shuffle_plugins.protocols import VectorSum, WindowedSum
from shuffle_plugins.randomness import Keystream
from shuffle_plugins.secure_aggregation import (
    Aggregator,
    Expansion,
    ResidueLayout,
    Sealed,
    SumTerms,
    WindowTerms,
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
BAND = 14  # rounds in a window; coefficients fall as the square root of the round's age does
COEFFICIENTS = tuple(max(1, round(8 / (1 + age) ** 0.5)) for age in range(BAND))
_ZEROS = bytes(1 << 17)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--clients", type=int, default=100_000, help="of the stream through one aggregator")
    parser.add_argument("--aggregate", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--window", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dim", type=int, default=DIM, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.aggregate:
        aggregate(options.aggregate, windows=options.window, dim=options.dim, most=options.clients)
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
        "windows": lambda: {
            "band": BAND,
            "coefficients": list(COEFFICIENTS),
            "client": [client_of_windows(aggregators) for aggregators in (1, 2)],
            "aggregator": [
                aggregator_of_windows(clients, dim=dim) for clients, dim in ((COHORT, DIM), (256, 1_000_000))
            ],
        },
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


class Client:
    """What one client does in a round, of a plain sum or of windows."""

    def __init__(self, protocol: PrivateSum, *, aggregators: int) -> None:
        counts = protocol.counts
        assert counts is not None
        self.protocol, self.lowest, self.sizes = protocol, counts.lowest, set[int]()
        self.keys = tuple(ServiceKey.generate().public.sealing for _ in range(aggregators))
        self.signing_key, self.vector = SigningKey.generate(), torch.full((1, DIM), 0.1 / DIM**0.5)
        context = RoundContext(run="benchmark", token=bytes(16), fingerprint=bytes(32))
        if isinstance(protocol, WindowedSum):
            highest = sum(protocol.coefficients) * protocol.data_highest + protocol.coins_highest
            layout = ResidueLayout.of_sum(size=DIM, largest=highest, clients=COHORT, vectors=2)
            window = window_of(0, protocol.coefficients)
        else:
            largest, window = counts.highest - counts.lowest, None
            layout = ResidueLayout.of_sum(size=counts.size, largest=largest, clients=COHORT)
        self.terms = SumTerms(context=context, layout=layout, aggregators=self.keys, window=window)
        self.signing_key.sign(b"")  # loads what is loaded once

    def plain(self) -> None:
        """Make a report and pack it as it is."""
        self.protocol.randomize(self.vector).to_bytes()

    def shared(self) -> None:
        """Make a report, share it and seal its seeds."""
        mine = self.protocol.total(self.protocol.randomize(self.vector)).numpy() - self.lowest
        split = share(mine, layout=self.terms.layout, aggregators=len(self.keys), check_seed=bytes(32))
        data = split.share.to_bytes()
        envelopes = [
            seal_seed(seed, terms=self.terms, share=data, aggregator_key=key, signing_key=self.signing_key)
            for seed, key in zip(split.seeds, self.keys, strict=True)
        ]
        self.sizes.add(len(data) + sum(map(len, envelopes)))


def vector_sum() -> VectorSum:
    return VectorSum(dim=DIM, cohort=COHORT, radius=0.1, levels=400, coins=LARGEST - 800)


def client(aggregators: int) -> dict[str, Any]:
    """A client's report made and packed as it is, and shared and sealed."""
    protocol = vector_sum()
    one = Client(protocol, aggregators=aggregators)
    one.plain()
    one.shared()
    without, with_shares = median_seconds(one.plain, one.shared)
    [size] = one.sizes
    return {
        "aggregators": aggregators,
        "coordinates": DIM,
        "largest_count": protocol.counts.highest,
        "bits": one.terms.layout.bits,
        "plain_report_seconds": without,
        "shared_seconds": with_shares,
        "shared_over_plain": round(with_shares / without, 3),
        "plain_report_bytes": protocol.layout.report_bytes,
        "shared_bytes": size,
    }


def window_of(index: int, coefficients: tuple[int, ...] = COEFFICIENTS) -> WindowTerms:
    return WindowTerms(series=bytes(32), index=index, coefficients=coefficients, fixed=bytes(32))


def client_of_windows(aggregators: int) -> dict[str, Any]:
    """A client's shares of data and coins beside its share of a plain sum of as many coins."""
    plain = Client(vector_sum(), aggregators=aggregators)
    protocol = WindowedSum(
        dim=DIM, cohort=COHORT, radius=0.1, levels=400, coins=LARGEST - 800, coefficients=COEFFICIENTS
    )
    windows = Client(protocol, aggregators=aggregators)
    plain.shared()
    windows.shared()
    of_sum, of_windows = median_seconds(plain.shared, windows.shared)
    [size_of_sum], [size] = plain.sizes, windows.sizes
    return {
        "aggregators": aggregators,
        "bits": windows.terms.layout.bits,
        "bits_of_the_plain_sum": plain.terms.layout.bits,
        "windows_over_plain_shared_seconds": round(of_windows / of_sum, 3),
        "windows_over_plain_shared_bytes": round(size / size_of_sum, 3),
    }


# -- one aggregator's process ------------------------------------------------------------------------------

_FRAME = struct.Struct(f"<32s{sealed_seed_size()}s")


class Round:
    """A round of so many clients: an aggregator's files, and what it gets of each client.

    Of ``windows`` it is the last of a whole band, and the others were opened before. ``most`` is how many
    clients the sum may be of, which says how many bits a number has.
    """

    def __init__(
        self, folder: Path, clients: int, *, most: int = 100_000, windows: bool = False, dim: int = DIM
    ) -> None:
        self.folder, self.windows, self.dim, self.most = folder, windows, dim, most
        self.key = ServiceKey.generate()
        write_private_key(folder / "key", self.key)
        SpentTokens.create(folder / "state", public_key=self.key.public.sealing)
        seeds = (hashlib.sha256(b"%d" % i).digest() for i in range(clients))
        self.signing_keys = [SigningKey.from_private_bytes(seed) for seed in seeds]
        (folder / "enrolled").write_bytes(b"".join(map(public_key_bytes, self.signing_keys)))
        for index in range(BAND - 1 if windows else 0):
            terms = self.terms(index)
            aggregator_in(folder).add_up(self.sent(terms, self.signing_keys[:2]), terms=terms)

    def terms(self, index: int = BAND - 1) -> SumTerms:
        """Terms of the round that opens this window, or of one without windows."""
        return terms_of(
            self.key.public.sealing, index=index if self.windows else None, dim=self.dim, most=self.most
        )

    def sent(self, terms: SumTerms, signing_keys: list[SigningKey]) -> Iterator[Sealed]:
        """What the server passes on, a client at a time."""
        for signing_key in signing_keys:
            data = secrets.token_bytes(16)  # the digest of a share; the share itself goes to the server
            envelope = seal_seed(
                secrets.token_bytes(32),
                terms=terms,
                share=data,
                aggregator_key=self.key.public.sealing,
                signing_key=signing_key,
            )
            yield Sealed(commitment(data), envelope)

    def measured(self) -> dict[str, Any]:
        """The round through an aggregator in a process of its own."""
        command = [
            sys.executable,
            __file__,
            "--aggregate",
            str(self.folder),
            "--dim",
            str(self.dim),
            "--clients",
            str(self.most),
        ]
        command += ["--window"] if self.windows else []
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for each in self.sent(self.terms(), self.signing_keys):
                process.stdin.write(_FRAME.pack(*each))
            process.stdin.close()
            return dict(json.loads(process.stdout.read()))


def stream(clients: int) -> dict[str, Any]:
    """So many clients' envelopes through an aggregator in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        return Round(Path(name), clients).measured()


def aggregator_of_windows(clients: int, *, dim: int) -> dict[str, Any]:
    """The window of a whole band beside a plain sum of as many clients; the fastest of three, in turns."""
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(3):
        for windows, found in runs.items():
            with tempfile.TemporaryDirectory() as name:
                one = Round(Path(name), clients, most=COHORT, windows=windows, dim=dim)
                found.append(one.measured())
                if windows:
                    bits = one.terms().layout.bits
                    kept = (Path(name) / "state.windows").stat().st_size
    plain, windows = (max(each["clients_per_second"] for each in found) for found in runs.values())
    memory = (max(each["peak_megabytes"] for each in found) for found in runs.values())
    return {
        "clients": clients,
        "coordinates": dim,
        "bits": bits,
        "windows_over_plain_throughput": round(windows / plain, 3),
        "windows_clients_per_second": windows,
        "plain_clients_per_second": plain,
        "peak_megabytes_of_plain_sum_and_window": list(memory),
        "bytes_of_kept_sums": kept,
        "bytes_of_a_window": runs[True][0]["bytes_of_the_answer"],
    }


def terms_of(public_key: bytes, *, index: int | None, dim: int, most: int) -> SumTerms:
    token = bytes(16) if index is None else (index + 1).to_bytes(16, "big")
    context = RoundContext(run="benchmark", token=token, fingerprint=bytes(32))
    largest, window, vectors = LARGEST, None, 1
    if index is not None:
        largest, window, vectors = LARGEST * (1 + sum(COEFFICIENTS) // 8), window_of(index), 2
    layout = ResidueLayout.of_sum(size=dim, largest=largest, clients=most, vectors=vectors)
    return SumTerms(context=context, layout=layout, aggregators=(public_key,), window=window)


def aggregator_in(folder: Path) -> Aggregator:
    key, listed = read_service_key(folder / "key"), (folder / "enrolled").read_bytes()
    enrolled = frozenset(listed[i : i + 32] for i in range(0, len(listed), 32))
    return Aggregator(key=key, enrolled=enrolled, minimum=2, state=folder / "state")


def aggregate(folder: Path, *, windows: bool, dim: int, most: int) -> None:
    """The aggregator: takes envelopes from standard input, and says what it took to add their seeds up."""
    aggregator = aggregator_in(folder)
    before, started = peak_megabytes(), time.process_time()
    index = BAND - 1 if windows else None
    terms = terms_of(aggregator.public_key.sealing, index=index, dim=dim, most=most)
    found = aggregator.add_up(received(sys.stdin.buffer), terms=terms)
    seconds = time.process_time() - started
    print(
        json.dumps(
            {
                "clients": found.added,
                "coordinates": dim,
                "words": found.added * dim,
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
