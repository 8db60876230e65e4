"""Is a published bound below ours? How far apart are our upper and lower bounds? A grid of settings answers.

Every valid entry of the catalogue of published bounds is evaluated at every setting, beside the certified
interval for every ε0-LDP randomizer and the intervals of mechanisms whose own law is known. Neighbouring
relation: replace-one.

Usage: python benchmarks/published_grid.py [--output FILE] [--processes 1|2] [--every N] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from grid_report import Report, plot, report
from grid_settings import Cell, Own, Setting, grid
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shuffle_plugins.accounting import Blanket, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.published import PUBLISHED_BOUNDS, compose_points, shuffles
from shuffle_plugins.mechanisms import blanket as registered_blanket
from shuffle_plugins.mechanisms.noise import discrete_laplace_blanket

RESULTS = Path(__file__).parent / "results" / "published_grid.json"
_DIGITS = 9
_COUNTED_EVERY, _OTHERS_EVERY = 4, 16
_MEMORY = 6 << 30  # bytes that a process may ask for; an answer that needs more is none

LawOf = Callable[[float], Blanket]


def own(name: str, dim: int) -> LawOf:
    """The blanket of a registered mechanism, as a function of ε0."""
    return lambda e: registered_blanket(name, local_epsilon=e, dim=dim)


COUNTED: dict[str, LawOf] = {"binary RR": Blanket.bit, "3-RR": own("k-rr", 3), "10-RR": own("k-rr", 10)}
"""Mechanisms whose upper and lower bounds should meet."""

OTHERS: dict[str, LawOf] = {
    "100-RR": own("k-rr", 100),
    "Hadamard response": own("hadamard-response", 64),
    "subset selection, K = 64": own("subset-selection", 64),
    "RAPPOR, K = 64": own("rappor", 64),
    "OUE, K = 64": own("oue", 64),
    "local hashing": own("local-hashing", 64),
    "Laplace": own("laplace", 1),
    "discrete Laplace, 16 steps": lambda e: discrete_laplace_blanket(local_epsilon=e, steps=16),
    "PrivUnit, d = 1000": own("privunit", 1000),
    "linf-coordinate, d = 1000": own("linf-coordinate", 1000),
}

_K_RR_POINTS: dict[str, Callable[[float, int, float], float]] = {
    "Corollary 4.2 of Feldman et al. 2021": lambda e, n, delta: shuffles.k_ary_response_bound(
        local_epsilon=e, categories=10, cohort=n, delta=delta
    ),
    "Bennett, Balle et al. 2019": lambda e, n, delta: shuffles.blanket_bound(
        inequality=shuffles.bennett,
        variable_at=partial(shuffles.k_ary_response_variable, local_epsilon=e, categories=10),
        local_epsilon=e,
        cohort=n,
        delta=delta,
    ),
}
_LAPLACE_POINTS: dict[str, Callable[[float, int, float], float]] = {
    "Bennett, Balle et al. 2019": lambda e, n, delta: shuffles.blanket_bound(
        inequality=shuffles.bennett,
        variable_at=partial(shuffles.laplace_variable, local_epsilon=e),
        local_epsilon=e,
        cohort=n,
        delta=delta,
    ),
}
SPECIFIC = {"10-RR": _K_RR_POINTS, "Laplace": _LAPLACE_POINTS}
"""Published bounds for one mechanism, to be compared with that mechanism's own interval."""


def certify(setting: Setting, *, mechanism: str = "generic", blanket: Blanket | None = None) -> Own:
    started = time.process_time()
    accountant = ShuffleAccountant()
    shuffle_round = ShuffleRound(
        local_epsilon=setting.local_epsilon,
        population=setting.population,
        cohort=setting.cohort,
        mechanism=mechanism,
        blanket=blanket,
        channel_fixed=True,
    )
    accountant.step(shuffle_round, num_steps=setting.num_steps)
    try:
        interval = accountant.epsilon(setting.delta)
    except MemoryError:
        spent = time.process_time() - started
        return Own(
            lower=0.0, upper=math.inf, seconds=spent, upper_bound="out of memory", lower_bound="out of memory"
        )
    return Own(
        lower=interval.lower,
        upper=interval.upper,
        seconds=time.process_time() - started,
        upper_bound=interval.upper_bound,
        lower_bound=interval.lower_bound,
    )


def evaluate(setting: Setting, *, laws: Iterable[str]) -> Cell:
    """Everything there is to say about a setting, with the intervals of the mechanisms named by ``laws``."""
    beginning = time.process_time()
    own = certify(setting)
    published: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    for bound in PUBLISHED_BOUNDS:
        if not bound.valid:
            continue
        started = time.process_time()
        published[bound.name] = _or_none(
            lambda bound=bound: bound.epsilon(
                local_epsilon=setting.local_epsilon,
                population=setting.population,
                cohort=setting.cohort,
                num_steps=setting.num_steps,
                delta=setting.delta,
            )
        )
        seconds[bound.name] = time.process_time() - started
    mechanisms = {
        name: certify(setting, mechanism=name, blanket=(COUNTED | OTHERS)[name](setting.local_epsilon))
        for name in laws
    }
    specific = {
        f"{name}: {title}": _or_none(lambda point=point: _composed(point, setting))
        for name in mechanisms
        for title, point in SPECIFIC.get(name, {}).items()
    }
    return Cell(
        setting=setting,
        own=own,
        published=published,
        seconds=seconds,
        mechanisms=mechanisms,
        specific=specific,
        processor_seconds=time.process_time() - beginning,
    )


def laws_for(place: int) -> tuple[str, ...]:
    """The laws that should be known on both sides at every fourth setting, the others at every 16th."""
    counted = tuple(COUNTED) if place % _COUNTED_EVERY == 0 else ()
    return (*counted, *OTHERS) if place % _OTHERS_EVERY == 0 else counted


def evaluate_at(place: int, setting: Setting) -> Cell:
    return evaluate(setting, laws=laws_for(place))


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def run(settings: list[Setting], *, processes: int, seconds: float, console: Console) -> list[Cell]:
    """Evaluate the settings in turn, until that many seconds of wall time are over."""
    deadline = time.perf_counter() + seconds
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(processes, initializer=limit_memory) as pool,
    ):
        task = progress.add_task("settings", total=len(settings))
        cells = []
        for cell in pool.map(evaluate_at, range(len(settings)), settings):
            cells.append(cell)
            progress.advance(task)
            if time.perf_counter() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)
                break
            if not console.is_terminal:
                console.print(f"{len(cells)}/{len(settings)}: {cell.processor_seconds:.2f} s {cell.setting}")
    return cells


def write(cells: list[Cell], found: Report, path: Path) -> None:
    """The report, and one line for each setting."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps(_rounded(asdict(found)), indent=1)[:-2]
    lines = ",\n  ".join(json.dumps(_rounded(_row(cell)), separators=(",", ":")) for cell in cells)
    path.write_text(f'{head},\n "cells": [\n  {lines}\n ]\n}}\n')


def show(found: Report, console: Console) -> None:
    table = Table(title="published / ours, where the bound applies")
    for column in ("bound", "settings", "least", "median", "most"):
        table.add_column(column, justify="left" if column == "bound" else "right")
    for name, spread in {**found.published, **found.specific}.items():
        table.add_row(
            name,
            str(spread.count),
            *(f"{x:.6g}" for x in (spread.least, spread.median, spread.most)),
        )
    console.print(table)
    table = Table(title="upper / lower")
    for column in ("settings where", "number", "median", "worst"):
        table.add_column(column, justify="left" if column == "settings where" else "right")
    for name, spread in {**found.generic, **found.mechanisms}.items():
        table.add_row(name, str(spread.count), f"{spread.median:.5f}", f"{spread.most:.5f}")
    console.print(table)
    console.print(f"violations: {len(found.violations)}")
    for violation in found.violations:
        console.print(violation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    parser.add_argument("--every", type=int, default=1, help="only every Nth setting")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so much wall time")
    options = parser.parse_args()
    console = Console()
    started = time.perf_counter()
    cells = run(
        grid()[:: options.every], processes=options.processes, seconds=options.seconds, console=console
    )
    found = report(cells, wall_seconds=time.perf_counter() - started, processes=options.processes)
    write(cells, found, options.output)
    plot(cells, options.output.with_suffix(".png"))
    show(found, console)


def _composed(point: Callable[[float, int, float], float], setting: Setting) -> float:
    return compose_points(
        shuffled=lambda delta: point(setting.local_epsilon, setting.cohort, delta),
        local_epsilon=setting.local_epsilon,
        population=setting.population,
        cohort=setting.cohort,
        num_steps=setting.num_steps,
        delta=setting.delta,
    )


def _or_none(bound: Callable[[], float]) -> float | None:
    try:
        return bound()
    except ValueError:
        return None


def _row(cell: Cell) -> dict[str, Any]:
    return {
        **asdict(cell.setting),
        "own": asdict(cell.own),
        "published": cell.published,
        "mechanisms": {name: [own.lower, own.upper, own.seconds] for name, own in cell.mechanisms.items()},
        "specific": cell.specific,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None  # JSON has no infinity
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return value


if __name__ == "__main__":
    main()
