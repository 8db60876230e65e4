"""``estimate``: private estimates from a file of values, one line for each client.

The command does the work of all clients and of the shuffler, so whoever runs it has everybody's true values.
What it prints is what a deployment would release, and is private if nothing else is shown.
"""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shuffle_plugins import accounting
from shuffle_plugins.cli import commands, output
from shuffle_plugins.cli.commands import choice_option, number_option, option, whole_option
from shuffle_plugins.cli.output import down, up

if TYPE_CHECKING:
    from torch import Tensor

_MOST_ROWS = 40  # of a printed table; --json prints all
_Categories = Annotated[
    str | None,
    option("--categories A,B,…", "All possible values: public, so they must not be taken from the data."),
]
_CategoriesFile = Annotated[Path | None, option("--categories-file FILE", "The same, one on each line.")]


@dataclass(frozen=True, kw_only=True)
class _Values:
    file: Annotated[Path, option("--input FILE", "A client's value on each line; with --column, CSV.")]
    column: Annotated[str | None, option("--column NAME", "Column of a CSV file with a heading line.")] = None
    categories: _Categories = None
    categories_file: _CategoriesFile = None
    other: Annotated[str | None, option("--other NAME", "Category of every value not listed.")] = None

    def read(self) -> tuple[list[str], Tensor]:
        """The public list of categories, and each client's as its position there."""
        if (self.categories is None) == (self.categories_file is None):
            raise typer.BadParameter(
                "give the list of categories with --categories or --categories-file; it is public, so it "
                "must not be taken from the data"
            )
        if self.categories_file is None:
            names = _listed(self.categories or "", "--categories")
        else:
            names = _read_column(self.categories_file)
            if len(set(names)) < len(names):
                raise typer.BadParameter(
                    f"a category stands in {self.categories_file} twice", param_hint="--categories-file"
                )
        if self.other is not None and self.other not in names:
            names.append(self.other)
        if len(names) < 2:
            raise typer.BadParameter(f"at least two categories are needed, got {len(names)}")
        places = {name: place for place, name in enumerate(names)}
        rest = None if self.other is None else places[self.other]
        held = []
        for line, value in enumerate(_read_column(self.file, self.column), start=1):
            if (place := places.get(value, rest)) is None:
                table = "; if the file is CSV, name its column with --column" if "," in value else ""
                raise typer.BadParameter(
                    f"value {line} is {value!r}, which is none of the categories; add it to them, or count "
                    f"such values with --other NAME{table}"
                )
            held.append(place)
        import torch

        return names, torch.tensor(held, dtype=torch.int64)


estimate_command = typer.Typer(
    help="Private estimates from a file of values: frequencies, user-level means, several privacy levels, "
    "recoverable reports. Each run is a release of its own: again on the same values, the same ε once more.",
)


@estimate_command.command("frequencies")
@commands.asks()
def _frequencies(
    *,
    values: _Values,
    target_epsilon: Annotated[float, number_option("--epsilon --target-epsilon EPS", "ε to stay within.")],
    delta: commands.DeltaOption,
    protocol: Annotated[
        str,
        choice_option(
            "--protocol NAME",
            "What clients send",
            {
                "decoy-histogram": "its category, and few decoys; shuffled",
                "laplace-histogram": "counts with a share of Laplace noise; only sums are seen; least error",
                "one-message": "one shuffled report of few bits, private by itself",
                "counted-unary": "a bit for each category, flipped at random; only sums are seen",
                "histogram-sum": "counts with coins; only sums are seen",
            },
        ),
    ] = "laplace-histogram",
    confidence: Annotated[float, number_option("--confidence C", "Of all intervals together.")] = 0.95,
    as_json: commands.JsonOption = False,
) -> None:
    """How many clients hold each category, with error bars; the estimate costs at most ε at δ."""
    names, held = values.read()
    from shuffle_plugins import protocols

    kinds: dict[str, tuple[Any, str]] = {
        "decoy-histogram": (protocols.DecoyHistogram, "categories"),
        "laplace-histogram": (protocols.LaplaceHistogram, "categories"),
        "one-message": (protocols.FrequencyEstimation, "categories"),
        "counted-unary": (protocols.CountedUnary, "length"),
        "histogram-sum": (protocols.HistogramSum, "categories"),
    }
    kind, size = kinds[protocol]
    output.progress("calibrating")
    built: Any = kind.calibrated(**{size: len(names)}, cohort=len(held), epsilon=target_epsilon, delta=delta)
    if protocol == "one-message":
        mechanism, histogram = built.oracle, built.estimate(built.collect(held))
    else:
        mechanism, histogram = built.name, built.randomize_histogram(held)
    local_epsilon = built.local_epsilon
    spent = output.certified(built.round(), delta=delta)
    bars = built.intervals(histogram, confidence=confidence, simultaneous=True)
    columns = {
        "count": histogram.counts,
        "frequency": histogram.frequencies,
        "lower": bars.lower,
        "upper": bars.upper,
        "distribution": histogram.distribution,
    }
    rows: list[dict[str, Any]] = [
        {"category": name} | {key: float(column[i]) for key, column in columns.items()}
        for i, name in enumerate(names)
    ]
    alone = math.isfinite(local_epsilon)
    named = protocol if protocol == mechanism else f"{protocol} ({mechanism})"
    found = {
        "protocol": protocol,
        "mechanism": mechanism,
        "local_epsilon": local_epsilon if alone else None,
        "clients": len(held),
        "delta": delta,
        "lower": spent.lower,
        "upper": spent.upper,
        "neighbouring_relation": spent.neighbouring_relation,
        "confidence": confidence,
        "categories": rows,
    }
    if output.answered(as_json, found, warnings=output.delta_warnings(delta, population=len(held))):
        return
    output.show(
        f"[bold]ε ∈ \\[{down(spent.lower)}, {up(spent.upper)}][/] at δ = {delta:g}, "
        f"{spent.neighbouring_relation}, for {len(held):,} clients by {named}; "
        f"of a report before it is mixed: {f'ε0 = {up(local_epsilon)}' if alone else 'no guarantee'}"
    )
    _show_rows(
        [
            {
                "category": row["category"],
                "count": f"{row['count']:,.0f}",
                "share": f"{row['distribution']:.2%}",
                f"{confidence:.4g} interval of all together": f"{row['lower']:.2%} to {row['upper']:.2%}",
            }
            for row in sorted(rows, key=lambda row: -row["count"])
        ]
    )


@estimate_command.command("quantiles")
@commands.asks()
def _quantiles(
    *,
    file: Annotated[Path, option("--input FILE", "A client's number on each line; with --column, CSV.")],
    lower: Annotated[float, number_option("--lower A", "Public lower end; smaller numbers count as A.")],
    upper: Annotated[float, number_option("--upper B", "Public upper end; larger numbers count as B.")],
    target_epsilon: Annotated[float, number_option("--epsilon --target-epsilon EPS", "ε to stay within.")],
    delta: commands.DeltaOption,
    column: Annotated[
        str | None, option("--column NAME", "Column of a CSV file with a heading line.")
    ] = None,
    at: Annotated[str, option("--at Q,…", "Which, as shares of the clients.")] = "0.1,0.25,0.5,0.75,0.9",
    as_json: commands.JsonOption = False,
) -> None:
    """Quantiles of clients' numbers in a public range; together they cost at most ε at δ.

    Clients add shares of Laplace noise to a tree of histograms, of which only the sum is seen.
    """
    shares = commands.read_list(at, commands.read_number, "--at")
    held = [commands.read_number(value) for value in _read_column(file, column)]
    import torch

    from shuffle_plugins.protocols import LaplaceQuantiles

    output.progress("calibrating")
    built = LaplaceQuantiles.calibrated(
        lower=lower, upper=upper, cohort=len(held), epsilon=target_epsilon, delta=delta
    )
    total = built.share(torch.tensor(held, dtype=torch.float64)[:, None])
    distribution = built.estimate(total, reports=len(held))
    rows = [{"share": share, "quantile": distribution.quantile(share)} for share in shares]
    spent = output.certified(built.round(), delta=delta)
    found = {
        "protocol": built.name,
        "clients": len(held),
        "delta": delta,
        "lower": spent.lower,
        "upper": spent.upper,
        "neighbouring_relation": spent.neighbouring_relation,
        "quantiles": rows,
    }
    if output.answered(as_json, found, warnings=output.delta_warnings(delta, population=len(held))):
        return
    output.show(
        f"[bold]ε ∈ \\[{down(spent.lower)}, {up(spent.upper)}][/] at δ = {delta:g}, "
        f"{spent.neighbouring_relation}, for {len(held):,} clients by {built.name}"
    )
    _show_rows([{"below": f"{row['share']:.4g}", "quantile": f"{row['quantile']:.6g}"} for row in rows])


@estimate_command.command("mean")
def _mean(
    *,
    file: Annotated[Path, option("--input FILE", "CSV with a heading line.")],
    local_epsilon: commands.LocalEpsilonOption,
    radius: commands.RadiusOption,
    sigma: Annotated[
        float,
        number_option("--sigma S", "Standard deviation of a client's samples about their mean, at most."),
    ],
    client: Annotated[str, option("--client NAME", "Column that says whose sample a row is.")],
    columns: Annotated[str, option("--columns A,B,…", "Columns of numbers, the vector's entries.")],
    samples: Annotated[int | None, whole_option("--samples M", "Each client's first M; else all.")] = None,
    delta: Annotated[float, number_option("--delta -d DELTA", "δ of the guarantee after shuffling.")] = 1e-6,
    mechanism: Annotated[str, option("--mechanism NAME", "Randomizer of vectors.")] = "privunit",
    as_json: commands.JsonOption = False,
) -> None:
    """The mean over clients that hold several samples each; ε0 protects all samples of a client together.

    FILE is CSV with one sample in each row. Every client must have the same number of samples.
    """
    import torch

    from shuffle_plugins.mechanisms.user_level import UserLevelMean, estimate_mean

    names = _listed(columns, "--columns")
    data = torch.tensor(_samples(file, client=client, columns=names, samples=samples), dtype=torch.float64)
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
    shuffled = accounting.ShuffleRound(
        local_epsilon=local_epsilon,
        population=clients,
        cohort=clients,
        sampling=accounting.Sampling.FULL,
        channel_fixed=plan.bins == 1,  # the second stage's channel follows from the first's reports
    )
    spent = output.certified(shuffled, delta=delta)
    error = math.sqrt(plan.mean_variance)
    estimated = estimate_mean(data, plan=plan)
    mean = dict(zip(names, estimated.mean.tolist(), strict=True))
    found = {
        "mechanism": mechanism,
        "local_epsilon": estimated.local_epsilon,
        "clients": clients,
        "samples": each,
        "delta": delta,
        "upper": spent.upper,
        "neighbouring_relation": spent.neighbouring_relation,
        "stages": 2 if plan.bins > 1 else 1,
        "noise": error,
        "failure_probability": estimated.failure_probability,
        "mean": mean,
    }
    if output.answered(as_json, found, warnings=output.delta_warnings(delta, population=clients)):
        return
    output.show(
        f"[bold]ε0 = {up(estimated.local_epsilon)}[/] for all {each:,} samples of each of {clients:,} "
        f"clients; after shuffling ε ≤ {up(spent.upper)} at δ = {delta:g}, {spent.neighbouring_relation}"
    )
    _show_rows([{"column": name, "mean": f"{value:.6g}"} for name, value in mean.items()])
    output.remark(
        f"Noise: {error:.3g} (root mean square, of the whole vector), beside what clients differ by "
        f"themselves. With probability {estimated.failure_probability:.2g} at most, some client's mean lies "
        "outside the range that its report can carry, and is clipped."
    )


@estimate_command.command("refine")
@commands.asks()
def _refine(
    *,
    values: _Values,
    levels: Annotated[str, option("--levels EPS,…", "ε0 of each level; everybody may see the smallest one.")],
    as_json: commands.JsonOption = False,
) -> None:
    """Frequencies at several privacy levels, from one public report of each client.

    Everybody can read the report at the smallest ε0; a key unlocks each larger one.
    """
    names, held = values.read()
    ladder = commands.read_list(levels, commands.read_number, "--levels")[::-1]
    from shuffle_plugins.mechanisms.limited_hadamard import MultilevelHadamard

    protocol = MultilevelHadamard(local_epsilons=ladder, dim=len(names))
    made = protocol.randomize(held)
    found: list[dict[str, Any]] = []
    for place, level in enumerate(protocol.levels):
        estimate = level.aggregate(protocol.unlock(made.public, made.keys[:, place])).tolist()
        found.append(
            {
                "local_epsilon": level.local_epsilon,
                "who": "everybody" if place == len(ladder) - 1 else f"key {place + 1}",
                "error": math.sqrt(level.worst_variance / len(held)),
                "frequencies": dict(zip(names, estimate, strict=True)),
            }
        )
    together = {
        "clients": len(held),
        "neighbouring_relation": "replace-one",
        "randomness_bits": protocol.randomness_bits,
        "separate_randomness_bits": protocol.separate_randomness_bits,
        "levels": found,
    }
    if output.answered(as_json, together):
        return
    output.show(
        f"{len(held):,} clients, one report each: {protocol.randomness_bits:.3f} random bits a client, "
        f"{protocol.separate_randomness_bits:.3f} for a report to each level"
    )
    heading = {f"{each['who']}, ε0 = {each['local_epsilon']:g}": each for each in found}
    rows: list[dict[str, Any]] = [
        {"category": name} | {word: f"{each['frequencies'][name]:.2%}" for word, each in heading.items()}
        for name in names
    ]
    errors = {word: f"{each['error']:.2%}" for word, each in heading.items()}
    _show_rows(rows, last={"category": "error (ℓ2)"} | errors)
    output.remark(
        "Reports stay in the clients' order, for the keys: no shuffling, ε0 is the whole guarantee."
    )


def _show_rows(rows: Sequence[dict[str, str]], *, last: dict[str, str] | None = None) -> None:
    shown = [*rows[:_MOST_ROWS], *([] if last is None else [last])]
    output.show(output.table(shown, text={"category": "", "column": ""}))
    if len(rows) > _MOST_ROWS:
        output.remark(f"{len(rows) - _MOST_ROWS:,} more: --json prints all.")


@estimate_command.command("hide")
@commands.asks()
def _hide(
    *,
    values: _Values,
    local_epsilon: commands.LocalEpsilonOption,
    published: Annotated[Path, option("--published OUT", "New file for what anybody may see.")],
    keys: Annotated[Path, option("--keys KEYS", "New file for the keys, which are secret.")],
) -> None:
    """Hide each client's category at ε0, so that its key, and nothing else, gives it back (`recover`)."""
    names, held = values.read()
    from shuffle_plugins.mechanisms.recoverable import RecoverableResponse

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
        f"{len(held):,} categories published at ε0 = {up(local_epsilon)} each; a key holds "
        f"{law.entropy_bits:.3f} bits, {law.saving:.1%} less than the category itself"
    )


@estimate_command.command("recover")
def _recover(
    *,
    published: Annotated[Path, option("--published FILE", "What `hide` published.")],
    keys: Annotated[Path, option("--keys KEYS", "The keys that `hide` wrote.")],
    local_epsilon: commands.LocalEpsilonOption,
    categories: _Categories = None,
    categories_file: _CategoriesFile = None,
) -> None:
    """Print the categories behind what `hide` published, each on a line of its own."""
    import torch

    from shuffle_plugins.mechanisms.recoverable import RecoverableResponse

    shown_values = _Values(file=published, categories=categories, categories_file=categories_file)
    names, shown = shown_values.read()
    made_for, *lines = _read_column(keys)
    if made_for != _made_for(names, local_epsilon):
        raise typer.BadParameter(
            f"the keys in {keys} are for another ε0, for other categories or for another order of them: give "
            "what `hide` was given"
        )
    secret = torch.tensor([commands.read_whole(line) for line in lines])
    response = RecoverableResponse(local_epsilon=local_epsilon, dim=len(names))
    for value in response.recover(shown, secret).tolist():
        output.remark(names[value])


def _made_for(names: Sequence[str], local_epsilon: float) -> str:
    """The first line of a file of keys, which give wrong categories back for other ones or another ε0."""
    return hashlib.sha256("\n".join([repr(local_epsilon), *names]).encode()).hexdigest()


def _listed(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise typer.BadParameter(f"{twice[0]!r} stands there twice", param_hint=option)
    return names


def _read_column(file: Path, column: str | None = None) -> list[str]:
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
    except (UnicodeDecodeError, csv.Error) as error:
        raise typer.BadParameter(f"{file} is not CSV in UTF-8: {error}") from error
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
    """The samples of a CSV file, grouped by client: (clients, samples, columns), as nested lists."""
    if not columns:
        raise typer.BadParameter("name at least one column", param_hint="--columns")
    found: dict[str, list[list[float]]] = {}
    for number, row in enumerate(_read_columns(file, [client, *columns]), start=1):
        try:
            vector = [commands.read_number(cell) for cell in row[1:]]
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
