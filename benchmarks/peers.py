"""Public shuffle accountants on the same questions: their ε and time beside our certified interval.

Each peer runs from its own checkout, or its own install, under a directory outside this repository:

    DIR/ml-shuffling-amplification          DIR/PrivacyAmplification
    DIR/amplification-by-shuffling          DIR/numerical-shuffler-experiments
    DIR/Decomposition-Based-Optimal-Bounds-for-Shuffle-DP
    DIR/Shuffled-Model-of-Differential-Privacy-in-Federated-Learning
    DIR/shuffgauss                          DIR/site-packages

where the last is filled by ``pip install --target DIR/site-packages PLD_accounting random-allocation
prv-accountant``. What is missing is skipped, and the results say so. Neighbouring relation: replace-one.

Usage: python benchmarks/peers.py --peers DIR [--slow] [--output FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import peer_adapters as peers
from grid_settings import Setting
from opacus.accountants import PRVAccountant, RDPAccountant
from published_grid import OTHERS, Own, certify
from rich.console import Console
from rich.table import Table

from shuffle_plugins.accounting import Blanket, ShuffleAccountant, ShuffleRound
from shuffle_plugins.mechanisms import blanket
from shuffle_plugins.mechanisms.noise import gaussian_blanket

RESULTS = Path(__file__).parent / "results" / "peers.json"
PATIENCE = 60
"""Seconds of processor time for one answer."""

SIGMA = 1.0
QUICK = 10**4
"""Reports up to which every peer answers in seconds."""

LAWS: dict[str, Callable[[float], Blanket]] = {
    "generic": Blanket.generic,
    "interactive": Blanket.clones,
    "10-RR": lambda e: blanket("k-rr", local_epsilon=e, dim=10),
    "Laplace": OTHERS["Laplace"],
    "Gaussian": lambda _: gaussian_blanket(sigma=SIGMA, radius=0.5),
}
"""What ours is for: any randomizer, the same for all clients or chosen in a round; three by their law."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One question to one peer.

    Attributes:
        peer: whose code.
        method: which of its functions.
        law: the law that ours is for, a key of ``LAWS``.
        setting: the question.
        answer: asks it.
        bound: what the answer is: "upper", "lower", or "unsound", an answer that is no bound.
    """

    peer: str
    method: str
    law: str
    setting: Setting
    answer: peers.Answer
    bound: str = "upper"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A peer's answer and ours.

    Attributes:
        epsilon: theirs; None if there was none.
        problem: why not.
        seconds: processor time of theirs.
        ours: our interval for the same law, computed once from a cold start.
        factor: theirs over our upper bound.
        time_ratio: their time over ours; None where ours is too short to tell.
        below_lower: whether theirs is below what a real instance attains.
    """

    peer: str
    method: str
    law: str
    setting: Setting
    bound: str
    epsilon: float | None
    problem: str
    seconds: float
    ours: Own
    factor: float | None
    time_ratio: float | None
    below_lower: bool


def columns() -> dict[str, Setting]:
    """Single shuffles: ε0, n, δ."""
    values = {
        "a": (0.5, 10**4, 1e-6),
        "b": (1.0, 10**4, 1e-6),
        "c": (2.0, 10**4, 1e-6),
        "d": (4.0, 10**4, 1e-6),
        "e": (1.0, 10**6, 1e-8),
        "f": (2.0, 10**6, 1e-8),
        "g": (4.0, 10**6, 1e-8),
    }
    return {
        label: _setting(label, local_epsilon=e, population=n, delta=delta)
        for label, (e, n, delta) in values.items()
    }


def composed() -> list[Setting]:
    """T rounds: ε0, n, k, T, δ."""
    values = [
        (1.0, 10**4, 10**4, 100, 1e-6),
        (2.0, 10**4, 10**4, 100, 1e-6),
        (4.0, 10**4, 10**4, 100, 1e-6),
        (1.0, 10**6, 10**6, 1_000, 1e-8),
        (4.0, 10**6, 10**6, 1_000, 1e-8),
        (3.0, 10**5, 10**3, 100, 1e-5),
        (3.0, 10**5, 10**3, 1_000, 1e-5),
        (2.0, 10**6, 10**4, 1_000, 1e-8),
        (2.0, 10**6, 10**3, 10**5, 1e-8),
    ]
    return [
        _setting(f"T{i}", local_epsilon=e, population=n, cohort=k, num_steps=steps, delta=delta)
        for i, (e, n, k, steps, delta) in enumerate(values, start=1)
    ]


def gaussian(num_steps: int) -> Setting:
    return _setting(
        f"shuffled Gaussian, T = {num_steps}",
        local_epsilon=gaussian_blanket(sigma=SIGMA, radius=0.5).local_epsilon,
        population=10**4,
        num_steps=num_steps,
        delta=1e-6,
    )


def runs(*, slow: bool) -> Iterator[Run]:
    for setting in columns().values():
        yield from _single(setting, slow=slow)
    for setting in composed():
        yield from _rounds(setting)
    case = columns()["d"]
    for num_steps in (1, 4):
        setting = _setting(
            f"d, T = {num_steps}",
            local_epsilon=case.local_epsilon,
            population=case.population,
            num_steps=num_steps,
            delta=case.delta,
        )
        yield Run(
            peer="DPBayes/numerical-shuffler-experiments",
            method="2022 pair, Fourier accountant",
            law="generic",
            setting=setting,
            answer=peers.fourier_clones,
        )
    for num_steps in (1, 10, 100):
        yield Run(
            peer="spliew/shuffgauss",
            method="shuffled Gaussian, RDP at orders up to 30",
            law="Gaussian",
            setting=gaussian(num_steps),
            answer=partial(peers.shuffled_gaussian_rdp, sigma=SIGMA, largest_order=30),
        )
    yield Run(
        peer="random-allocation",
        method="shuffled Gaussian by approximate-LDP clones",
        law="Gaussian",
        setting=gaussian(1),
        answer=partial(peers.shuffled_gaussian_clones, sigma=SIGMA),
    )
    if not slow:
        return
    case = columns()["b"]
    for law in ("10-RR", "Laplace"):
        near = certify(case, mechanism=law, blanket=LAWS[law](case.local_epsilon)).upper
        yield Run(
            peer="Optimal-amplification-bound",
            method="blanket, FFT (NumPy for CuPy)",
            law=law,
            setting=case,
            answer=partial(peers.blanket_fft, mechanism=law, near=near),
        )


def _single(setting: Setting, *, slow: bool) -> Iterator[Run]:
    apple, balle, wang = (
        "apple/ml-shuffling-amplification",
        "BorjaBalle/amplification-by-shuffling",
        "wangsw/PrivacyAmplification",
    )
    make = partial(Run, setting=setting)
    for bound in ("Hoeffding", "BennettExact"):
        yield make(
            peer=balle,
            method=f"blanket, {bound}",
            law="generic",
            answer=partial(peers.blanket_inequality, bound=bound, mechanism="generic"),
        )
    for law in ("10-RR", "Laplace"):
        yield make(
            peer=balle,
            method="blanket, BennettExact",
            law=law,
            answer=partial(peers.blanket_inequality, bound="BennettExact", mechanism=law),
        )
    if setting.population > QUICK and not slow:
        return
    yield make(peer=apple, method="2021 clones, upper", law="interactive", answer=peers.clones_numerical)
    yield make(
        peer=apple,
        method="2021 clones, lower",
        law="interactive",
        answer=partial(peers.clones_numerical, upper=False),
        bound="lower",
    )
    yield make(peer=wang, method="stronger clones", law="generic", answer=peers.stronger_clones_numerical)
    yield make(
        peer=wang,
        method="variation ratio",
        law="10-RR",
        answer=partial(peers.variation_ratio, mechanism="krr", options=10),
        bound="unsound",
    )
    yield make(
        peer=wang,
        method="variation ratio",
        law="Laplace",
        answer=partial(peers.variation_ratio, mechanism="laplace"),
        bound="unsound",
    )


def _rounds(setting: Setting) -> Iterator[Run]:
    make = partial(Run, law="generic", setting=setting)
    yield make(
        peer="Antonious-Grigis/Shuffled-Model", method="subsampled shuffle RDP", answer=peers.subsampled_rdp
    )
    yield make(peer="dp-accounting", method="our pair, connect the dots, PLD", answer=peers.connected_dots)
    yield make(peer="PLD_accounting", method="our pair, PLD", answer=peers.composed_realization)


def ask(run: Run, directory: Path, own: Own) -> Row:
    epsilon, problem = None, ""
    started = time.process_time()
    try:
        with _patience(PATIENCE), _silence():
            epsilon = run.answer(directory, run.setting)
    except Exception as error:  # a peer that fails on a question is a result
        problem = f"{type(error).__name__}: {error}"[:160].strip()
    seconds = time.process_time() - started
    if epsilon is not None and not math.isfinite(epsilon):
        epsilon, problem = None, f"answered {epsilon}"
    return Row(
        peer=run.peer,
        method=run.method,
        law=run.law,
        setting=run.setting,
        bound=run.bound,
        epsilon=epsilon,
        problem=problem,
        seconds=seconds,
        ours=own,
        factor=None if epsilon is None else epsilon / own.upper,
        time_ratio=seconds / own.seconds if own.seconds > 0 else None,
        below_lower=epsilon is not None and run.bound != "lower" and epsilon < own.lower,
    )


def shortcut(directory: Path) -> dict[str, Any]:
    """The variation ratio's δ for 5-ary response beside what one dataset really gives."""
    setting = _setting("5-RR, n = 12", local_epsilon=2.0, population=12, delta=0.0)
    epsilon = 1.2
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=setting.local_epsilon,
            population=setting.population,
            cohort=setting.cohort,
            mechanism="k-rr",
            blanket=blanket("k-rr", local_epsilon=setting.local_epsilon, dim=5),
            channel_fixed=True,
        )
    )
    ours = accountant.delta(epsilon)
    found = {"local_epsilon": 2.0, "population": 12, "categories": 5, "epsilon": epsilon}
    found |= {"ours": [ours.lower, ours.upper]}
    try:
        theirs = peers.variation_ratio_delta(directory, setting, categories=5, epsilon=epsilon)
    except peers.Unavailable as error:
        return {**found, "problem": str(error)}
    return {**found, "variation_ratio": theirs, "below_lower": theirs < ours.lower}


def composition_times() -> list[dict[str, Any]]:
    """Processor seconds to compose: Opacus's accountants answer for the Poisson-sampled Gaussian."""
    steps, delta, rate = 10**5, 1e-8, 1e-3
    kinds = [1.0 + i / 100 for i in range(100)]

    def opacus(accountant: Any, history: list[tuple[float, float, int]]) -> float:
        accountant.history = history
        return float(accountant.get_epsilon(delta))

    def ours(rounds: list[tuple[float, int]]) -> float:
        accountant = ShuffleAccountant()
        for local_epsilon, num_steps in rounds:
            accountant.step(
                ShuffleRound(local_epsilon=local_epsilon, population=10**6, cohort=1_000, channel_fixed=True),
                num_steps=num_steps,
            )
        return accountant.epsilon(delta).upper

    tasks: dict[str, list[tuple[str, Callable[[], float]]]] = {
        f"{steps} steps of one kind": [
            ("shuffle_plugins", lambda: ours([(2.01, steps)])),
            ("Opacus RDPAccountant", lambda: opacus(RDPAccountant(), [(1.0, rate, steps)])),
            ("Opacus PRVAccountant", lambda: opacus(PRVAccountant(), [(1.0, rate, steps)])),
        ],
        f"{len(kinds)} kinds, 100 steps each": [
            ("shuffle_plugins", lambda: ours([(kind, 100) for kind in kinds])),
            ("Opacus RDPAccountant", lambda: opacus(RDPAccountant(), [(s, rate, 100) for s in kinds])),
            ("Opacus PRVAccountant", lambda: opacus(PRVAccountant(), [(s, rate, 100) for s in kinds])),
        ],
    }
    rows = []
    for task, accountants in tasks.items():
        for name, work in accountants:
            problem = ""
            started = time.process_time()
            try:
                with _patience(PATIENCE), _silence():
                    work()
            except Exception as error:  # as above
                problem = f"{type(error).__name__}: {error}"[:160].strip()
            seconds = time.process_time() - started
            rows.append({"task": task, "accountant": name, "seconds": seconds, "problem": problem})
    return rows


def show(rows: list[Row], console: Console) -> None:
    table = Table(title="theirs and ours, replace-one")
    for column in ("peer", "method", "law", "setting", "theirs", "ours", "factor", "time ratio"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            row.peer.split("/")[-1],
            row.method,
            row.law,
            row.setting.kind,
            row.problem if row.epsilon is None else f"{row.epsilon:.6g}",
            f"[{row.ours.lower:.6g}, {row.ours.upper:.6g}]",
            "" if row.factor is None else f"{row.factor:.5f}" + ("  below" if row.below_lower else ""),
            "" if row.time_ratio is None else f"{row.time_ratio:.2g}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="directory of the checkouts")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--slow", action="store_true", help="also what takes a peer 10 s or more")
    options = parser.parse_args()
    console = Console(width=170)
    certify(_setting("warm-up", local_epsilon=0.7, population=5_000, delta=1e-6))
    found: dict[tuple[str, Setting], Own] = {}
    rows = []
    for run in runs(slow=options.slow):
        key = (run.law, run.setting)
        if key not in found:
            found[key] = certify(
                run.setting,
                mechanism=run.law,
                blanket=None if run.law == "generic" else LAWS[run.law](run.setting.local_epsilon),
            )
        row = ask(run, options.peers, found[key])
        rows.append(row)
        answer = row.problem if row.epsilon is None else f"{row.epsilon:.6g}"
        console.print(
            f"{row.seconds:8.2f} s  {row.setting.kind}: {row.peer}, {row.method}, {row.law}: {answer}"
        )
    show(rows, console)
    times, regression = composition_times(), shortcut(options.peers)
    console.print(times, regression)
    answers = ",\n  ".join(json.dumps(_rounded(asdict(row)), separators=(",", ":")) for row in rows)
    rest = json.dumps(_rounded({"composition_times": times, "variation_ratio_of_5_rr": regression}), indent=1)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(f'{rest[:-2]},\n "answers": [\n  {answers}\n ]\n}}\n')


@contextlib.contextmanager
def _patience(seconds: int) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    previous = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _setting(
    kind: str,
    *,
    local_epsilon: float,
    population: int,
    delta: float,
    cohort: int | None = None,
    num_steps: int = 1,
) -> Setting:
    return Setting(
        kind=kind,
        population=population,
        cohort=population if cohort is None else cohort,
        local_epsilon=local_epsilon,
        num_steps=num_steps,
        delta=delta,
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return value


if __name__ == "__main__":
    main()
