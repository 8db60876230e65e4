"""A mixer on one core: reports per second and peak memory, by way of an encrypted file.

One process seals envelopes and sends them through a pipe; the other one mixes them as a mix node does, and
gives back every report. The mixer's processor time is counted, so waiting for envelopes costs nothing. With
--later the mixer is the second of a cascade of two: it opens a layer and a ticket for each client.

Run: python benchmarks/mixer.py [--counts 10000 100000] [--report-bytes 16000] [--later] [--folder DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shuffle_plugins.shuffler import BatchRequest, MixedStatement, Mixer, RoundContext, SpentTokens, envelopes
from shuffle_plugins.shuffler.envelopes import EnvelopeOpener, layer_size, seal, ticket_size
from shuffle_plugins.shuffler.keys import (
    SealingKey,
    ServiceKey,
    ServicePublicKey,
    SigningKey,
    public_key_bytes,
)

_CONTEXT = RoundContext(run="benchmark", token=bytes(range(16)), fingerprint=bytes(32))
_ANALYZER = public_key_bytes(SealingKey.from_private_bytes(bytes([7]) * 32))
_OWN_KEY = ServiceKey(
    sealing=SealingKey.from_private_bytes(bytes([8]) * 32),
    signing=SigningKey.from_private_bytes(bytes([9]) * 32),
)
_FIRST_KEY = SealingKey.from_private_bytes(bytes([10]) * 32)
_PIPE_BYTES = 1 << 20
_draw_marks = envelopes.draw_marks


def client_key(number: int) -> SigningKey:
    """The signing key of a client, the same whenever it is asked for."""
    return SigningKey.from_private_bytes(hashlib.sha256(struct.pack("<Q", number)).digest())


def peak_memory() -> float:
    """The most memory that this process has held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def records(source: IO[bytes], *, count: int, size: int) -> Iterator[bytes]:
    """So many records out of a pipe."""
    for _ in range(count):
        yield source.read(size)


def row(*, later: bool) -> tuple[ServicePublicKey, ...]:
    """Public keys of the mixers to which clients seal."""
    first = ServicePublicKey(sealing=public_key_bytes(_FIRST_KEY), verifying=bytes(32))
    return (first, _OWN_KEY.public) if later else (_OWN_KEY.public,)


def without_marks(mixers: int) -> envelopes.Marks:
    """Marks of zero, so that the mixer's process knows their sums."""
    return _draw_marks(mixers, draw=lambda _: 0)


def mix(*, count: int, size: int, later: bool, folder: str) -> dict[str, Any]:
    """The mixer's process: take envelopes from standard input, and give back every report."""
    enrolled = frozenset(public_key_bytes(client_key(number)) for number in range(count))
    with tempfile.TemporaryDirectory(dir=folder) as own:
        state = Path(own) / "rounds"
        SpentTokens.create(state, public_key=_OWN_KEY.public.sealing)
        mixer = Mixer(key=_OWN_KEY, enrolled=enrolled, minimum=2, state=state)
        mixer.spent.spend(_CONTEXT.token)
        first = MixedStatement(request=bytes(32), answered=count, count=count, outputs=bytes(32), masks=(0,))
        request = BatchRequest(
            context=_CONTEXT,
            analyzer_key=_ANALYZER,
            mixers=row(later=later),
            position=int(later),
            minimum=2,
            size=size,
            count=count,
            inputs=bytes(32),
            previous=(first,) if later else (),
        )
        before, begun, opened = peak_memory(), time.process_time(), 0.0

        def items() -> Iterator[bytes]:
            nonlocal opened
            yield from records(sys.stdin.buffer, count=count, size=size)
            opened = time.process_time()

        with open(Path(own) / "outputs", "wb") as outputs:
            said = mixer.mix_spent(items(), outputs, request=request, directory=own)
        done = time.process_time()
    assert said.count == count
    return {
        "opening_seconds": round(opened - begun, 2),
        "giving_back_seconds": round(done - opened, 2),
        "reports_per_second": round(count / (done - begun)),
        "peak_mib": round(peak_memory()),
        "peak_mib_with_enrolled_keys_alone": round(before),
    }


def measured(*, count: int, report_bytes: int, later: bool, folder: str) -> dict[str, Any]:
    """Seal envelopes of so many clients, and have them mixed by a process of its own."""
    keys = [key.sealing for key in row(later=later)]
    place = len(keys) - 1
    layer = layer_size(report_bytes, mixers=len(keys), position=0)
    size = layer_size(report_bytes, mixers=len(keys), position=place)
    size += ticket_size(mixers=len(keys), position=place)
    arguments = ["--mix", str(count), str(size), str(int(later)), folder]
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=_PIPE_BYTES,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(count):
            envelope = seal(
                os.urandom(report_bytes),
                size=report_bytes,
                context=_CONTEXT,
                analyzer_key=_ANALYZER,
                mixer_key=keys,
                signing_key=client_key(number),
            )
            if later:
                key = client_key(number)
                opener = EnvelopeOpener(
                    context=_CONTEXT,
                    analyzer_key=_ANALYZER,
                    private_key=_FIRST_KEY,
                    enrolled=frozenset({public_key_bytes(key)}),
                    mixer_keys=keys,
                )
                envelope = opener.open(envelope[:layer]).inner + envelope[layer:]
            process.stdin.write(envelope)
        process.stdin.close()
        found: dict[str, Any] = json.loads(process.stdout.read())
    return {
        "mixer": "second of two" if later else "single",
        "reports": count,
        "report_bytes": report_bytes,
        "total_mib": round(count * report_bytes / 2**20),
        **found,
        "wall_seconds_with_sealing": round(time.perf_counter() - begun, 1),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--report-bytes", type=int, default=16_000)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for temporary files, on a disk")
    parser.add_argument("--later", action="store_true", help="measure the second mixer of a cascade of two")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mix", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.later:
        vars(envelopes)["draw_marks"] = without_marks
    if options.mix:
        count, size, later = map(int, options.mix[:3])
        found = mix(count=count, size=size, later=bool(later), folder=options.mix[3])
        print(json.dumps(found))
        return
    rows = []
    for count in options.counts:
        rows.append(
            measured(
                count=count,
                report_bytes=options.report_bytes,
                later=options.later,
                folder=options.folder,
            )
        )
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
