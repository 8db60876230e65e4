"""The commands behind what README and docs claim: run, looked through for what they are to print, and timed.

Usage: python artifact/claims.py [--data-dir DIR] [--only NAME ...]      (DIR has MNIST's IDX files)

Runs in the environment of this interpreter, from the root of the clone, one after the other. What ran
replaces its entry in artifact/times.json; ``python docs/tables.py`` writes the appendix's table from that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMES = ROOT / "artifact" / "times.json"
SHELL = (
    "shuffle-plugins epsilon --population 60000 --cohort 10000 --local-epsilon 1.5 --rounds 1200 --delta 1e-5"
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is claimed on which page, the command, and patterns that its output must have.

    DATA in a command stands for the folder of MNIST, and OUT for a file that nothing else is in.
    """

    name: str
    says: str
    page: str
    command: str
    shows: tuple[str, ...] = ()


CLAIMS = (
    Claim(
        name="main job",
        says="77 to 88 % on digits at ε = 2.43",
        page="README.md#install-and-try",
        command="python examples/opacus_mnist.py",
        shows=(r"2\.428|2\.43", r"[78]\d\.\d%"),
    ),
    Claim(
        name="shell",
        says="ε ∈ [0.384, 0.3845] for any mechanism of ε0 = 1.5",
        page="README.md#in-python-and-in-a-shell",
        command=SHELL,
        shows=(r"\[0\.3841, 0\.3845\]",),
    ),
    Claim(
        name="published run",
        says="ε = 0.323 instead of 3.09, and at least 0.321",
        page="docs/reference/mnist.md",
        command=SHELL + " --mechanism linf-coordinate",
        shows=(r"\[0\.32[12]\d*, 0\.322\d*\]", r"3\.08"),
    ),
    Claim(
        name="bits",
        says="128 bits, with 1.00 times the error of 438,592 bits",
        page="docs/guides/mechanisms.md",
        command="shuffle-plugins mechanisms --dim 13706 --local-epsilon 2 --norm l2",
        shows=(r"privunit-g-seed +l2 +[\d,]+ +1\.00\d +128 ", "438,592"),
    ),
    Claim(
        name="MNIST, sum",
        says="98.2 % on MNIST at ε = 2.93",
        page="docs/reference/mnist.md#two-recipes",
        command="python examples/opacus_mnist.py --data-dir DATA --randomizer vector-sum --results OUT",
        shows=(r"2\.9[23]", r"98\.\d|97\.9"),
    ),
    Claim(
        name="MNIST, reports",
        says="96.6 and 96.8 % on MNIST with one report per client and round",
        page="docs/reference/mnist.md#two-recipes",
        command="python examples/opacus_mnist.py --data-dir DATA --results OUT",
        shows=(r"2\.9[23]", r"96\.\d|97\.0"),
    ),
    Claim(
        name="Flower's accountant",
        says="1.07 to 2.3 times less ε than Flower's own accountant",
        page="docs/guides/flower.md#flowers-own-differential-privacy",
        command='python -m pytest -m "" tests/flwr_shuffle/test_certified_accountant.py',
        shows=(r"100%",),
    ),
    Claim(
        name="Flower's apps",
        says="what is left of the quickstarts' accuracy",
        page="docs/reference/benchmarks.md#flowers-quickstart-apps-flower_quickstartspy",
        command="python examples/flower_quickstarts.py --apps numpy sklearn --results OUT",
    ),
    Claim(
        name="ends",
        says="ends are bounds: brute force, closed forms, other libraries",
        page="docs/proofs/accounting.md#6-checks",
        command="python -m pytest -n 0 tests/accounting/test_high_precision.py tests/accounting/pairs "
        "tests/accounting/composition",
        shows=(r"100%",),
    ),
    Claim(
        name="central rounds",
        says="central rounds beside dp-accounting and Opacus",
        page="docs/reference/benchmarks.md#central-rounds-central_roundspy",
        command="python benchmarks/central_rounds.py --output OUT",
    ),
    Claim(
        name="composition",
        says="both ends, where dp-accounting has one",
        page="docs/reference/benchmarks.md#composition-pld_compositionpy",
        command="python benchmarks/pld_composition.py --output OUT",
    ),
    Claim(
        name="audit",
        says="attacks stay below the certified ε",
        page="docs/reference/benchmarks.md#audits-auditpy",
        command="python examples/audit.py --trials 20000 --mechanisms k-rr privunit --results OUT",
    ),
    Claim(
        name="numbers",
        says="numbers on pages are those of the result files",
        page="docs/reference/reproduction.md",
        command="python -m pytest tests/docs/test_tables.py",
        shows=(r"100%",),
    ),
)


def run(claim: Claim, *, data: Path | None, folder: Path) -> dict[str, object]:
    """Seconds on the clock and of processors, and whether the command did and printed what it is to."""
    words = shlex.split(claim.command.replace("OUT", str(folder / "out.json")).replace("DATA", str(data)))
    there = Path(sys.executable).parent
    words[0] = str(there / words[0])
    variables = os.environ | {"PATH": f"{there}:{os.environ['PATH']}", "COLUMNS": "160", "MPLBACKEND": "Agg"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ran = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    missing = [each for each in claim.shows if not re.search(each, ran.stdout)]
    if ran.returncode or missing:
        print(
            ran.stdout[-3000:],
            ran.stderr[-3000:],
            f"{claim.name}: rc {ran.returncode}, no {missing}",
            sep="\n",
        )
    processor = sum(getattr(after, kind) - getattr(before, kind) for kind in ("ru_utime", "ru_stime"))
    return {
        "held": not ran.returncode and not missing,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor, 1),
    }


def main() -> int:
    """Run the claims; 1 if one did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data-dir", type=Path, help="MNIST's IDX files; without, claims on MNIST are left out"
    )
    parser.add_argument("--only", nargs="*", choices=[claim.name for claim in CLAIMS])
    given = parser.parse_args()
    failed = 0
    for claim in CLAIMS:
        if (given.only and claim.name not in given.only) or ("DATA" in claim.command and not given.data_dir):
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = run(claim, data=given.data_dir, folder=Path(folder))
        print(claim.name, found, flush=True)
        times = (json.loads(TIMES.read_text()) if TIMES.exists() else {}) | {claim.name: found}
        TIMES.write_text(json.dumps(times, indent=1) + "\n")
        failed += not found["held"]
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
