"""``shuffle-plugins estimate``: private estimates from a file of values, one line for each client.

The command does the work of all clients and of the shuffler, so whoever runs it has everybody's true values.
What it prints is what a deployment would release, and is private if nothing else is shown. Each run draws new
noise and is a further release: on the same values it costs the same ε once more.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from shuffle_plugins import accounting
from shuffle_plugins.cli import options, output
from shuffle_plugins.cli.tables import plain_table
from shuffle_plugins.core import rounded

if TYPE_CHECKING:
    from torch import Tensor

_MOST_ROWS = 40  # of a printed table; --json prints all
_SEPARATE = (
    "Each run is a release of its own: running it again on the same values costs the same ε once more."
)


class FrequencyProtocol(StrEnum):
    """Protocols that estimate how frequent categories are.

    ``ONE_MESSAGE``: each client sends one randomised report, and reports are shuffled. ``COUNTED_UNARY``:
    each client sends a bit for each category, each bit flipped at random, and only the sum of each bit is
    seen. ``HISTOGRAM_SUM``: each client adds a few fair coins to each category, and only the sums are seen;
    the coins of all clients together are the noise.
    """

    ONE_MESSAGE = "one-message"
    COUNTED_UNARY = "counted-unary"
    HISTOGRAM_SUM = "histogram-sum"


_InputFile = Annotated[
    Path,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Text with one client's value on each line; or, with --column, CSV with a heading line.",
    ),
]
_ColumnOption = Annotated[
    str | None, typer.Option("--column", metavar="NAME", help="Column of a CSV file with a heading line.")
]
_CategoriesOption = Annotated[
    str | None,
    typer.Option(
        "--categories",
        metavar="A,B,…",
        help="All possible values. They are public, so they must not be taken from the data.",
    ),
]
_CategoriesFile = Annotated[
    Path | None,
    typer.Option("--categories-file", metavar="FILE", help="The same, from a file with one on each line."),
]
_OtherOption = Annotated[
    str | None,
    typer.Option("--other", metavar="NAME", help="Category that counts every value not listed."),
]

estimate_command = typer.Typer(
    help="Private estimates from a file of values: frequencies, user-level means, several privacy levels, "
    "recoverable reports. " + _SEPARATE,
)


@estimate_command.command("frequencies")
def _frequencies(
    *,
    file: _InputFile,
    target_epsilon: Annotated[
        float,
        options.number_option("--epsilon", "--target-epsilon", metavar="EPS", help="ε to stay within."),
    ],
    delta: options.DeltaOption,
    column: _ColumnOption = None,
    categories: _CategoriesOption = None,
    categories_file: _CategoriesFile = None,
    other: _OtherOption = None,
    protocol: Annotated[
        FrequencyProtocol,
        typer.Option(
            "--protocol",
            metavar="NAME",
            help="one-message (one shuffled report of few bits), counted-unary (a bit for each category, "
            "flipped at random) or histogram-sum (noise from coins that all clients throw; least error for "
            "large categories).",
        ),
    ] = FrequencyProtocol.ONE_MESSAGE,
    confidence: Annotated[
        float,
        options.number_option(
            "--confidence", metavar="C", help="Probability that all intervals hold together."
        ),
    ] = 0.95,
    as_json: options.JsonOption = False,
) -> None:
    """How many clients hold each category, with error bars; the estimate costs at most ε at δ."""
    names = _category_names(categories, categories_file, other)
    held = _held(_read_column(file, column), names=names, other=other)
    from shuffle_plugins import protocols

    common: dict[str, Any] = {"cohort": len(held), "epsilon": target_epsilon, "delta": delta}
    built: protocols.FrequencyEstimation | protocols.CountedUnary | protocols.HistogramSum
    with output.progress("calibrating", as_json=as_json):
        if protocol is FrequencyProtocol.ONE_MESSAGE:
            built = protocols.FrequencyEstimation.calibrated(categories=len(names), **common)
            mechanism, local_epsilon = built.oracle, built.local_epsilon
        elif protocol is FrequencyProtocol.COUNTED_UNARY:
            built = protocols.CountedUnary.calibrated(length=len(names), **common)
            mechanism, local_epsilon = built.name, built.local_epsilon
        else:
            built = protocols.HistogramSum.calibrated(categories=len(names), **common)
            mechanism, local_epsilon = built.name, math.inf
        accountant = accounting.ShuffleAccountant()
        accountant.step(built.round())
        spent = accountant.epsilon(delta)
    if isinstance(built, protocols.FrequencyEstimation):
        histogram = built.estimate(built.collect(held))
    else:
        histogram = built.randomize_histogram(held)
    bars = built.intervals(histogram, confidence=confidence, simultaneous=True)
    rows = [
        {
            "category": name,
            "count": count,
            "frequency": share,
            "lower": low,
            "upper": high,
            "distribution": law,
        }
        for name, count, share, low, high, law in zip(
            names,
            histogram.counts.tolist(),
            histogram.frequencies.tolist(),
            bars.lower.tolist(),
            bars.upper.tolist(),
            histogram.distribution.tolist(),
            strict=True,
        )
    ]
    output.warn(warnings := output.delta_warnings(delta, population=len(held)))
    if as_json:
        output.print_json(
            {
                "protocol": str(protocol),
                "mechanism": mechanism,
                "local_epsilon": local_epsilon if math.isfinite(local_epsilon) else None,
                "clients": len(held),
                "delta": delta,
                "lower": spent.lower,
                "upper": spent.upper,
                "neighbouring_relation": spent.neighbouring_relation,
                "confidence": confidence,
                "categories": rows,
                "warnings": warnings,
            }
        )
        return
    alone = f"ε0 = {rounded(local_epsilon, up=True)}" if math.isfinite(local_epsilon) else "no guarantee"
    output.show(
        f"[bold]ε ∈ \\[{rounded(spent.lower, up=False)}, {rounded(spent.upper, up=True)}][/] "
        f"at δ = {delta:g}, "
        f"{spent.neighbouring_relation}, for {len(held):,} clients by {protocol} ({mechanism}); "
        f"of a report before it is mixed: {alone}"
    )
    table = plain_table()
    table.add_column("category")
    for heading in ("count", "share", f"{confidence:.4g} interval of all together"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: -row["count"])[:_MOST_ROWS]:
        interval = f"{row['lower']:.2%} to {row['upper']:.2%}"
        table.add_row(escape(row["category"]), f"{row['count']:,.0f}", f"{row['distribution']:.2%}", interval)
    output.show(table)
    _remark_left_out(len(rows))


@estimate_command.command("mean")
def _mean(
    *,
    file: _InputFile,
    local_epsilon: options.LocalEpsilonOption,
    radius: options.RadiusOption,
    sigma: Annotated[
        float,
        options.number_option(
            "--sigma",
            metavar="S",
            help="How far a client's samples scatter about their mean: at most as normal ones of standard "
            "deviation S (sub-Gaussian), in every direction.",
        ),
    ],
    client: Annotated[
        str, typer.Option("--client", metavar="NAME", help="Column that says whose sample a row is.")
    ],
    columns: Annotated[
        str, typer.Option("--columns", metavar="A,B,…", help="Columns of numbers, the vector's entries.")
    ],
    samples: Annotated[
        int | None,
        options.whole_option(
            "--samples",
            metavar="M",
            help="How many samples of each client to use, the first M; all by default.",
        ),
    ] = None,
    delta: Annotated[
        float,
        options.number_option("--delta", "-d", metavar="DELTA", help="δ of the guarantee after shuffling."),
    ] = 1e-6,
    mechanism: Annotated[
        str, typer.Option("--mechanism", metavar="NAME", help="Randomizer of vectors.")
    ] = "privunit",
    as_json: options.JsonOption = False,
) -> None:
    """The mean over clients that hold several samples each; ε0 protects all samples of a client together.

    FILE is CSV with one sample in each row. Every client must have the same number of samples.
    """
    import torch

    from shuffle_plugins.mechanisms import UserLevelMean, estimate_mean

    vectors = _samples(file, client=client, columns=_listed(columns, "--columns"), samples=samples)
    data = torch.tensor(vectors, dtype=torch.float64)
    clients, each, dim = data.shape
    plan = UserLevelMean(
        local_epsilon=local_epsilon,
        dim=dim,
        clients=clients,
        samples=each,
        radius=radius,
        sigma=sigma,
        mechanism=mechanism,
    )
    accountant = accounting.ShuffleAccountant()
    accountant.step(
        accounting.ShuffleRound(
            local_epsilon=local_epsilon,
            population=clients,
            cohort=clients,
            sampling=accounting.Sampling.FULL,
            channel_fixed=plan.bins == 1,  # the second stage's channel follows from the first's reports
        )
    )
    spent = accountant.epsilon(delta)
    error = math.sqrt(plan.mean_variance)
    found = estimate_mean(data, plan=plan)
    mean = dict(zip(_listed(columns, "--columns"), found.mean.tolist(), strict=True))
    output.warn(warnings := output.delta_warnings(delta, population=clients))
    if as_json:
        output.print_json(
            {
                "mechanism": mechanism,
                "local_epsilon": found.local_epsilon,
                "clients": clients,
                "samples": each,
                "delta": delta,
                "upper": spent.upper,
                "neighbouring_relation": spent.neighbouring_relation,
                "stages": 2 if plan.bins > 1 else 1,
                "noise": error,
                "failure_probability": found.failure_probability,
                "mean": mean,
                "warnings": warnings,
            }
        )
        return
    output.show(
        f"[bold]ε0 = {rounded(found.local_epsilon, up=True)}[/] for all {each:,} samples of each of "
        f"{clients:,} clients; after shuffling ε ≤ {rounded(spent.upper, up=True)} at δ = {delta:g}, "
        f"{spent.neighbouring_relation}"
    )
    table = plain_table()
    table.add_column("column")
    table.add_column("mean", justify="right")
    for name, value in list(mean.items())[:_MOST_ROWS]:
        table.add_row(escape(name), f"{value:.6g}")
    output.show(table)
    _remark_left_out(len(mean))
    output.remark(
        f"Noise: {error:.3g} (root mean square, of the whole vector), beside what clients differ by "
        f"themselves. With probability {found.failure_probability:.2g} at most, some client's mean lies "
        "outside the range that its report can carry, and is clipped."
    )


@estimate_command.command("refine")
def _refine(
    *,
    file: _InputFile,
    levels: Annotated[
        str,
        typer.Option(
            "--levels", metavar="EPS,…", help="ε0 of each level; everybody may see the smallest one."
        ),
    ],
    column: _ColumnOption = None,
    categories: _CategoriesOption = None,
    categories_file: _CategoriesFile = None,
    other: _OtherOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Frequencies at several privacy levels, from one public report of each client.

    Everybody can read the report at the smallest ε0; a key unlocks each larger one.
    """
    names = _category_names(categories, categories_file, other)
    held = _held(_read_column(file, column), names=names, other=other)
    ladder = options.read_list(levels, options.read_number, "--levels")[::-1]
    from shuffle_plugins.mechanisms import MultilevelHadamard

    protocol = MultilevelHadamard(local_epsilons=ladder, dim=len(names))
    made = protocol.randomize(held)
    rows: list[dict[str, Any]] = []
    for place, level in enumerate(protocol.levels):
        reports = protocol.unlock(made.public, made.keys[:, place])
        estimate = level.aggregate(reports).tolist()
        rows.append(
            {
                "local_epsilon": level.local_epsilon,
                "who": "everybody" if place == len(ladder) - 1 else f"key {place + 1}",
                "error": math.sqrt(level.worst_variance / len(held)),
                "frequencies": dict(zip(names, estimate, strict=True)),
            }
        )
    facts = {
        "clients": len(held),
        "neighbouring_relation": "replace-one",
        "randomness_bits": protocol.randomness_bits,
        "separate_randomness_bits": protocol.separate_randomness_bits,
        "levels": rows,
    }
    if as_json:
        output.print_json(facts)
        return
    output.show(
        f"{len(held):,} clients, one report each: {protocol.randomness_bits:.3f} random bits a client, "
        f"{protocol.separate_randomness_bits:.3f} for a report to each level"
    )
    table = plain_table()
    table.add_column("category")
    for row in rows:
        table.add_column(f"{row['who']}, ε0 = {row['local_epsilon']:g}", justify="right", no_wrap=True)
    for name in names[:_MOST_ROWS]:
        table.add_row(escape(name), *(f"{row['frequencies'][name]:.2%}" for row in rows))
    table.add_section()
    table.add_row("error (ℓ2)", *(f"{row['error']:.2%}" for row in rows))
    output.show(table)
    _remark_left_out(len(names))
    output.remark(
        "Reports stay in the clients' order, for the keys: no shuffling, ε0 is the whole guarantee."
    )


@estimate_command.command("hide")
def _hide(
    *,
    file: _InputFile,
    local_epsilon: options.LocalEpsilonOption,
    published: Annotated[
        Path, typer.Option("--published", metavar="OUT", help="New file for what anybody may see.")
    ],
    keys: Annotated[
        Path, typer.Option("--keys", metavar="KEYS", help="New file for the keys, which are secret.")
    ],
    column: _ColumnOption = None,
    categories: _CategoriesOption = None,
    categories_file: _CategoriesFile = None,
    other: _OtherOption = None,
) -> None:
    """Hide each client's category at ε0, so that its key, and nothing else, gives it back (`recover`)."""
    names = _category_names(categories, categories_file, other)
    held = _held(_read_column(file, column), names=names, other=other)
    from shuffle_plugins.mechanisms import RecoverableResponse

    if published.absolute() == keys.absolute():
        raise typer.BadParameter("what is published and its keys need a file each")
    for path in (published, keys):
        if path.exists():
            raise FileExistsError(f"{path} exists: a key hides one category once, so nothing is overwritten")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} is no folder: make it first; nothing was written")
    response = RecoverableResponse(local_epsilon=local_epsilon, dim=len(names))
    secret = response.draw_keys(len(held))
    shown = [names[value] for value in response.hide(held, secret).tolist()]
    keys.touch(mode=0o600, exist_ok=False)
    lines = [_made_for(names, local_epsilon), *map(str, secret.tolist())]
    keys.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    published.write_text("".join(f"{name}\n" for name in shown), encoding="utf-8")
    law = response.key_law
    output.show(
        f"{len(held):,} categories published at ε0 = {rounded(local_epsilon, up=True)} each; a key holds "
        f"{law.entropy_bits:.3f} bits, {law.saving:.1%} less than the category itself"
    )


@estimate_command.command("recover")
def _recover(
    *,
    published: Annotated[Path, typer.Option("--published", metavar="FILE", help="What `hide` published.")],
    keys: Annotated[Path, typer.Option("--keys", metavar="KEYS", help="The keys that `hide` wrote.")],
    local_epsilon: options.LocalEpsilonOption,
    categories: _CategoriesOption = None,
    categories_file: _CategoriesFile = None,
) -> None:
    """Print the categories behind what `hide` published, each on a line of its own."""
    import torch

    from shuffle_plugins.mechanisms import RecoverableResponse

    names = _category_names(categories, categories_file, None)
    shown = _held(_read_column(published, None), names=names, other=None)
    made_for, *lines = _read_column(keys, None)
    if made_for != _made_for(names, local_epsilon):
        raise typer.BadParameter(
            f"the keys in {keys} are for another ε0, for other categories or for another order of them: give "
            "what `hide` was given"
        )
    secret = torch.tensor([options.read_whole(line) for line in lines])
    response = RecoverableResponse(local_epsilon=local_epsilon, dim=len(names))
    for value in response.recover(shown, secret).tolist():
        print(names[value])


def _made_for(names: Sequence[str], local_epsilon: float) -> str:
    """The first line of a file of keys, which give wrong categories back for other ones or another ε0."""
    return hashlib.sha256("\n".join([repr(local_epsilon), *names]).encode()).hexdigest()


def _remark_left_out(rows: int) -> None:
    """Say how many rows a printed table has left out, if any."""
    if rows > _MOST_ROWS:
        output.remark(f"{rows - _MOST_ROWS:,} more: --json prints all.")


def _listed(text: str, option: str) -> list[str]:
    """Names separated by commas, in their order. A name that is there twice is an error."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise typer.BadParameter(f"{twice[0]!r} stands there twice", param_hint=option)
    return names


def _category_names(text: str | None, file: Path | None, other: str | None) -> list[str]:
    """The public list of categories, from ``--categories`` or its file, with ``--other``; at least two."""
    if (text is None) == (file is None):
        raise typer.BadParameter(
            "give the list of categories with --categories or --categories-file; it is public, so it must "
            "not be taken from the data"
        )
    if file is None:
        names = _listed(text or "", "--categories")
    else:
        names = _read_column(file, None)
        if len(set(names)) < len(names):
            raise typer.BadParameter(f"a category stands in {file} twice", param_hint="--categories-file")
    if other is not None and other not in names:
        names.append(other)
    if len(names) < 2:
        raise typer.BadParameter(f"at least two categories are needed, got {len(names)}")
    return names


def _held(values: Sequence[str], *, names: Sequence[str], other: str | None) -> Tensor:
    """Each client's category, as its position in ``names``; that of ``other`` for a value not in them."""
    import torch

    places = {name: place for place, name in enumerate(names)}
    rest = None if other is None else places[other]
    found = []
    for line, value in enumerate(values, start=1):
        place = places.get(value, rest)
        if place is None:
            table = "; if the file is CSV, name its column with --column" if "," in value else ""
            raise typer.BadParameter(
                f"value {line} is {value!r}, which is none of the categories; add it to them, or count such "
                f"values with --other NAME{table}"
            )
        found.append(place)
    return torch.tensor(found, dtype=torch.int64)


def _read_column(file: Path, column: str | None) -> list[str]:
    """One column of a CSV file, or the lines of a text file, without spaces at either end."""
    if column is not None:
        return [row[0] for row in _read_columns(file, [column])]
    try:
        # str.splitlines would also end a line at a form feed or at U+2028: one client would count as two
        values = [line.strip() for line in file.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is not text in UTF-8: {error}") from error
    while values and not values[-1]:
        values.pop()
    if not values:
        raise typer.BadParameter(f"{file} holds no values")
    if "" in values:
        raise typer.BadParameter(
            f"line {values.index('') + 1} of {file} is empty; every line is one client's"
        )
    return values


def _read_columns(file: Path, columns: Sequence[str]) -> list[list[str]]:
    """Some columns of a CSV file with a heading line: a list of cells for each row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise typer.BadParameter(
                    f"{file} has no column {missing[0]!r}; its first line names "
                    + (", ".join(reader.fieldnames or ()) or "none")
                )
            rows = [[(row[name] or "").strip() for name in columns] for row in reader]
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is not text in UTF-8: {error}") from error
    except csv.Error as error:
        raise typer.BadParameter(f"{file} is not CSV: {error}") from error
    if not rows:
        raise typer.BadParameter(f"{file} holds no values below its first line")
    for number, row in enumerate(rows, start=1):
        if "" in row:
            raise typer.BadParameter(
                f"row {number} of {file} has nothing in column {columns[row.index('')]!r}"
            )
    return rows


def _samples(
    file: Path, *, client: str, columns: Sequence[str], samples: int | None
) -> list[list[list[float]]]:
    """The samples of a CSV file, grouped by client: (clients, samples, columns), as nested lists.

    Args:
        file: CSV with one sample in each row.
        client: the column that says whose sample a row is.
        columns: the columns of a sample's entries.
        samples: how many samples of each client to use; None for all, which must then be equally many.
    """
    if not columns:
        raise typer.BadParameter("name at least one column", param_hint="--columns")
    found: dict[str, list[list[float]]] = {}
    for number, row in enumerate(_read_columns(file, [client, *columns]), start=1):
        try:
            vector = [options.read_number(cell) for cell in row[1:]]
        except typer.BadParameter as error:
            raise typer.BadParameter(f"row {number} of {file}: {error.message}") from error
        if not all(map(math.isfinite, vector)):
            raise typer.BadParameter(f"row {number} of {file} has a number that is not finite")
        found.setdefault(row[0], []).append(vector)
    counts = sorted(map(len, found.values()))
    needed = counts[0] if samples is None else samples
    if samples is None and counts[0] < counts[-1]:
        raise typer.BadParameter(
            f"clients have {counts[0]:,} to {counts[-1]:,} samples, and all must have as many: --samples M "
            "uses the first M of each"
        )
    if not 1 <= needed <= counts[0]:
        raise typer.BadParameter(
            f"--samples must be from 1 to {counts[0]:,}, what every client has; got {needed:,}"
        )
    return [vectors[:needed] for vectors in found.values()]
