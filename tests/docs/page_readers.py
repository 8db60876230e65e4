"""The readers of all pages but those on Opacus, on Flower and on shuffling between organisations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from code_blocks import ROOT
from ledger_rounds import drawn, people
from reading import Told, reads, types

from shuffle_plugins.ledger import BudgetLedger

GUIDES = "docs/guides"


def page(name: str) -> str:
    return (ROOT / GUIDES / name).read_text()


@reads(f"{GUIDES}/accounting.md")
def accounting() -> Told:
    printed = yield {}
    assert printed.startswith("ε ∈ [0.3841, 0.3845] at δ = 1e-05 (replace-one neighbours, ")


@types(f"{GUIDES}/accounting.md", "In a shell")
def accounting_in_a_shell() -> Told:
    printed = yield {}
    assert "ε ∈ [0.3841, 0.3845]" in printed


@reads(
    f"{GUIDES}/audit.md",
    slow=True,
    instead={  # 40 s of processor time otherwise
        "audit_local(mechanism)": "audit_local(mechanism, num_trials=2000)",
        "num_steps=20)\nprint": "num_steps=20, num_trials=1000)\nprint",
    },
)
def audit() -> Told:
    names = {}
    printed = yield names
    assert printed.startswith("ε ≥ ")
    assert names["result"].consistent_with(names["accountant"].epsilon(1e-2, lower=False).upper)


@reads(f"{GUIDES}/bandits.md")
def bandits() -> Told:
    names = {}
    printed = yield names
    assert "replace-one neighbours" in printed
    assert names["bandit"].epsilon.upper <= 1
    assert names["world"].gaps[names["bandit"].best] < 0.3


@types(f"{GUIDES}/bandits.md", "Before it runs")
def bandits_in_a_shell() -> Told:
    actions = np.random.default_rng(0).normal(size=(50, 3))
    np.savetxt("items.csv", actions / np.linalg.norm(actions, axis=1, keepdims=True), delimiter=",")
    printed = yield {}
    assert "ε0" in printed


@reads(f"{GUIDES}/features.md", slow=True, instead={"dead_leaves(3000": "dead_leaves(600"})
def features() -> Told:
    names = {"images": torch.rand(40, 28, 28), "labels": torch.zeros(40).long()}
    yield names
    assert names["rows"].shape[0] == 40
    assert names["rows"].isfinite().all()
    assert not names["model"].weight.any()


@reads(f"{GUIDES}/frequencies.md", slow=True)
def frequencies() -> Told:
    names = {}
    yield names
    assert names["accountant"].epsilon(1e-6).upper > 1
    assert set(names["found"].values.tolist()) == {123_456}


@types(f"{GUIDES}/frequencies.md", "From the command line", by_chance=("%",))
def frequencies_in_a_shell() -> Told:
    held = {"red": 2_500, "green": 1_500, "blue": 750, "black": 250}
    votes = [f"{i},{party}" for i, party in enumerate(party for party, n in held.items() for _ in range(n))]
    Path("votes.csv").write_text("\n".join(["voter,party", *votes]) + "\n")
    printed = yield {}
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if "% to" in line}
    assert list(rows) == list(held)
    for party, count in held.items():
        assert float(rows[party][1].replace(",", "")) == pytest.approx(count, abs=400)


@reads(f"{GUIDES}/mechanisms.md", slow=True)
def mechanisms() -> Told:
    names = {}
    yield names
    assert names["mean"].shape == (13_706,)
    assert names["reports"].bits_per_report == 128
    assert names["counts"].shape == (1000,)
    assert names["found"].local_epsilon == 4.0
    assert names["found"].mean == pytest.approx(0.3, abs=0.05)


@types(f"{GUIDES}/mechanisms.md", "Mechanisms", slow=True)
def mechanisms_in_a_shell() -> Told:
    printed = yield {}
    assert "privunit" in printed
    assert Path("choice.png").stat().st_size > 10_000


@types(f"{GUIDES}/mechanisms.md", "From the command line")
def estimates() -> Told:
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, size=(2_000, 2)).round(3)
    lines = [f"{i // 2},{height},{weight}" for i, (height, weight) in enumerate(rows)]
    Path("samples.csv").write_text("\n".join(["user,height,weight", *lines]) + "\n")
    values = ["red", "green", "blue"] * 40
    Path("values.txt").write_text("\n".join(values) + "\n")
    printed = yield {}
    assert printed.endswith("\n".join(values) + "\n")
    assert "ε0" in printed


@reads(f"{GUIDES}/optimizers.md", slow=True)
def optimizers() -> Told:
    names = {}
    yield names
    assert names["result"].epsilon(1e-6).upper <= 1.0


@reads(f"{GUIDES}/personalized.md")
def personalized() -> Told:
    names = {}
    yield names
    assert list(names["changed"]) == ["weight", "bias", "dissimilarity"]
    assert all(bool(change.any()) for change in names["changed"].values())


@reads(f"{GUIDES}/planning.md", slow=True)
def planning() -> Told:
    names = {}
    yield names
    assert names["found"].best.epsilon.upper <= 1.0
    noise = names["noise"]
    assert f"root mean square length: {noise.signal_to_noise_ratio:.2f}\n" in page("planning.md")
    assert noise.signal_to_noise_ratio_over(50) == pytest.approx(50**0.5 * noise.signal_to_noise_ratio)
    assert all(row.epsilon.upper <= 2.93 for row in names["sums"].rows)
    assert names["recipe"].cohort == 6_000


@types(f"{GUIDES}/planning.md", "Planning: which k, ε0 and T", slow=True)
def planning_in_a_shell() -> Told:
    yield {}
    assert Path("plan.png").stat().st_size > 10_000


@types(f"{GUIDES}/planning.md", "Sums, and clients that take part in secret", slow=True)
def planning_of_sums_in_a_shell() -> Told:
    printed = yield {}
    assert "who draws" in printed


@reads(f"{GUIDES}/protocols.md", slow=True)
def protocols() -> Told:
    names = {}
    printed = yield names
    assert printed.startswith("scalar-sum ε ∈ [")
    assert "split-sum ε ∈ [" in printed
    assert names["estimate"].shape == (5,)
    assert f"{names['protocol'].messages_per_client / 1e6:.1f} million bits" in page("protocols.md")
    assert f"{names['protocol'].bits_per_report / 8:.0f}\nbytes" in page("protocols.md")
    assert "times the variance" in printed
    assert "multi-message budget" in printed
    with pytest.raises(ValueError, match="hand the shuffler whole reports"):
        names["protocol"].messages(names["protocol"].randomize(names["vectors"]))


def a_servers_ledger() -> None:
    """``budget.db``, with one round."""
    with BudgetLedger(Path("budget.db"), model="digits") as ledger:
        ledger.begin(token=bytes(16), run="run", server_round=0, worst=drawn(80))
        ledger.receive(bytes(16), actual=drawn(100), participants=people(100))
