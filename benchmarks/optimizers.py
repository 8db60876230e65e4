"""Measured excess loss of the optimisers against the rates of their theorems (Table 1 of the paper).

The losses are sums over coordinates of h/2·t² + w·|t|, t = θ_j − x_j, with clients' x_j = a_j + s·u, u in
{−1, 0, 1} with probabilities ¼, ½, ¼. The optimum is a, and the population loss is known in closed form. The
curvatures h run through many scales: at every n some of them are as hard as the theorem fears, so one fixed
problem shows the worst-case rate. Where the loss is not to be smooth, slopes w take the place of curvatures,
or of half of them.
Plans are those that users get. What a step sees, the batch's mean gradient and the noise of P_vec (normal,
which it is up to a computed total variation), is drawn from its law without making n vectors, so n may be
large enough for the privacy term to rule.

    python benchmarks/optimizers.py            # about ten minutes on one core; writes results/optimizers.*
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import matplotlib
import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from shuffle_plugins.accounting import Sampling
from shuffle_plugins.optim import (
    AGD,
    GD,
    SGD,
    Ball,
    GradientOracle,
    GradientTarget,
    Local,
    OptimizationMethod,
    OptimizationPlan,
    Participation,
    Phased,
    Problem,
    Smoothed,
    VectorSums,
)

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SCALES, RATIO = 24, 1.5
RADIUS, SPREAD = 1.0, 0.5
DELTA = 1e-6


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A problem of d coordinates, ``SCALES`` of them different.

    Attributes:
        smooth: no kinks.
        convexity: least curvature.
        steep: kinks of one slope in half of the coordinates, curvatures in the others. Else, if there are
            kinks at all, all coordinates have them, with slopes of all scales.
    """

    dim: int
    smooth: bool
    convexity: float = 0.0
    steep: bool = False

    def __post_init__(self) -> None:
        if self.dim % SCALES:
            raise ValueError(f"dim must be a multiple of {SCALES}")

    @cached_property
    def optimum(self) -> Tensor:
        """a."""
        return torch.full((self.dim,), RADIUS / math.sqrt(self.dim), dtype=torch.float64)

    @cached_property
    def step(self) -> float:
        """s, the spread of the data."""
        return SPREAD * RADIUS / math.sqrt(self.dim)

    @cached_property
    def _scales(self) -> Tensor:
        each = RATIO ** -torch.arange(SCALES, dtype=torch.float64)
        return each.repeat(self.dim // SCALES)

    @cached_property
    def _kinked(self) -> Tensor:
        """1 where a coordinate has a kink."""
        if self.steep:
            return (torch.arange(self.dim) % 2).to(torch.float64)
        return torch.full((self.dim,), 0.0 if self.smooth else 1.0, dtype=torch.float64)

    @cached_property
    def curvatures(self) -> Tensor:
        """h, of each coordinate."""
        return (self._scales * (1 - self._kinked)).clamp(min=self.convexity)

    @cached_property
    def slopes(self) -> Tensor:
        """w, of each coordinate: ‖w‖ is 1 where there are kinks."""
        slopes = self._kinked * (1.0 if self.steep else self._scales)
        return slopes / torch.linalg.vector_norm(slopes).clamp(min=1e-9)

    def problem(self) -> Problem:
        """As an optimiser is told of it."""
        h, w = self.curvatures, self.slopes
        farthest = 2 * RADIUS + self.step * math.sqrt(self.dim)
        return Problem(
            dim=self.dim,
            domain=Ball(radius=RADIUS),
            gradients=lambda theta, examples: self.slope(theta - examples[0], math.inf),
            lipschitz=float(h.max()) * farthest + float(torch.linalg.vector_norm(w)),
            smoothness=float(h.max()) if self.smooth else math.inf,
            strong_convexity=self.convexity,
            proximal=self._proximal,
        )

    def _proximal(self, theta: Tensor, examples: tuple[Tensor, ...], beta: float) -> Tensor:
        away = theta - examples[0]
        return theta - self.slope(away, beta) / beta

    def slope(self, away: Tensor, beta: float) -> Tensor:
        """Derivative at t of each coordinate's loss, or of its Moreau envelope."""
        h, w = self.curvatures, self.slopes
        if beta == math.inf or self.smooth:
            return h * away + w * away.sign()
        held = (beta * away).abs() - w
        return beta * (away - away.sign() * held.clamp(min=0) / (beta + h))

    def excess(self, theta: Tensor) -> Tensor:
        """Population loss above the optimum's, of each row."""
        t, s = theta - self.optimum, self.step
        kinks = t.abs() / 2 + (t - s).abs() / 4 + (t + s).abs() / 4 - s / 2
        return (self.curvatures / 2 * t**2 + self.slopes * kinks).sum(-1)


def _simulated(target: GradientTarget, noise: float) -> GradientOracle:
    """An oracle that only tells its noise; its means are drawn from their law."""
    return GradientOracle(target=target, round=None, noise=noise, says="simulated", estimate=_refused)


def _refused(gradients: Tensor, randomness: object) -> Tensor:
    raise NotImplementedError("drawn from its law")


class Simulated(VectorSums):
    """P_vec by its variance alone: no calibration, no coins."""

    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        """An oracle that only tells its noise."""
        return _simulated(target, self.noise(participation, target))


class SimulatedLocal(Local):
    """The local model by its variance alone."""

    def open(self, participation: Participation, target: GradientTarget) -> GradientOracle:
        """An oracle that only tells its noise."""
        alone = Participation(sampling=Sampling.SINGLE_PASS, population=1, cohort=1, num_steps=1)
        return _simulated(target, Local().noise(alone, target) / participation.cohort)

    def noise(self, participation: Participation, target: GradientTarget) -> float:
        """That of one report over the number of clients."""
        return self.open(participation, target).noise


def simulate(
    plan: OptimizationPlan, instance: Instance, generator: np.random.Generator, *, repeats: int = 1
) -> Tensor:
    """Answers of independent runs of a plan, (repeats, dim), their steps drawn from their law."""
    size = repeats, instance.dim
    points = plan.problem.domain.start(instance.dim).repeat(repeats, 1)
    for stage in plan.stages:
        part, rule = stage.participation, stage.rule
        state = rule.begin(points)
        deviation = math.sqrt(stage.oracle.noise / instance.dim)
        shares = None
        for step in range(1, part.num_steps + 1):
            if shares is None or part.sampling is Sampling.SINGLE_PASS:
                counts = generator.multinomial(part.cohort, [0.25, 0.5, 0.25], size=size)
                shares = torch.from_numpy(counts / part.cohort)
            gradients = _mean_slope(instance, stage.problem.smoothness, rule.query(state, step), shares)
            gradients += torch.from_numpy(generator.standard_normal(size)) * deviation
            state = rule.update(state, gradients, step, stage.problem.domain)
        points = rule.answer(state, part.num_steps)
    return points


def _mean_slope(instance: Instance, smoothness: float, theta: Tensor, shares: Tensor) -> Tensor:
    """Mean gradients of batches of which these shares have u = −1, 0, 1, for each coordinate."""
    away = theta - instance.optimum
    moved = (instance.slope(away - u * instance.step, smoothness) for u in (-1, 0, 1))
    return sum(shares[..., k] * slope for k, slope in enumerate(moved))  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A row of Table 1: what is run, on what, and the exponents of n and d that the theorem gives."""

    title: str
    theorem: str
    method: OptimizationMethod
    smooth: bool
    convexity: float
    ratios: tuple[float, float]  # least and greatest n·L/N, N the deviation of one sum
    slope: float
    dim_slope: float
    local: bool = False
    steep: bool = False


CONVEXITY = 0.5
MOST_INTERACTIVE = 300_000  # the theorem asks for n/2 steps
LOCAL_STEPS = 20_000  # where every report is mostly noise, more and smaller batches gain nothing
RATES = (
    Rate(title="P_SGD", theorem="4.1", method=SGD(), smooth=True, convexity=0, ratios=(10**2.5, 10**4.3),
         slope=-1 / 2, dim_slope=1 / 4),
    Rate(title="P_AGD", theorem="4.3", method=AGD(), smooth=True, convexity=0, ratios=(1e3, 1e5),
         slope=-4 / 5, dim_slope=2 / 5),
    Rate(title="P_AGD, smoothed", theorem="4.7", method=Smoothed(inner=AGD()), smooth=False, convexity=0,
         ratios=(10**2.5, 10**4.5), slope=-2 / 3, dim_slope=1 / 3),
    Rate(title="P_GD", theorem="4.9", method=GD(), smooth=True, convexity=0, ratios=(10, 1e3),
         slope=-1, dim_slope=1 / 2),
    Rate(title="P_GD, smoothed", theorem="4.9", method=Smoothed(inner=GD()), smooth=False, convexity=0,
         ratios=(15, 120), slope=-1, dim_slope=1 / 2, steep=True),
    Rate(title="phased P_AGD, smoothed", theorem="4.8", method=Phased(inner=Smoothed(inner=AGD())),
         smooth=False, convexity=CONVEXITY, ratios=(3e3, 1e5), slope=-4 / 3, dim_slope=2 / 3),
    Rate(title="phased P_AGD", theorem="4.8", method=Phased(inner=AGD()), smooth=True, convexity=CONVEXITY,
         ratios=(1e4, 3e5), slope=-2, dim_slope=1),
    Rate(title="phased P_GD", theorem="4.9", method=Phased(inner=GD()), smooth=True, convexity=CONVEXITY,
         ratios=(1e3, 3e4), slope=-2, dim_slope=1),
    Rate(title="local SGD", theorem="local model", method=SGD(), smooth=True, convexity=0,
         ratios=(10**2.1, 10**3.7), slope=-1 / 2, dim_slope=1 / 2, local=True),
)  # fmt: skip


def _instance(rate: Rate, *, dim: int) -> Instance:
    return Instance(dim=dim, smooth=rate.smooth, convexity=rate.convexity, steep=rate.steep)


def measure(
    rate: Rate, *, clients: int, dim: int, epsilon: float, repeats: int, seed: int
) -> dict[str, float]:
    """Mean excess loss over repeats, its standard error, and what the plan promised."""
    instance = _instance(rate, dim=dim)
    model = SimulatedLocal() if rate.local else Simulated()
    method = SGD(batch=clients // LOCAL_STEPS) if rate.local else rate.method
    plan = method.plan(instance.problem(), population=clients, epsilon=epsilon, delta=DELTA, model=model)
    generator = np.random.default_rng([seed, clients % 2**31, dim])
    found = instance.excess(simulate(plan, instance, generator, repeats=repeats)).numpy()
    return {
        "clients": clients,
        "dim": dim,
        "epsilon": epsilon,
        "steps": sum(stage.participation.num_steps for stage in plan.stages),
        "excess": float(np.mean(found)),
        "error": float(np.std(found, ddof=1) / math.sqrt(repeats)),
        "bound": plan.bound,
    }


def fitted(points: list[dict[str, float]], axis: str) -> float:
    """Slope of log excess against the log of an axis, by least squares."""
    x, y = (np.log([point[key] for point in points]) for key in (axis, "excess"))
    return float(np.polyfit(x, y, 1)[0])


def unit(rate: Rate, *, dim: int, epsilon: float) -> float:
    """N/L: clients at which the noise of one step is as long as a gradient."""
    problem = _instance(rate, dim=dim).problem()
    target = GradientTarget(dim=dim, radius=problem.lipschitz, epsilon=epsilon, delta=DELTA)
    if rate.local:
        alone = Participation(sampling=Sampling.SINGLE_PASS, population=1, cohort=1, num_steps=1)
        return SimulatedLocal().noise(alone, target) / problem.lipschitz**2
    alone = Participation(sampling=Sampling.FULL, population=10**9, cohort=10**9, num_steps=1)
    return 1e9 * math.sqrt(Simulated().noise(alone, target)) / problem.lipschitz


def rates(*, dim: int, epsilon: float, points: int, repeats: int) -> list[dict[str, object]]:
    """Every row of Table 1: excess loss against n, and against d in the middle of that range."""
    rows: list[dict[str, object]] = []
    for rate in tqdm(RATES, desc="rates"):
        scale = unit(rate, dim=dim, epsilon=epsilon)
        sizes = [round(scale * r) for r in np.geomspace(*rate.ratios, points)]
        by_clients = [
            measure(rate, clients=n, dim=dim, epsilon=epsilon, repeats=repeats, seed=1) for n in sizes
        ]
        middle = round(scale * math.sqrt(rate.ratios[0] * rate.ratios[1]))
        by_dim = [
            measure(rate, clients=middle, dim=dim * k, epsilon=epsilon, repeats=repeats, seed=2)
            for k in (1, 2, 4, 8)
        ]
        rows.append(
            {
                "title": rate.title,
                "theorem": rate.theorem,
                "slope": fitted(by_clients, "clients"),
                "expected": rate.slope,
                "dim_slope": fitted(by_dim, "dim"),
                "dim_expected": rate.dim_slope,
                "by_clients": by_clients,
                "by_dim": by_dim,
            }
        )
        tqdm.write(
            f"{rate.title:28} n: {rows[-1]['slope']:+.3f} (theorem {rate.slope:+.3f})   "
            f"d: {rows[-1]['dim_slope']:+.3f} (theorem {rate.dim_slope:+.3f})"
        )
    return rows


def ranking(*, dim: int, epsilon: float, sizes: list[int], repeats: int) -> list[dict[str, object]]:
    """The same problem by every method and in the local model, at an everyday ε."""
    chosen: list[tuple[str, OptimizationMethod, bool, bool]] = [
        ("local SGD", SGD(), True, True),
        ("P_SGD", SGD(), True, False),
        ("P_AGD", AGD(), True, False),
        ("P_GD", GD(), True, False),
        ("local SGD", SGD(), False, True),
        ("P_SGD", SGD(), False, False),
        ("P_AGD, smoothed", Smoothed(inner=AGD()), False, False),
        ("P_GD, smoothed", Smoothed(inner=GD()), False, False),
    ]
    rows: list[dict[str, object]] = []
    for title, method, smooth, local in tqdm(chosen, desc="ranking"):
        rate = Rate(
            title=title, theorem="", method=method, smooth=smooth, convexity=0.0, ratios=(0, 0), slope=0,
            dim_slope=0, local=local,
        )  # fmt: skip
        feasible = [n for n in sizes if title != "P_GD, smoothed" or n <= MOST_INTERACTIVE]
        points = [
            measure(rate, clients=n, dim=dim, epsilon=epsilon, repeats=repeats, seed=3) for n in feasible
        ]
        rows.append({"title": title, "smooth": smooth, "points": points})
    return rows


def draw(table: list[dict[str, object]], ranks: list[dict[str, object]], path: Path) -> None:
    figure, axes = plt.subplots(3, figsize=(4.5, 14.6), layout="constrained")
    for row in table:
        points = row["by_clients"]
        x = np.array([p["clients"] for p in points], dtype=float)
        y = np.array([p["excess"] for p in points])
        label = f"{row['title']}: {row['slope']:.2f} (theorem {row['expected']:.2f})"
        (line,) = axes[0].loglog(x / x[0], y / y[0], "o-", label=label, markersize=4)
        axes[0].loglog(x / x[0], (x / x[0]) ** row["expected"], ":", color=line.get_color())
    axes[0].set(title="Rates in n (dotted: Table 1)", xlabel="n / least n", ylabel="excess loss / first")
    axes[0].legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes[0].set_ylim(bottom=1e-5)
    for axis, smooth in ((axes[1], True), (axes[2], False)):
        for row in ranks:
            if row["smooth"] is smooth:
                points = row["points"]
                axis.errorbar(
                    [p["clients"] for p in points],
                    [p["excess"] for p in points],
                    yerr=[2 * p["error"] for p in points],
                    fmt="o-",
                    markersize=4,
                    label=row["title"],
                )
        epsilon, dim = (ranks[0]["points"][0][key] for key in ("epsilon", "dim"))
        kind = "smooth" if smooth else "not smooth"
        axis.set(
            title=f"Convex, {kind}: ε = {epsilon:g}, d = {dim}", xlabel="clients n", ylabel="excess loss",
            xscale="log", yscale="log",
        )  # fmt: skip
        axis.legend(fontsize=9)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--points", type=int, default=6)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dim, epsilon, everyday = 4 * SCALES, 0.001, 1.0
    table = rates(dim=dim, epsilon=epsilon, points=arguments.points, repeats=arguments.repeats)
    sizes = [3 * 10**4, 10**5, 3 * 10**5, 10**6, 3 * 10**6]
    ranks = ranking(dim=dim, epsilon=everyday, sizes=sizes, repeats=arguments.repeats)
    for row in ranks:
        excesses = "  ".join(f"{p['excess']:.2e}" for p in row["points"])
        print(f"{'smooth' if row['smooth'] else 'not smooth':10} {row['title']:18} {excesses}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = {"delta": DELTA, "rates": table, "ranking": ranks}
    (arguments.out / "optimizers.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(table, ranks, arguments.out / "optimizers.png")


if __name__ == "__main__":
    main()
