"""Flower: what a round costs more, and what its apps reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from measured.parts import Sentences, Tables, result, table
from measured.training import share
from shuffle_plugins.accounting import ShuffleAccountant, ShuffleRound
from shuffle_plugins.core import rounded
from shuffle_plugins.mechanisms import registry
from shuffle_plugins.planning import expected_noise
from shuffle_plugins.protocols import VectorSum

FLOWER = "docs/guides/flower.md"
MEASURED = "docs/reference/benchmarks.md"
_NAMES = {
    "plain FedAvg": "plain FedAvg",
    "privunit": "`privunit`",
    "linf-block": "`linf-block`",
    "l2-block, rotation": '`l2-block`, `frame="rotation"`',
    "linf-coordinate (one sign)": "`linf-coordinate`, one sign",
    "l2-block, Kashin frame": "`l2-block` with its Kashin frame",
}


def overhead() -> str:
    """A round beside plain FedAvg's."""
    found = result("benchmarks/flower_overhead")["100"]["variants"]

    def row(key: str) -> tuple[str, ...]:
        of = found[key]
        if key == "plain FedAvg":
            times = (f"{of['median_processor_s']:.1f} s", f"{of['median_s']:.1f} s")
        else:
            times = (f"× {of['processor_over_plain']:.2f}", f"× {of['over_plain']:.2f}")
        return (_NAMES[key], *times, f"{of['peak_memory_mib']:,} MiB", f"{of['update_bytes']:,}")

    head = ("", "processor time", "on the clock", "peak memory", "bytes of an update")
    return table(head, (row(key) for key in _NAMES))


def quickstarts() -> str:
    """Flower's quickstart apps, plain and private."""
    found = result("examples/flower_quickstarts")

    def row(run: dict[str, Any]) -> tuple[str, ...]:
        late = run["app"] == "quickstart-sklearn"
        what = {"quickstart-sklearn": ", mean of the last 5 rounds", "quickstart-pytorch": ", MNIST"}
        randomizer = f"`laplace`, ε0 = {run['local_epsilon']:g}" if run["local_epsilon"] else "`VectorSum`"
        ends = (
            rounded(run["private"][f"epsilon_{who}"], up=True, digits=3) for who in ("observer", "server")
        )
        reached = (share(run[kind]["late_mean" if late else "accuracy"]) for kind in ("plain", "private"))
        clients = "all" if run["cohort"] == run["population"] else f"{run['cohort']:,}"
        return (
            run["app"] + what.get(run["app"], ""),
            f"{run['dim']:,}",
            f"{run['population']:,}, {clients}",
            str(run["rounds"]),
            randomizer,
            " / ".join(ends),
            *reached,
        )

    head = (
        "app",
        "parameters",
        "clients, of which a round's",
        "rounds",
        "what randomises",
        "ε observer / server",
        "plain",
        "private",
    )
    return table(head, (row(run) for app in ("numpy", "sklearn", "pytorch") for run in found[app]))


TABLES: Tables = {MEASURED: {"overhead": overhead, "quickstarts": quickstarts}}


def _first_round() -> str:
    """What the log says of the first round of the guide's first app."""
    ends = []
    for adversary in ("model-observer", "server"):
        accountant = ShuffleAccountant()
        accountant.step(
            ShuffleRound(
                local_epsilon=4.0,
                population=1_000,
                cohort=100,
                adversary=adversary,
                mechanism="privunit",
                blanket=registry.blanket("privunit", local_epsilon=4.0, dim=1_000),
                channel_fixed=True,
            )
        )
        ends.append(rounded(accountant.epsilon(1e-5, lower=False).upper, up=True))
    return f"100 reports; ε ≤ {ends[0]} against an observer, ≤ {ends[1]} against the server"


def _evaluation() -> list[str]:
    """How much noise a private evaluation has."""

    def noise(local_epsilon: float, metrics: int) -> float:
        law = registry.get("linf-block", local_epsilon=local_epsilon, dim=metrics)
        return math.sqrt(law.worst_variance / metrics)

    def up(value: float) -> str:
        return rounded(value, up=True, digits=2)

    first, second = ([noise(local_epsilon, metrics) for metrics in (1, 2)] for local_epsilon in (1.0, 2.0))
    return [
        f"| ε0 = 1 | {up(first[0])} / √reports | {up(first[1])} / √reports |",
        f"| ε0 = 2 | {up(second[0])} / √reports | {up(second[1])} / √reports |",
    ]


@cache
def _noise_of_numpy() -> str:
    """Deviation of the noise in the accuracy of quickstart-numpy, in points."""
    expected = 2.5  # the parameter that the app looks for

    def deviation(run: dict[str, Any]) -> float:
        clients, rounds = run["population"], run["rounds"]
        if run["local_epsilon"]:
            variance = clients * 2 * (2 * run["clipping_norm"] / run["local_epsilon"]) ** 2
        else:
            variance = VectorSum.calibrated(
                dim=1, cohort=clients, epsilon=1.0, delta=run["delta"], num_steps=rounds
            ).noise_variance
        return 100 * math.sqrt(rounds * variance) / clients / expected

    found = [f"{deviation(run):.1f}" for run in result("examples/flower_quickstarts")["numpy"]]
    return (
        f"is {found[0]} and {found[1]} in the two rows of `laplace`, and {found[2]} and {found[3]} in those "
        "of `VectorSum`"
    )


@cache
def _warned() -> tuple[str, str, str]:
    """The best possible signal to noise of two runs that are warned of: one report per client, and a sum."""
    (torch,) = result("examples/flower_quickstarts")["pytorch"]
    report = registry.get("privunit", local_epsilon=4.0, dim=torch["dim"], radius=1.0)
    total = VectorSum.calibrated(dim=torch["dim"], cohort=100, epsilon=8.0, delta=torch["delta"], num_steps=3)
    single, summed = (
        expected_noise(each, cohort=100).signal_to_noise_ratio_over(3) for each in (report, total)
    )
    return (
        f"signal to noise is at most {single:.2g} over all rounds. … ({torch['dim']:,} parameters, 3 rounds "
        "of 100 reports by `privunit` at ε0 = 4)",
        "With 100 of them and its 3 rounds the best possible signal to noise is "
        f"{summed:.2g} over the run even for a sum at ε = 8",
        f"local epochs at a learning rate of {torch['learning_rate']:g} and a clipping norm of "
        f"{torch['clipping_norm']:g}",
    )


def _swings() -> str:
    """How far quickstart-sklearn's accuracy moves in a round without protection, after the first round."""

    def most(run: dict[str, Any]) -> float:
        by_round = run["plain"]["by_round"][1:]
        return 100 * max(abs(after - before) for before, after in pairwise(by_round))

    few, many = result("examples/flower_quickstarts")["sklearn"]
    return (
        f"moves by up to {most(few):.0f} points ({few['population']} clients) and {most(many):.0f} "
        f"({many['population']} clients) from one round to the next, without protection too"
    )


def trusted_noise() -> str:
    """How near the noise of a vector sum comes to the Gaussian mechanism's."""
    found = result("benchmarks/protocols")["beside_the_gaussian"]
    most = max(of["vector"]["over_gaussian"] for of in found)
    return f"within {math.ceil(100 * (most - 1) - 0.1)} % of its variance"


def _windows() -> Iterator[str]:
    """What a model reaches within ε against the server, by windows of sums and by independent sums."""
    runs = {(run["sum"], run["target_epsilon"]): run for run in result("examples/flower_windows")}
    for level in sorted({level for _, level in runs}):
        windows, alone = (runs[name, level] for name in ("windowed-sum", "vector-sum"))
        reached = share(windows["accuracy"]), share(alone["accuracy"])
        yield f"{reached[0]} with windows and {reached[1]} with independent sums at ε = {level:g}"
    yield f"{windows['population']:,} clients, {windows['cohort']:,} in each of {windows['rounds']} rounds"


def sentences() -> Sentences:
    """Pieces of text with what rounds in Flower cost and reach."""
    many = result("benchmarks/flower_overhead")["1000"]["variants"]
    run = result("examples/flower_population")["runs"]["projunit-3"]
    small, large = result("examples/flower_quickstarts")["sklearn"]
    (torch,) = result("examples/flower_quickstarts")["pytorch"]
    plain = many["plain FedAvg"]
    whole = 4 * result("examples/flower_population")["parameters"]

    ends = [rounded(run[f"epsilon_{who}"], up=True, digits=3) for who in ("observer", "server")]

    def times(key: str) -> str:
        return f"× {many[key]['processor_over_plain']:.2f}"

    def behind(of: dict[str, Any], key: str) -> float:
        return float(100 * (of["plain"][key] - of["private"][key]))

    def rounds(kind: str) -> str:
        return ", ".join(f"{100 * torch[kind]['by_round'][each]:.0f}" for each in (6, 9, 12))

    warned, hopeless, steps = _warned()
    return {
        "docs/guides/opacus.md": [trusted_noise()],
        FLOWER: [_first_round(), *_evaluation(), warned, trusted_noise()],
        "docs/reference/mnist.md": [
            f"(Nobody trusted: {run['curve'][-1]['epsilon_nobody_trusted']:g}.)",
            f"a round instead of {whole:,}",
            f"**{share(run['accuracy'])} at a certified ε of {ends[0]}** against an observer of the model "
            f"and {ends[1]} against the server",
            f"A client sends {run['payload_bytes']:,} bytes a round",
            f"a round moves {run['bytes_up_per_round'] / 1e6:.0f} MB up and "
            f"{run['bytes_down_per_round'] / 1e6:.0f} MB down",
        ],
        MEASURED: [
            _noise_of_numpy(),
            hopeless,
            steps,
            _swings(),
            *_windows(),
            f"plain FedAvg {plain['median_processor_s']:.1f} s of processor time, "
            f"{plain['median_s']:.0f} s on the clock, {plain['peak_memory_mib']:,} MiB",
            f"`linf-block` {times('linf-block')}, "
            f"`l2-block` with its rotation {times('l2-block, rotation')}, "
            f"one sign {times('linf-coordinate (one sign)')}",
            f"`privunit` {times('privunit')} and {many['privunit']['peak_memory_mib']:,} MiB",
            f"{behind(large, 'late_mean'):.1f} points below the plain one with 300 clients, and "
            f"{behind(small, 'late_mean'):.1f} with 100",
            f"ends {behind(torch, 'accuracy'):.1f} points below its plain run with 1,000 clients",
            f"{rounds('private')} % after rounds 6, 9 and 12, against {rounds('plain')} %",
        ],
    }
