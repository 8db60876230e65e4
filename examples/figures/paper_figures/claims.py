"""One table of what the five sources print and what came out here, from the committed results alone.

To add a row, add a ``number`` or a ``statement`` to its source's list. Both name what is printed and how it
is read, and take a function of the committed results. A row whose results are not there yet says "not run".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from paper_figures import refinement
from paper_figures.bounds import CLONES_SPLIT, Question
from paper_figures.data import rounded
from shuffle_plugins.accounting import SampledRecordsRound, ShuffleAccountant, ShuffleRound, epsilon_from_rdp
from shuffle_plugins.accounting.published import divergences, shuffles, thesis
from shuffle_plugins.bandits import Environment, LinearBandit, NonPrivate
from shuffle_plugins.mechanisms import LimitedHadamard
from shuffle_plugins.protocols import BinarySum
from shuffle_plugins.protocols import published as published_sums

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "reference" / "claims.md"
FIGURES = "examples/figures/results"
_SPLIT_A, _SPLIT_B = "epoch of the clones' 1.4, δ of a shuffle γδ/2T", "epoch of the clones' 3, as before"

CLONES = "Feldman, McMillan, Talwar 2021, “Hiding Among the Clones” (arXiv 2012.12803)"
SUBSAMPLED = (
    "Girgis, Data, Diggavi 2021, “RDP of the Subsampled Shuffle Model” (arXiv 2107.08763 and NeurIPS)"
)
CONVEX = "Cheu, Joseph, Mao, Peng 2022, “Shuffle Private Stochastic Convex Optimization”"
THESIS = "Girgis 2023, “Communication-Efficient and Private Distributed Learning” (thesis, UCLA)"


class Verdict(StrEnum):
    """What came of a claim."""

    YES = "reproduces"
    NO = "does not"
    READING = "under this reading"
    NOT_READING = "not under this reading"
    NOT_RUN = "not run"
    NOTHING = "says nothing"
    BESIDE = "not published, to compare with"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A row of the table."""

    source: str
    place: str
    published: str
    reading: str
    ours: str
    verdict: Verdict


class NotRun(LookupError):
    """A result is not among the committed ones."""


@dataclass(frozen=True, slots=True)
class Results:
    """Committed JSON files, by their path in the repository."""

    root: Path = REPOSITORY
    read: dict[str, Any] = field(default_factory=dict)

    def json(self, path: str) -> Any:
        """One file.

        Raises:
            NotRun: if it is not there.
        """
        if path not in self.read:
            file = self.root / path
            if not file.exists():
                raise NotRun(path)
            self.read[path] = json.loads(file.read_text(encoding="utf-8"))
        return self.read[path]

    def evaluation(self, name: str) -> float:
        """A number of ``EVALUATIONS``."""
        return float(self.json(f"{FIGURES}/evaluations.json")["values"][name])

    def curve(self, figure: str, panel: int, name: str, *, series: str | None = None) -> list[float | None]:
        """Values of a figure's curve."""
        found = self.json(f"{FIGURES}/{figure}.json")["panels"][panel]["curves"]
        (values,) = (c["values"] for c in found if c["name"] == name and c.get("series") == series)
        return list(values)

    def at(self, figure: str, panel: int, name: str, x: float, *, series: str | None = None) -> float:
        """A curve's value at one abscissa of its panel."""
        places = self.json(f"{FIGURES}/{figure}.json")["panels"][panel]["x"]["values"]
        value = self.curve(figure, panel, name, series=series)[places.index(x)]
        if value is None:
            raise NotRun(f"{figure} at {x}")
        return value

    def headline(self, ratio: float, reading: str) -> float:
        """The factor that came out where the paper prints ``ratio``, under one reading."""
        rows = self.json(f"{FIGURES}/headlines.json")["rows"]
        (row,) = (r for r in rows if r["published_ratio"] == ratio and r["reading"] == reading)
        return float(row["reproduced_ratio"])

    def training(self, preset: str, place: int, reading: str | None) -> dict[str, Any]:
        """The epoch of an MNIST run that belongs to the place-th published point under a reading of its ε.

        A reading of ``EVALUATIONS`` is the epoch itself.
        """
        epoch = self.evaluation(reading) if reading in EVALUATIONS else None
        written = self.json(f"examples/results/paper_mnist_{preset}.json")
        if epoch is not None:
            return dict(written["curve"][int(epoch) - 1])
        found = written["beside_the_source"][place]["ours"].get(reading or "last epoch")
        if found is None:
            raise NotRun(f"{preset}, {reading}")
        return dict(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A claim before the results are read: ``ours`` returns the text, and whether it holds or a verdict."""

    source: str
    place: str
    published: str
    ours: Callable[[Results], tuple[str, bool | Verdict]]
    reading: str = ""
    decides: bool = False

    def claim(self, results: Results) -> Claim:
        """The row as the results have it."""
        try:
            text, holds = self.ours(results)
        except NotRun:
            text, verdict = "—", Verdict.NOT_RUN
        else:
            yes, no = (Verdict.READING, Verdict.NOT_READING) if self.decides else (Verdict.YES, Verdict.NO)
            verdict = holds if isinstance(holds, Verdict) else yes if holds else no
        return Claim(
            source=self.source,
            place=self.place,
            published=self.published,
            reading=self.reading,
            ours=text,
            verdict=verdict,
        )


def number(
    source: str,
    place: str,
    what: str,
    published: float,
    ours: Callable[[Results], float],
    *,
    within: float,
    unit: str = "",
    reading: str = "",
    decides: bool = False,
) -> Row:
    """A printed number, which reproduces if ours differs by ``within`` of it at most.

    Args:
        source, place: where it is printed.
        what: what the number is.
        published: the number.
        ours: our number, from the results.
        within: the allowed difference, as a share of ``published``.
        unit: what follows both numbers, such as " %" or "×".
        reading: how the claim is read.
        decides: whether other readings of the same claim are plausible, each with a row of its own.
    """

    def both(results: Results) -> tuple[str, bool]:
        value = ours(results)
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
        return f"{text}{unit}", abs(value - published) <= within * abs(published)

    return Row(
        source=source,
        place=place,
        published=f"{what}: {published:,.10g}{unit}",
        ours=both,
        reading=reading,
        decides=decides,
    )


def statement(
    source: str,
    place: str,
    published: str,
    ours: Callable[[Results], tuple[str, bool | Verdict]],
    *,
    reading: str = "",
    decides: bool = False,
) -> Row:
    """A claim in words; ``ours`` says what came out, and whether the claim holds."""
    return Row(source=source, place=place, published=published, ours=ours, reading=reading, decides=decides)


# -- numbers that stand in no figure ------------------------------------------------------------------------


def _constant_144(delta: float) -> float:
    """ε for the target 1 of Theorem 3.3.2: RDP 48αv²/(sn) with v² = sn/(144·log(1/δ))."""
    orders = 1 + np.geomspace(1e-3, 1e5, 4000)
    return epsilon_from_rdp(orders=orders, rdp=orders / (3 * math.log(1 / delta)), delta=delta)[0]


def _noisy_pass_ratio(records: int, noise_multiplier: float) -> float:
    """Sampling with replacement over random order, at one noise and δ = 1e-6."""
    asked = {"records": records, "noise_multiplier": noise_multiplier, "delta": 1e-6}
    return shuffles.noisy_sgd_with_replacement(**asked) / shuffles.noisy_sgd_pass(**asked)


def _closed_over_certified(local_epsilon: float, cohort: int) -> float:
    """Theorem 3.1 over the certified ε of one shuffle, δ = 1e-6."""
    accountant = ShuffleAccountant()
    accountant.step(
        ShuffleRound(
            local_epsilon=local_epsilon, population=cohort, cohort=cohort, sampling="full", channel_fixed=True
        )
    )
    closed = shuffles.clone_bound(local_epsilon=local_epsilon, cohort=cohort, delta=1e-6)
    return closed / accountant.epsilon(1e-6).upper


def _corollary_ratio() -> float:
    """Corollary 5.3.1 over 5.3.2 at ε0 = 1, over 4·e^ε0."""
    asked = {"orders": [2.0], "local_epsilon": 1.0, "cohort": 10**6}
    upper, lower = (
        float(f(**asked)[0])
        for f in (divergences.shuffle_rdp_corollary, divergences.simple_shuffle_rdp_lower_bound)
    )
    return upper / lower / (4 * math.e)


def _limited_over_lower_bound() -> float:
    """n times the error of limited randomness, over Theorem 7.3.1's lower bound, at ε0 = 1, R = 0.0114."""
    mechanism = LimitedHadamard(local_epsilon=1.0, dim=1000, randomness_bits=0.0114)
    q = mechanism.answer_probability
    return mechanism.worst_variance / (1000 * math.e / (16 * q**2 * (math.e - 1) ** 2))


def _table_3_1_ratio() -> float:
    """Bits of secure aggregation over those of bit planes at n = 1000, ε = 1, d = 10⁸, over n."""
    orders = thesis.communication_orders(epsilon=1.0, dim=10**8, cohort=1000)
    return orders["secure aggregation"] / orders["bit planes"] / 1000


def _constant_144_certified() -> float:
    """Certified ε over the target of Theorem 3.3.2, the largest of nine settings."""
    largest = 0.0
    for cohort in (10**3, 10**4, 10**6):
        for epsilon, delta in ((0.1, 1e-5), (1.0, 1e-8), (5.0, 1e-6)):
            asked = {"cohort": cohort, "epsilon": epsilon, "delta": delta}
            budget = published_sums.multi_message_budget(samples=10, **asked)
            accountant = ShuffleAccountant()
            accountant.step(BinarySum(dim=10, cohort=cohort, budget=budget, samples=10).round())
            largest = max(largest, accountant.epsilon(delta, lower=False).upper / epsilon)
    return largest


def _sampled_over_certified() -> float:
    """Lemma 4.3.1 over the certified ε of a round of k = 10⁴ of 2·10⁴ clients, 2 of 10 records each."""
    asked = {"local_epsilon": 0.5, "population": 20_000, "cohort": 10_000}
    accountant = ShuffleAccountant()
    accountant.step(SampledRecordsRound(**asked, records_per_client=10, samples_per_client=2))
    lemma = thesis.sampled_records_bound(**asked, records=10, samples=2, num_steps=1, delta=1e-6)
    return lemma / accountant.epsilon(1e-6).upper


def _last_epoch_of_split(epsilon: float, **setting: int | float) -> float:
    """The last epoch by which the clones' ε, with δ of each shuffle γδ/2T, keeps to ``epsilon``."""
    per_epoch = int(setting["population"]) // int(setting["cohort"])
    return float(
        sum(
            CLONES_SPLIT.epsilon(Question(**setting, num_steps=epoch * per_epoch, delta=1e-5)) <= epsilon
            for epoch in range(1, 101)
        )
    )


def _every_action_in_every_batch() -> float:
    """Mean regret at T = 10⁷ if all 1,000 actions are played alike in all batches but the last."""
    regrets = []
    for seed in range(20):
        problem = Environment.random(actions=1000, dim=2, seed=seed)
        bandit = LinearBandit(actions=problem.actions, horizon=10**7, privacy=NonPrivate(), core_set=False)
        learning = sum(batch.size for batch in bandit.plan())
        means = problem.actions @ problem.parameter
        regrets.append(learning * float(means.max() - means.mean()))
    return float(np.mean(regrets))


EVALUATIONS: dict[str, Callable[[], float]] = {
    "constant 144 at δ = 1e-5": lambda: _constant_144(1e-5),
    "constant 144 at δ = 1e-8": lambda: _constant_144(1e-8),
    "with over without replacement, n = 1e6, noise 3": lambda: _noisy_pass_ratio(10**6, 3.0),
    "with over without replacement, n = 1e7, noise 1.6": lambda: _noisy_pass_ratio(10**7, 1.6),
    "Theorem 3.1 over certified, ε0 = 1, n = 1e5": lambda: _closed_over_certified(1.0, 10**5),
    "Corollaries 5.3.1 over 5.3.2 over 4e^ε0": _corollary_ratio,
    "error over the lower bound of Theorem 7.3.1": _limited_over_lower_bound,
    "Table 3.1, secure aggregation over bit planes over n": _table_3_1_ratio,
    "Theorem 3.3.2, certified over target": _constant_144_certified,
    "Lemma 4.3.1 over certified": _sampled_over_certified,
    _SPLIT_A: lambda: _last_epoch_of_split(1.4, local_epsilon=1.5, population=60_000, cohort=10_000),
    _SPLIT_B: lambda: _last_epoch_of_split(3.0, local_epsilon=2.0, population=60_000, cohort=2_000),
    "regret of every action in every batch": _every_action_in_every_batch,
}


def save_evaluations(path: Path) -> None:
    """Write the numbers of ``EVALUATIONS``, six significant digits each."""
    values = {name: rounded(compute()) for name, compute in EVALUATIONS.items()}
    path.write_text(json.dumps({"values": values}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# -- the rows -----------------------------------------------------------------------------------------------


def _ratio(text: str, value: float, holds: bool) -> tuple[str, bool]:
    return f"{text} {value:.3g}", holds


def _below(results: Results, figure: str, panels: int, smaller: str, larger: str) -> tuple[int, int]:
    """At how many of the points that both curves have the first lies below, in the first panels."""
    pairs = [
        (a, b)
        for panel in range(panels)
        for a, b in zip(
            results.curve(figure, panel, smaller), results.curve(figure, panel, larger), strict=True
        )
        if a is not None and b is not None
    ]
    return sum(a <= b * (1 + 1e-9) for a, b in pairs), len(pairs)


def _ordered(figure: str, panels: int, smaller: str, larger: str) -> Callable[[Results], tuple[str, bool]]:
    def ours(results: Results) -> tuple[str, bool]:
        below, points = _below(results, figure, panels, smaller, larger)
        return f"at {below} of {points} points", below == points

    return ours


def _rate(title: str, theorem: str) -> Row:
    def ours(results: Results) -> tuple[str, bool]:
        rates = results.json("benchmarks/results/optimizers.json")["rates"]
        (rate,) = (r for r in rates if r["title"] == title)
        close = abs(rate["slope"] - rate["expected"]) <= 0.06
        return f"measured slope in n: {rate['slope']:.3f} (expected {rate['expected']:.3g})", close

    simulated = "exact gradients and normal noise of the deviation that the certified sum adds: simulated"
    return statement(CONVEX, f"Table 1, Thm {theorem}", f"rate of {title}", ours, reading=simulated)


_ALONE = {"method": "local", "accounting": "none", "epsilon": None, "rounds": 60}
"""Training alone, for 60 rounds of 10 steps, as many as the others have."""


def _personal(
    what: str, method: str, accounting: str, budget: float | None, published: float | None, reading: str
) -> Row:
    """A cell of Table 4.2; without a published number, what belongs beside it."""

    def ours(results: Results) -> tuple[str, bool | Verdict]:
        written = results.json("examples/results/adaped_mnist.json")
        wanted: dict[str, Any] = {"method": method, "accounting": accounting, "epsilon": budget}
        if method == "local":
            wanted = _ALONE

        def of(runs: dict[str, dict[str, Any]], wanted: dict[str, Any]) -> list[float]:
            return [100 * run["accuracy"] for run in runs.values() if wanted.items() <= run.items()]

        found, tuned = of(written["runs"], wanted), of(written.get("tuning", {}).get("runs", {}), wanted)
        if not found and not tuned:
            raise NotRun(method)
        mean = sum(found) / len(found) if found else max(tuned)
        text = f"{mean:.1f} % ({len(found)} run{'s' * (len(found) > 1)})"
        if published is None:
            return text, Verdict.BESIDE
        if not found:
            return f"{mean:.1f} % (one seed, the best settings by accuracy on its test data)", Verdict.NOTHING
        alone = of({k: run for k, run in written["runs"].items() if run["method"] == "local"}, _ALONE)
        if alone and abs(alone[0] - published) <= 3:
            return f"{text}; training alone: {alone[0]:.1f} %", Verdict.NOTHING
        return text, abs(mean - published) <= 3

    return statement(
        THESIS,
        "Table 4.2",
        what if published is None else f"{what} at ε = {budget:g}: {published:g} %",
        ours,
        reading=reading,
        decides=published is not None,
    )


def _table_4_2() -> list[Row]:
    printed = "ε as the printed formula claims, which is no bound"
    certified = "ε certified; a round's update clipped once"
    local = _personal(
        "no such row: training alone, ε = 0", "local", "none", None, None, "the missing baseline"
    )
    return [
        *(
            _personal(f"accuracy of {name}", method, accounting, budget, published, reading)
            for name, method, values in (
                ("DP-FedAvg", "fedavg", (11.73, 29.91, 55.79)),
                ("DP-AdaPeD", "adaped", (93.32, 98.51, 99.01)),
            )
            for budget, published in zip((3.35, 13.16, 27.3), values, strict=True)
            for accounting, reading in (("printed", printed), ("certified", certified))
        ),
        local,
    ]


_PUBLISHED_RUNS = {"fig5a": 10, "fig5b": 4, "fig4.2": 10}


def _accuracy(
    source: str,
    place: str,
    preset: str,
    point: int,
    epsilon: float,
    accuracy: float,
    deviation: float,
    reading: tuple[str, str],
    *,
    decides: bool = False,
) -> Row:
    key, called = reading

    def ours(results: Results) -> tuple[str, bool | Verdict]:
        found = results.training(preset, point, key)
        mean, spread = 100 * found["accuracy"], 100 * (found.get("deviation") or 0.0)
        runs = len(results.json(f"examples/results/paper_mnist_{preset}.json")["runs"])
        text = f"{mean:.1f} ± {spread:.1f} % ({runs} runs), epoch {found['epoch']}"
        error = math.sqrt(deviation**2 / _PUBLISHED_RUNS[preset] + spread**2 / runs)
        reached = found.get(f"epsilon_{key}", epsilon)
        if reached < 0.95 * epsilon:  # more training would not make it less accurate
            text = f"never reached: {text}, the last, has ε = {reached:.3g}"
            return text, False if mean - accuracy > 2 * error else Verdict.NOTHING
        return text, abs(mean - accuracy) <= 2 * error

    return statement(
        source,
        place,
        f"accuracy at ε = {epsilon:g}: {accuracy:g} ± {deviation:g} %",
        ours,
        reading=called,
        decides=decides,
    )


def _bits_saved(results: Results) -> float:
    settings = results.json("examples/results/paper_mnist_fig5a.json")["settings"]
    return 32 * int(settings["parameters"]) / 15


def _planes_against(panel: int, planes: str, baseline: str) -> Callable[[Results], tuple[str, bool]]:
    def ours(results: Results) -> tuple[str, bool]:
        targets = results.json(f"{FIGURES}/thesis-3.2.json")["panels"][panel]["x"]["values"]
        pairs = zip(
            targets,
            results.curve("thesis-3.2", panel, planes),
            results.curve("thesis-3.2", panel, baseline),
            strict=True,
        )
        rows = [(x, a, b) for x, a, b in pairs if a is not None and b is not None]
        won = [x for x, a, b in rows if a < b]
        _, first, first_other = rows[0]
        _, last, last_other = rows[-1]
        ends = f"{first:.3g} against {first_other:.3g} … {last:.3g} against {last_other:.3g}"
        where = "at all ε" if len(won) == len(rows) else f"from ε = {won[0]:g} on" if won else "nowhere"
        return f"{where}: {ends}", len(won) == len(rows)

    return ours


_SPLITS = {
    "clones, numerical": "numerical clones, strong composition (KOV)",
    "clones, numerical, simple strong composition": "numerical clones, simple strong composition",
    "the same, δ of a shuffle γδ/2T instead of δ/2γT": "as before, δ of each shuffle γδ/2T",
}
_FMT = ("clones_numerical", "the clones' ε: numerical, strong composition")
_THM_1 = ("published", "ε by Theorem 1")
_AS_PRINTED = "the clones' ε: numerical, simple strong composition, δ of each shuffle γδ/2T"


def _last(results: Results, figure: str, panel: int, name: str) -> float:
    place = results.json(f"{FIGURES}/{figure}.json")["panels"][panel]["x"]["values"][-1]
    return results.at(figure, panel, name, place)


def _savings(figure: str) -> Callable[[Results], tuple[str, bool]]:
    def ours(results: Results) -> tuple[str, bool]:
        theirs, published = "clones, closed form (ε0 where silent)", "subsampled shuffle RDP, Thm 1"
        found = []
        for panel in range(3):
            found.append(_last(results, figure, panel, theirs) / _last(results, figure, panel, published))
        return " and ".join(f"{ratio:.3g}×" for ratio in found), min(found) >= 2

    return ours


def _clones_rows() -> list[Row]:
    loud, quiet = (
        "with over without replacement, n = 1e7, noise 1.6",
        "with over without replacement, n = 1e6, noise 3",
    )
    yardstick = "Theorem 3.1 over certified, ε0 = 1, n = 1e5"
    return [
        statement(
            CLONES,
            "Thm 3.1",
            "a closed form bounds ε of one shuffle",
            lambda r: _ratio(
                "over the certified ε at ε0 = 1, n = 10⁵:",
                r.evaluation(yardstick),
                r.evaluation(yardstick) >= 1,
            ),
        ),
        statement(
            CLONES,
            "Fig. 2",
            "numerical clones below the closed form",
            _ordered("clones-2", 2, "clones, numerical", "clones, closed form"),
        ),
        statement(
            CLONES,
            "Fig. 2",
            "numerical clones below Balle et al. 2019 (Bennett, generic)",
            _ordered("clones-2", 2, "clones, numerical", "privacy blanket, Bennett"),
        ),
        statement(
            CLONES,
            "Fig. 2",
            "numerical clones below Balle et al. 2020",
            _ordered("clones-2", 2, "clones, numerical", "random check-ins, shuffling"),
        ),
        statement(
            CLONES,
            "Fig. 2",
            "closed form of Cheu et al. 2019 above the exact binary response",
            _ordered("clones-2", 2, "binary response, exact", "binary response, closed form"),
            reading="Thm 4.11 as cited; that paper was not read",
        ),
        statement(
            CLONES,
            "Fig. 3(a)",
            "clones' Rényi divergence below Girgis et al. 2021",
            _ordered("clones-3", 1, "clones, RDP", "shuffle RDP, best c"),
            reading="best split of Theorem 5.3.1; parameters chosen here",
        ),
        statement(
            CLONES,
            "Prop. 5.3",
            "random order beats sampling with replacement for large ε0",
            lambda r: (
                "at one noise and δ: "
                f"{r.evaluation(quiet):.2f}× at n = 10⁶, noise 3; "
                f"{r.evaluation(loud):.2f}× at n = 10⁷, noise 1.6",
                r.evaluation(loud) > 1,
            ),
            reading="δ0 of a step must be far below δ/n, more than is gained unless noise is little",
        ),
        statement(
            CLONES,
            "Thm 5.2",
            "error of frequencies of the central order",
            _of_central_order,
        ),
    ]


def _of_central_order(results: Results) -> tuple[str, bool]:
    growth = results.json("benchmarks/results/frequencies.json")["growth"]
    above = [row["theorem"] / row["one_message"] for row in growth]
    over = [row["one_message"] / row["central_gaussian"] for row in growth]
    text = (
        f"theorem with constants over measured: at least {min(above):.3g}; measured over the trusted "
        f"Gaussian: {over[0]:.2g} at n = 10⁴, {over[-1]:.2g} at 10⁶"
    )
    return text, min(above) >= 1 and over[-1] <= 2 * over[0]


def _subsampled_rows() -> list[Row]:
    rows = [
        number(
            SUBSAMPLED,
            "Fig. 2(a), abstract",
            "saving over the clones' ε",
            14,
            lambda r, reading=reading: r.headline(14, reading),
            within=0.05,
            unit="×",
            reading=reading,
            decides=True,
        )
        for reading in ("clones closed form, silent at k = 1000: no shuffling", "clones numerically")
    ]
    rows += [
        number(
            SUBSAMPLED,
            "NeurIPS Fig. 2",
            "saving over shuffle RDP with sampling",
            2.5,
            lambda r, reading=reading: r.headline(2.5, reading),
            within=0.05,
            unit="×",
            reading=reading,
            decides=True,
        )
        for reading in ("c = 1/2, sampling theorem in full", "c = 1/2, sharper sampling branch left out")
    ]
    for place, preset, points in (
        ("Fig. 5(a)", "fig5a", ((1.4, 80, 1.8, _THM_1), (2.91, 90, 0.5, _THM_1), (1.4, 70.7, 2.1, _FMT))),
        ("Fig. 5(b)", "fig5b", ((3, 81.15, 0.7, _THM_1), (5.8, 89.7, 0.5, _THM_1), (3, 76.46, 1.9, _FMT))),
    ):
        rows += [
            _accuracy(SUBSAMPLED, place, preset, index, *published, decides=published[3] is _FMT)
            for index, published in enumerate(points)
        ]
        split = (_SPLIT_A if preset == "fig5a" else _SPLIT_B, _AS_PRINTED)
        rows.append(_accuracy(SUBSAMPLED, place, preset, 2, *points[2][:3], split, decides=True))
    rows += [
        statement(
            SUBSAMPLED,
            f"Fig. {figure}",
            "a significant saving over the clones with strong composition",
            _savings(f"subsampled-{figure}"),
            reading="clones closed form, ε0 where silent; significant: by 2 or more at each panel's end",
        )
        for figure in (3, 4)
    ]
    for place, panel, published in (("Fig. 5(a)", 1, 4.82), ("Fig. 5(b)", 2, 18.3)):
        rows += [
            number(
                SUBSAMPLED,
                place,
                "the clones' ε of the whole training",
                published,
                lambda r, panel=panel, name=name: r.at("subsampled-5", panel, name, 200.0),
                within=0.05,
                reading=f"{called}, 200 epochs",
                decides=True,
            )
            for name, called in _SPLITS.items()
        ]
    rows += [
        number(
            SUBSAMPLED,
            "Fig. 5(a)",
            "bits saved a client",
            28096,
            _bits_saved,
            within=0.05,
            unit="×",
            reading="32·13,706/15; the printed 13,170 parameters look like exchanged digits",
        ),
        statement(
            SUBSAMPLED,
            "section 4",
            "accuracy without privacy: 99 %",
            lambda r: (
                f"{100 * r.training('non-private', 0, None)['accuracy']:.1f} %",
                abs(100 * r.training("non-private", 0, None)["accuracy"] - 99) <= 0.5,
            ),
        ),
    ]
    return rows


def _thesis_rows() -> list[Row]:
    rows = [
        statement(
            THESIS,
            "Thm 3.3.2",
            "v² = sn·min(ε², ε)/(144·log(1/δ)) meets ε",
            lambda r: _ratio(
                "certified ε over the target, at most:",
                r.evaluation("Theorem 3.3.2, certified over target"),
                r.evaluation("Theorem 3.3.2, certified over target") <= 1,
            ),
            reading="nine settings, n = 10³ to 10⁶, ε = 0.1 to 5, s = d = 10",
        ),
        statement(
            THESIS,
            "Lemma 2.1.5, proof of Thm 3.3.2",
            "as before, by the printed proof",
            lambda r: (
                f"ε = {r.evaluation('constant 144 at δ = 1e-5'):.3f} for a target of 1 at δ = 1e-5, "
                f"{r.evaluation('constant 144 at δ = 1e-8'):.3f} at 1e-8",
                r.evaluation("constant 144 at δ = 1e-8") <= 1,
            ),
            reading="the proof needs 432 for 144; best conversion of its own Rényi curve",
        ),
        statement(
            THESIS,
            "Table 3.1",
            "for large d the bits of secure aggregation over those of bit planes are of order n",
            lambda r: _ratio(
                "over n, at n = 1000, d = 10⁸:",
                r.evaluation("Table 3.1, secure aggregation over bit planes over n"),
                0.5 < r.evaluation("Table 3.1, secure aggregation over bit planes over n") < 4,
            ),
            reading="orders without constants; the table's other entries are text",
        ),
        statement(
            THESIS,
            "Fig. 3.2(a)",
            "3 bits come close to Laplace noise",
            lambda r: (
                f"{r.at('thesis-3.2', 0, 'thesis, m = 3', 4.0):.3f} against "
                f"{r.at('thesis-3.2', 0, 'Laplace', 4.0):.3f} at ε0 = 4",
                r.at("thesis-3.2", 0, "thesis, m = 3", 8.0) < 2 * r.at("thesis-3.2", 0, "Laplace", 8.0),
            ),
            reading="close: within a factor of 2",
        ),
    ]
    scalar, vector = "multi-message, m = 4, thesis RDP", "Kashin, s = 500, thesis RDP"
    rotated = "multi-message, s = 250, thesis RDP"
    rows += [
        statement(
            THESIS,
            "Fig. 3.2(b)",
            "bit planes beat shuffled Laplace noise at all ε",
            _planes_against(1, scalar, baseline),
            reading=called,
            decides=True,
        )
        for baseline, called in (
            ("Laplace, clones closed form", "the cited closed form of the clones"),
            ("Laplace, clones", "the numerical clones"),
        )
    ]
    rows += [
        statement(
            THESIS,
            "Fig. 3.2(c)",
            "bit planes beat shuffled PrivUnit at all ε, d = 300",
            _planes_against(2, planes, baseline),
            reading=f"{how}; {called}",
            decides=True,
        )
        for planes, how in ((vector, "Kashin, s = 500"), (rotated, "rotation, s = 250"))
        for baseline, called in (
            ("PrivUnit, clones closed form", "the cited closed form of the clones"),
            ("PrivUnit, clones", "the numerical clones"),
        )
    ]
    rows += [
        _accuracy(THESIS, "Fig. 4.2", "fig4.2", index, *published, reading, decides=True)
        for index, published in enumerate(((5.0, 76.7, 2), (10.0, 87.9, 1)))
        for reading in (
            ("clones_closed", "ε by the clones' closed form"),
            ("published", "ε by Theorem 5.4.1"),
            ("clones_numerical", "ε by the numerical clones"),
        )
    ]
    rows += _table_4_2()
    rows += [
        statement(
            THESIS,
            "Lemma 4.3.1",
            "ε of a round in which clients sample their records, s > 1",
            lambda r: _ratio(
                "bound over the certified ε:",
                r.evaluation("Lemma 4.3.1 over certified"),
                r.evaluation("Lemma 4.3.1 over certified") >= 1,
            ),
            reading="its proof for s > 1, clones' closed form; s = 2 of 10 records, k = n/2 = 10⁴, ε0 = 0.5",
        ),
        statement(
            THESIS,
            "Thm 3.7.1",
            "error of means of users' own means",
            _not_run,
            reading="an order in n and ε0",
        ),
        statement(
            THESIS, "Fig. 4.3", "accuracy on FEMNIST (a curve)", _not_run, reading="its data are not here"
        ),
        statement(
            THESIS,
            "Fig. 5.2",
            "first bound below the second",
            _ordered("thesis-5.2", 6, "shuffle RDP, best c", "shuffle RDP, second bound"),
        ),
        statement(
            THESIS,
            "Fig. 5.2",
            "first bound below Erlingsson et al. 2019",
            _ordered("thesis-5.2", 6, "shuffle RDP, best c", "amplification by shuffling, RDP"),
            reading="neither capped at ε0",
        ),
        statement(
            THESIS,
            "Fig. 5.3",
            "for one shuffle the clones are below shuffle RDP",
            _ordered("thesis-5.3", 4, "clones, numerical", "shuffle RDP, best c"),
        ),
        number(
            THESIS,
            "Remark 5.3.7",
            "upper over lower Rényi bound, over 4e^ε0",
            1.0,
            lambda r: r.evaluation("Corollaries 5.3.1 over 5.3.2 over 4e^ε0"),
            within=1e-3,
        ),
    ]
    rows += [
        number(
            THESIS,
            "Fig. 5.4",
            "saving by composing Rényi curves",
            8,
            lambda r, reading=reading: r.headline(8, reading),
            within=0.05,
            unit="×",
            reading=reading,
            decides=True,
        )
        for reading in (
            "c = 1/2, clones closed form",
            "c = 1/2, clones numerically",
            "best c, clones numerically",
            "best c, clones numerically, simple strong composition",
        )
    ]
    rows += [
        number(
            THESIS,
            "Fig. 5.5",
            "saving under Poisson sampling",
            11,
            lambda r, reading=reading: r.headline(11, reading),
            within=0.05,
            unit="×",
            reading=f"{reading}; ε0 and T are not printed",
            decides=True,
        )
        for reading in (
            "ε0 = 0.5, clones closed form",
            "ε0 = 1, clones closed form, silent: no shuffling",
            "ε0 = 2, clones closed form, silent: no shuffling",
            "ε0 = 1, clones numerically",
        )
    ]
    rows += [
        statement(THESIS, "Fig. 6.2(a)", "regret: central ≤ shuffled ≪ local", _models_in_order),
        statement(THESIS, "Fig. 6.2(b)", "the core set brings regret close to the non-private", _core_set),
        statement(
            THESIS,
            "Fig. 6.2(b)",
            "without the core set it is much worse",
            _without_core_set,
            reading="the design's support is all actions that are left",
            decides=True,
        ),
        statement(
            THESIS,
            "Fig. 6.2(b)",
            "without the core set it is much worse",
            _without_dropping,
            reading="read literally, all 1,000 actions in every batch",
            decides=True,
        ),
        *(
            statement(
                THESIS,
                f"Thm {theorem}, Table 6.1",
                f"regret of order √T, {line} model",
                _regret_rate(line),
                reading="at ε = 1, but for powers of log T; the other rows of the table are other papers'",
            )
            for theorem, line in (("6.3.1", "central"), ("6.4.1", "local"), ("6.5.1", "shuffled"))
        ),
    ]
    return rows + _chapter_7_rows()


def _not_run(results: Results) -> tuple[str, bool]:
    raise NotRun


def _regrets(results: Results, part: str, line: str) -> dict[float | None, float]:
    """Mean regret over the runs of one line of Figure 6.2, by ε."""
    rows = [r for r in results.json("examples/results/bandits.json")["results"][part] if r["line"] == line]
    places = dict.fromkeys(r["x"] for r in rows)
    return {x: float(np.mean([r["regret"] for r in rows if r["x"] == x])) for x in places}


def _models_in_order(results: Results) -> tuple[str, bool]:
    central, shuffled, local = (
        _regrets(results, "models", line) for line in ("central", "shuffled", "local")
    )
    at_one = f"{central[1.0]:,.0f} ≤ {shuffled[1.0]:,.0f} ≪ {local[1.0]:,.0f} at ε = 1"
    least = min(local[x] / shuffled[x] for x in shuffled)
    ordered = all(central[x] <= shuffled[x] for x in shuffled) and local[1.0] >= 2 * shuffled[1.0]
    return f"{at_one}; local at least {least:.1f} times shuffled at every ε", ordered


def _core_set(results: Results) -> tuple[str, bool]:
    private = _regrets(results, "core-set", "central, core set")
    (plain,) = _regrets(results, "core-set", "not private, core set").values()
    return f"{private[1.0] / plain:.2f} times at ε = 1, {private[0.3] / plain:.2f} at 0.3", private[
        1.0
    ] <= 1.1 * plain


def _without_core_set(results: Results) -> tuple[str, bool]:
    core, everything = (
        _regrets(results, "core-set", f"central, {each}") for each in ("core set", "all actions")
    )
    ratios = {x: everything[x] / core[x] for x in core if x is not None}
    told = ", ".join(f"{ratios[x]:.2f} at ε = {x:g}" for x in (0.01, 0.1, 1.0))
    return f"regret over that with the core set: {told}", min(ratios.values()) > 1


def _without_dropping(results: Results) -> tuple[str, bool]:
    core = _regrets(results, "core-set", "central, core set")
    everything = results.evaluation("regret of every action in every batch")
    least = min(everything / core[x] for x in core if x is not None)
    return f"{everything:.2g}, at least {least:.3g} times that with the core set", least >= 2


def _regret_rate(line: str) -> Callable[[Results], tuple[str, bool]]:
    def ours(results: Results) -> tuple[str, bool]:
        regrets = _regrets(results, "horizon", line)
        last = sorted(x for x in regrets if x is not None)[-4:]  # ln T
        slope = float(np.polyfit(last, np.log([regrets[x] for x in last]), 1)[0])
        return f"measured slope in T: {slope:.3f} (expected 0.5)", abs(slope - 0.5) <= 0.06

    return ours


def _chapter_7_rows() -> list[Row]:
    limited = "error over the lower bound of Theorem 7.3.1"
    rows = [
        number(
            THESIS,
            "section 7.7, Fig. 7.3",
            f"saving of storage at ε0 = 5, {categories} categories",
            100 * saving,
            lambda r, k=categories: 100 * r.at("thesis-7.3", 1, refinement.SHORTEST, 5.0, series=f"k = {k}"),
            within=1e-3,
            unit=" %",
        )
        for categories, saving in refinement.SAVINGS.items()
    ]
    rows += [
        number(
            THESIS,
            "Fig. 7.7",
            f"ℓ1 error of about {clients:,} clients, R = {bits:g}",
            error,
            lambda r, n=clients, bits=bits: r.at(
                "thesis-7.7", 0, refinement.MEASURED, float(n), series=f"R = {bits:g}"
            ),
            within=0.03,
            reading="negative entries dropped, scaled to sum 1",
        )
        for bits, (clients, error) in refinement.ERROR_POINTS.items()
    ]
    rows += [
        statement(
            THESIS,
            "Fig. 7.8",
            "R = 0.9 costs accuracy for all ε0 < 0.8 and none above",
            lambda r: (
                f"{r.at('thesis-7.7', 1, refinement.MEASURED, 0.7, series='R = 0.9'):.2f} against "
                f"{r.at('thesis-7.7', 1, refinement.MEASURED, 0.7, series='R = 1'):.2f} at ε0 = 0.7, "
                "equal from 0.8 on",
                r.curve("thesis-7.7", 1, refinement.MEASURED, series="R = 0.9")[6:]
                == r.curve("thesis-7.7", 1, refinement.MEASURED, series="R = 1")[6:],
            ),
            reading="the exact value is 0.77; the text has R = 0.6 in one sentence, 0.9 in another",
        ),
        statement(
            THESIS,
            "Fig. 7.9",
            "about twice the randomness without keys where ε1 ≈ ε2",
            lambda r: (
                f"{r.at('thesis-7.9', 0, refinement.SEPARATE, 0.99):.3f} against "
                f"{r.at('thesis-7.9', 0, refinement.JOINT, 0.99):.3f} bits",
                r.at("thesis-7.9", 0, refinement.SEPARATE, 0.99)
                > 1.8 * r.at("thesis-7.9", 0, refinement.JOINT, 0.99),
            ),
        ),
        statement(
            THESIS,
            "Fig. 7.10",
            "the gap grows with d (a curve)",
            lambda r: (
                f"{r.at('thesis-7.9', 1, refinement.JOINT, 10.0):.3f} against "
                f"{r.at('thesis-7.9', 1, refinement.SEPARATE, 10.0):.3f} bits at d = 10",
                bool(
                    np.all(
                        np.diff(
                            np.subtract(
                                r.curve("thesis-7.9", 1, refinement.SEPARATE),
                                r.curve("thesis-7.9", 1, refinement.JOINT),
                            )
                        )
                        > 0
                    )
                ),
            ),
            reading="ε1 = 2, ε_j = 2 − 0.1j from j = 2 on",
        ),
        statement(
            THESIS,
            "Table 7.1",
            "all but k-ary response have error of order k/(nε0²); one bit takes the least randomness",
            lambda r: (
                "n × error at ε0 = 0.5: "
                + ", ".join(
                    f"{name} {r.at('thesis-table-7.1', 1, name, 0.5):.3g}"
                    for name in refinement.TABLE_MECHANISMS
                ),
                r.at("thesis-table-7.1", 1, "k-ary response", 0.5)
                > 100 * r.at("thesis-table-7.1", 1, "one-bit Hadamard response", 0.5),
            ),
        ),
        statement(
            THESIS,
            "Thm 7.3.1",
            "lower bound of order 1/p_R² with little randomness",
            lambda r: (
                f"the mechanism's exact error over the bound: {r.evaluation(limited):.3g}",
                r.evaluation(limited) >= 1,
            ),
            reading="ε0 = 1, R = 0.0114, k = 1000; the order should be 1/p_R",
        ),
    ]
    return rows


def claims(results: Results | None = None) -> list[Claim]:
    """Every row, with what the committed results say."""
    found = results or Results()
    rates = [
        ("P_SGD", "4.1"),
        ("P_AGD", "4.3"),
        ("P_AGD, smoothed", "4.7"),
        ("P_GD", "4.9"),
        ("phased P_AGD, smoothed", "4.8"),
        ("phased P_AGD", "4.8"),
        ("phased P_GD", "4.9"),
    ]
    beyond = [
        statement(CONVEX, place, published, _not_run, reading=why)
        for place, published, why in (
            ("Cor. B.8 to B.11", "bits and time of each algorithm", "orders without constants"),
            (
                "Thm C.3",
                "the same rates under pan-privacy",
                "`PanPrivate` is built, but its rates were not fitted",
            ),
        )
    ]
    convex = [*(_rate(*rate) for rate in rates), *beyond]
    rows = [*_clones_rows(), *_subsampled_rows(), *convex, *_thesis_rows()]
    return [row.claim(found) for row in rows]


def page(found: list[Claim]) -> str:
    """The page that ``docs/reference/claims.md`` holds."""
    counts = {verdict: sum(claim.verdict is verdict for claim in found) for verdict in Verdict}
    lines = [
        "# Every figure, table and claim of the sources",
        "",
        "<!-- Written by `python examples/figures/make.py --table`: edit paper_figures/claims.py. -->",
        "",
        "What the five sources print (the subsampled paper in two versions), and what came out here. Where a",
        "claim can be read in several ways, each reading has a row. “Not run” means that no result of it is",
        "committed, “says nothing” that a result cannot decide: the ε is never reached, settings were chosen",
        "by the accuracy that is reported, or training alone comes as near. A number reproduces if it is",
        "within 5 % (savings of Figure 7.3: 0.1 %, errors of Figure 7.7: 3 %), a cell of Table 4.2 within",
        "three points, an accuracy within two standard errors of the difference of the means, a slope within",
        "0.06. ″ repeats the cell above.",
        "[Figures](figures.md), [training](mnist.md).",
        "",
        f"{len(found)} rows: "
        + ", ".join(f"{many} “{verdict}”" for verdict, many in counts.items() if many)
        + ".",
    ]
    for source in dict.fromkeys(claim.source for claim in found):
        lines += [
            "",
            f"## {source}",
            "",
            "| where | published | read as | ours | verdict |",
            "|---|---|---|---|---|",
        ]
        above: tuple[str, ...] = ("", "", "")
        for c in found:
            if c.source == source:
                cells = (c.place, c.published, c.reading or "—")
                said = [
                    "″" if cell == before != "—" else cell for cell, before in zip(cells, above, strict=True)
                ]
                lines.append(f"| {' | '.join(said)} | {c.ours} | {c.verdict} |")
                above = cells
    return "\n".join(lines) + "\n"
