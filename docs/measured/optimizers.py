"""Private convex optimisation: what its rounds cost, and what its methods reach."""

from __future__ import annotations

import math
from typing import Any

from measured.parts import Sentences, Tables, result, table
from shuffle_plugins.accounting import Round, SampledRecordsRound, ShuffleAccountant, ShuffleRound
from shuffle_plugins.accounting.published import shuffles
from shuffle_plugins.core import rounded

OPTIMIZERS = "docs/guides/optimizers.md"
BENCHMARKS = "docs/reference/benchmarks.md"
DELTA = 1e-6
_RECORDS = ((1, 1), (20, 1), (20, 2), (20, 5), (20, 20))
_NORMS = {"l2": "ℓ2", "linf": "ℓ∞", "l1": "ℓ1"}


def _cost(kind: Round, num_steps: int = 1) -> float:
    """Certified ε of some rounds, from above."""
    accountant = ShuffleAccountant()
    accountant.step(kind, num_steps=num_steps)
    return accountant.epsilon(DELTA, lower=False).upper


def records() -> str:
    """ε of one record, by how many records a client has and how many it reports on, computed."""
    asked: dict[str, Any] = {
        "local_epsilon": 1.0,
        "population": 10_000,
        "cohort": 1_000,
        "channel_fixed": True,
    }

    def cost(records: int, samples: int, **adversary: str) -> str:
        kind = SampledRecordsRound(
            **asked, **adversary, records_per_client=records, samples_per_client=samples
        )
        return rounded(_cost(kind, 100), up=True, digits=3)

    whom: dict[str, dict[str, str]] = {
        "an observer of the model": {},
        "the server, of a client that it drew every time": {"adversary": "server"},
    }
    return table(
        ("ε at most, against", *(f"m = {m}, s = {s}" for m, s in _RECORDS)),
        ((who, *(cost(m, s, **adversary) for m, s in _RECORDS)) for who, adversary in whom.items()),
    )


def norms() -> str:
    """Excess loss in each norm beside its bound."""

    def row(of: dict[str, Any]) -> tuple[str, ...]:
        one, two, own = of["methods"].values()
        bits = dict.fromkeys(str(each["bits_per_report"]) for each in (one, two))
        return (
            _NORMS[of["norm"]],
            ", ".join(rounded(each["local_epsilon"], up=True, digits=3) for each in (one, two)),
            ", ".join(bits),
            f"{of['excess_at_the_start']:.3f}",
            *(f"{each['excess']:.4f}" for each in (one, two, own)),
            f"{one['bound']:.3g}",
        )

    head = (
        "norm",
        "ε0 for s = 1, 2",
        "bits per report",
        "excess loss at the start",
        "CLDP-SGD, s = 1",
        "s = 2",
        "DSS-SGD, s = 1",
        "bound, s = 1",
    )
    return table(head, (row(of) for of in result("benchmarks/optimizer_norms")["norms"]))


TABLES: Tables = {OPTIMIZERS: {"records": records}, BENCHMARKS: {"norms": norms}}

_LOGISTIC = (
    ("P_GD", "P_GD"),
    ("CLDP-SGD", "CLDP-SGD"),
    ("P_AGD", "P_AGD"),
    ("SGD over a permutation", "permuted SGD"),
    ("SGD by batches of reports", "SGD by reports, one epoch"),
    ("P_SGD", "P_SGD"),
    ("noisy SGD over a permutation", "permuted noisy SGD"),
    ("local", "local SGD"),
    ("not private", "not private"),
)


def _convex() -> list[str]:
    """Sentences on the digits."""
    found = result("examples/convex")["results"]
    rows = {(task, row["name"], row["epsilon"]): row for task in found for row in found[task]}
    private = [row for row in rows.values() if row["certified"] is not None]

    def reached(task: str, name: str, epsilon: float = 1.0) -> float:
        return float(100 * rows[task, name, epsilon]["accuracy"])

    logistic = [f"{title} {reached('logistic regression', name):.1f} %" for title, name in _LOGISTIC]
    svm = {
        title: f"{reached('SVM', name):.1f} %"
        for title, name in (
            ("CLDP-SGD", "CLDP-SGD"),
            ("P_AGD", "P_AGD, smoothed"),
            ("P_GD", "P_GD, smoothed"),
            ("P_SGD", "P_SGD"),
            ("local", "local SGD"),
            ("not private", "not private"),
        )
    }
    assert svm["P_AGD"] == svm["P_GD"]
    error = math.ceil(100 * max(row["accuracy_error"] for row in private))
    return [
        f"At ε = 1: {', '.join(logistic[:-1])}, {logistic[-1]} for logistic regression",
        f"CLDP-SGD {svm['CLDP-SGD']}, P_AGD and P_GD {svm['P_GD']}, P_SGD {svm['P_SGD']}, "
        f"local {svm['local']}, not private {svm['not private']} for the SVM",
        f"with standard errors of up to {error} points",
    ]


def sentences() -> Sentences:
    """Pieces of text with what methods cost and reach."""
    records_run = result("examples/flower_records")
    setting, found = records_run["setting"], records_run["found"]
    by_pair, by_clones = (
        [
            rounded(cost, up=True, digits=3)
            for cost in (
                _cost(ShuffleRound(local_epsilon=level, population=10_000, cohort=1, sampling="epoch"))
                if who == "pair"
                else shuffles.clone_pair(local_epsilon=level, cohort=10_000).epsilon(DELTA)[0]
                for level in (2.0, 4.0)
            )
        ]
        for who in ("pair", "clones")
    )
    trained = result("benchmarks/optimizer_norms")["setting"]
    return {
        BENCHMARKS: [
            *_convex(),
            f"ε is {by_pair[0]} (ε0 = 2) and {by_pair[1]} (ε0 = 4); clones, by which the paper accounts for "
            f"it, give {' and '.join(by_clones)}",
            f"{found['clients']:,} clients of {found['records_per_client']} records, "
            f"{found['rounds']} rounds of {setting['cohort']} clients at "
            f"ε0 = {setting['local_epsilon']:g} and step "
            f"{setting['learning_rate']:g} give {100 * found['accuracy']:.1f} % at "
            f"ε = {rounded(found['epsilon_of_a_record'], up=True, digits=3)} for one record, where the same "
            f"run costs {rounded(found['epsilon_of_a_client'], up=True, digits=3)} for all of a client's "
            "data",
            f"Logistic regression with d = {trained['features']} on {trained['clients']:,} clients of "
            f"{trained['records']} records of norm 1, radius {trained['radius']:g}, {trained['steps']} steps "
            f"of {trained['cohort']} clients at ε = {trained['epsilon']:g} for one record and δ = 1e-6, "
            f"means of {trained['repeats']} runs",
        ],
    }
