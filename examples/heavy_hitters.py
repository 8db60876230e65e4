"""The most frequent of four billion values, by prefixes, at ε = 1 for the whole search.

Every client holds one value of 32 bits; a million different ones are drawn from Zipf's law. The search of
``HeavyHitters`` asks for ever longer prefixes: by decoys in a shuffle, or by sums with everybody's coins or
shares of Laplace noise. Beside it, the same questions are answered by counted unary encoding, by one report
of a frequency oracle to a shuffler, and by a trusted server's Gaussian noise, all at the same (ε, δ),
replace-one, and with the same expected number of false positives.

    python examples/heavy_hitters.py                  # 100,000 and 1,000,000 clients; some minutes
    python examples/heavy_hitters.py --clients 20000
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from torch import Tensor

from shuffle_plugins.accounting import NEIGHBOURING_RELATION, ShuffleAccountant
from shuffle_plugins.protocols import (
    CountedUnary,
    DecoyHistogram,
    FoundValues,
    FrequencyEstimation,
    HeavyHitters,
    HistogramSum,
    LaplaceHistogram,
    PrefixQuestion,
)
from shuffle_plugins.protocols.published import central_gaussian

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BITS, VALUES, EXPONENT = 32, 1_000_000, 1.1
RESULTS = Path(__file__).parent / "results"
Counting = Callable[[Tensor], Tensor]
"""From what each client answers, -1 for no prefix, to estimated counts of all prefixes."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one way to search found.

    Attributes:
        name: what to call it.
        trusted: who is trusted with what.
        spent: certified ε of the whole search.
        local_epsilon: ε0 of all that one client sends; None where that alone protects nobody.
        bits: that one client sends in the first round, the longest; None for a trusted server.
        deviation: of one estimated count.
        found: values found.
        held: how many of them some client holds.
        first_missed: how many of the most frequent values are found before the first is missed.
        of_hundred: how many of the hundred most frequent values are found.
    """

    name: str
    trusted: str
    spent: float
    local_epsilon: float | None
    bits: int | None
    deviation: float
    found: int
    held: int
    first_missed: int
    of_hundred: int


def zipf_values(clients: int, *, seed: int) -> Tensor:
    """Everybody's value, int64 (clients,)."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.arange(1, VALUES + 1, dtype=torch.float64) ** -EXPONENT
    ranks = torch.multinomial(weights, clients, replacement=True, generator=generator)
    return torch.randint(0, 1 << BITS, (VALUES,), generator=generator)[ranks]


def binomial(trials: Tensor, probability: float) -> Tensor:
    """Binomial numbers, int64, not seeded."""
    drawn = np.random.default_rng().binomial(trials.numpy(), probability)
    return torch.from_numpy(drawn)


def false_positive_rate(plan: HeavyHitters) -> float:
    """Of one prefix that nobody holds, in one round."""
    return plan.false_positives / (plan.rounds * plan.counts.categories)


def searched(plan: HeavyHitters, held: Tensor, *, counting: Counting, threshold: float) -> FoundValues:
    """The plan's questions, answered by other means: unbiased counts, and the one from which it survives."""
    question = plan.first()
    while True:
        candidates = question.candidates()
        counts = counting(plan.answers(held, question))[: len(candidates)]
        chosen = (counts > threshold).nonzero().squeeze(1)
        chosen = chosen[counts[chosen].argsort(descending=True)]
        if question.asked_bits == plan.bits or not len(chosen):
            return FoundValues(values=candidates[chosen], counts=counts[chosen], cut=0)
        more = (plan.counts.categories // plan.width).bit_length() - 1
        question = PrefixQuestion(
            number=question.number + 1,
            kept=candidates[chosen[: plan.width].sort().values],
            kept_bits=question.asked_bits,
            asked_bits=min(plan.bits, question.asked_bits + more),
        )


def outcomes(held: Tensor, *, epsilon: float, delta: float) -> list[Outcome]:
    """All ways to search, at the same (ε, δ)."""
    clients = len(held)
    values, counts = held.unique(return_counts=True)
    ranked = values[counts.argsort(descending=True, stable=True)].tolist()
    someone = set(values.tolist())

    def outcome(found: FoundValues, **told: object) -> Outcome:
        seen = set(found.values.tolist())
        return Outcome(
            **told,
            found=len(seen),
            held=len(seen & someone),
            first_missed=next((i for i, value in enumerate(ranked) if value not in seen), len(ranked)),
            of_hundred=len(seen & set(ranked[:100])),
        )

    target = {"epsilon": epsilon, "delta": delta}
    rows: list[Outcome] = []
    plan = HeavyHitters.calibrated(bits=BITS, cohort=clients, **target)
    for kind, name, groups in (
        (DecoyHistogram, "decoys", False),
        (DecoyHistogram, "decoys, one round each", True),
        (HistogramSum, "everybody's coins", False),
        (LaplaceHistogram, "shares of Laplace noise", False),
    ):
        search = HeavyHitters.calibrated(bits=BITS, cohort=clients, kind=kind, groups=groups, **target)
        accountant = ShuffleAccountant()
        accountant.step(search.round(), num_steps=search.num_steps)
        found, own = search.find(held), search.counts
        bits = own.bits_per_report
        if isinstance(own, DecoyHistogram):
            bits = round(own.messages_per_client * own.message_layout.bits)
        rows.append(
            outcome(
                found,
                name=name,
                trusted="a shuffler" if kind is DecoyHistogram else "a secure sum",
                spent=accountant.epsilon(delta, lower=False).upper,
                local_epsilon=None,
                bits=bits,
                deviation=math.sqrt(own.worst_variance / own.categories) * (search.rounds if groups else 1),
            )
        )

    length = plan.counts.categories
    unary = CountedUnary.calibrated(length=length, cohort=clients, num_steps=plan.rounds, **target)
    accountant = ShuffleAccountant()
    accountant.step(unary.round(), num_steps=plan.rounds)

    def flipped(answers: Tensor) -> Tensor:
        """Of unary encoding, in which a client whose prefix is no candidate sets no bit."""
        held_at = torch.bincount(answers[answers >= 0], minlength=length)
        ones = binomial(held_at, unary.own) + binomial(clients - held_at, unary.other)
        return unary.estimate(ones, reports=clients).counts

    seldom = float(stats.binom.isf(false_positive_rate(plan), clients, unary.other)) + 0.5
    rows.append(
        outcome(
            searched(plan, held, counting=flipped, threshold=(seldom - clients * unary.other) / unary.gain),
            name="counted unary encoding",
            trusted="a shuffler or a secure sum",
            spent=accountant.epsilon(delta, lower=False).upper,
            local_epsilon=unary.local_epsilon * plan.rounds,
            bits=length,
            deviation=math.sqrt(unary.variance(0.0)),
        )
    )

    size = {"categories": length + 1, "cohort": clients}  # the last category is that of no prefix
    for oracle in ("hadamard-response", "k-rr"):
        reports = FrequencyEstimation.calibrated(**size, oracle=oracle, num_steps=plan.rounds, **target)
        accountant = ShuffleAccountant()
        accountant.step(reports.round(), num_steps=plan.rounds)

        def estimated(answers: Tensor, reports: FrequencyEstimation = reports) -> Tensor:
            return reports.estimate(reports.randomize(answers % (length + 1))).counts

        support = reports.support
        deviation = math.sqrt(support.variance(0.0) * clients)
        seldom = float(stats.binom.isf(false_positive_rate(plan), clients, support.other)) + 0.5
        rows.append(
            outcome(
                searched(
                    plan,
                    held,
                    counting=estimated,
                    threshold=clients * support.low + seldom * support.width,
                ),
                name=f"one report, shuffled ({oracle})",
                trusted="a shuffler",
                spent=accountant.epsilon(delta, lower=False).upper,
                local_epsilon=reports.local_epsilon * plan.rounds,
                bits=reports.bits_per_report,
                deviation=deviation,
            )
        )

    once = central_gaussian(**size, epsilon=epsilon, delta=delta)  # Gaussians compose: T of them at √T
    deviation = math.sqrt(once / size["categories"]) * clients * math.sqrt(plan.rounds)

    def noisy(answers: Tensor) -> Tensor:
        exact = torch.bincount(answers[answers >= 0], minlength=length).double()
        return exact + deviation * torch.randn(length, dtype=torch.float64)

    rows.append(
        outcome(
            searched(
                plan,
                held,
                counting=noisy,
                threshold=float(stats.norm.isf(false_positive_rate(plan))) * deviation,
            ),
            name="Gaussian noise",
            trusted="the server, with everything",
            spent=epsilon,
            local_epsilon=None,
            bits=None,
            deviation=deviation,
        )
    )
    return rows


def show(found: list[Outcome], *, title: str) -> None:
    """Print a table of what each search has found."""
    table = Table(title=title)
    for column in (
        "search",
        "trusted",
        "ε",
        "ε0",
        "bits",
        "± count",
        "found",
        "held",
        "of top 100",
        "all of top",
    ):
        table.add_column(column)
    for row in found:
        table.add_row(
            row.name,
            row.trusted,
            f"{row.spent:.3f}",
            "" if row.local_epsilon is None else f"{row.local_epsilon:.1f}",
            "" if row.bits is None else f"{row.bits:,}",
            f"{row.deviation:.1f}",
            str(row.found),
            str(row.held),
            str(row.of_hundred),
            str(row.first_missed),
        )
    Console(width=160).print(table)


def draw(by_clients: dict[int, list[Outcome]], *, path: Path) -> None:
    """Draw how many of the most frequent values each search finds."""
    figure, panels = plt.subplots(
        len(by_clients), figsize=(4.5, 4.2 * len(by_clients)), squeeze=False, layout="constrained"
    )
    for (panel,), (clients, rows) in zip(panels, by_clients.items(), strict=True):
        places = range(len(rows))
        panel.barh(places, [row.found for row in rows], color="#0072b2")
        for place, row in zip(places, rows, strict=True):
            panel.text(row.found, place, f" {row.found} ± {row.deviation:.0f}", va="center", fontsize=9)
        panel.set_yticks(places, [row.name.replace(" (", "\n(") for row in rows])
        panel.invert_yaxis()
        panel.set_xlim(0, 1.6 * max(row.found for row in rows))
        panel.set_xlabel("values found")
        panel.set_title(f"{clients:,} clients", fontsize="medium")
    figure.suptitle(f"Frequent values of 2^{BITS}, Zipf {EXPONENT},\nε = 1 for the whole search (δ = 1e-6)")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    """Search, print, and write JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--seed", type=int, default=1, help="of the data; the searches are not seeded")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    by_clients = {}
    for clients in given.clients:
        held = zipf_values(clients, seed=given.seed)
        by_clients[clients] = outcomes(held, epsilon=given.epsilon, delta=given.delta)
        show(by_clients[clients], title=f"{clients:,} clients, ({given.epsilon:g}, {given.delta:g})")
    given.output.mkdir(parents=True, exist_ok=True)
    told = {
        "epsilon": given.epsilon,
        "delta": given.delta,
        "neighbouring_relation": NEIGHBOURING_RELATION,
        "bits": BITS,
        "zipf_exponent": EXPONENT,
        "values": VALUES,
        "searches": {str(clients): [asdict(row) for row in rows] for clients, rows in by_clients.items()},
    }
    (given.output / "heavy_hitters.json").write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    draw(by_clients, path=given.output / "heavy_hitters.png")


if __name__ == "__main__":
    main()
