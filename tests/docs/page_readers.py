"""The readers of all pages but those on Opacus, on Flower and on shuffling between organisations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from code_blocks import ROOT
from ledger_rounds import drawn, people
from reading import Names, Told, has, reads, types

from shuffle_plugins.ledger import BudgetLedger

GUIDES = "docs/guides"
FEWER_IMAGES = {"dead_leaves(3000": "dead_leaves(600"}


def page(name: str) -> str:
    return (ROOT / GUIDES / name).read_text()


has(f"{GUIDES}/optimizers.md", slow=True)
has(f"{GUIDES}/frequencies.md", slow=True)
has("docs/reference/other-histograms.md", slow=True)
has(
    f"{GUIDES}/features.md",
    names=lambda: {"images": torch.rand(40, 28, 28), "labels": torch.zeros(40).long()},
    slow=True,
    instead=FEWER_IMAGES,
)
has(f"{GUIDES}/planning.md", "Sums, and clients that take part in secret", shell=True, slow=True)


@reads(
    f"{GUIDES}/audit.md",
    slow=True,
    instead={  # 40 s of processor time otherwise
        "audit_local(mechanism)": "audit_local(mechanism, num_trials=2000)",
        "num_steps=20)\nprint": "num_steps=20, num_trials=1000)\nprint",
    },
)
def audit() -> Told:
    names: Names = {}
    yield names
    assert names["result"].consistent_with(names["accountant"].epsilon(1e-2, lower=False).upper)


def items() -> Names:
    actions = np.random.default_rng(0).normal(size=(50, 3))
    np.savetxt("items.csv", actions / np.linalg.norm(actions, axis=1, keepdims=True), delimiter=",")
    return {}


has(f"{GUIDES}/bandits.md", "Before it runs", items, shell=True)


def votes() -> Names:
    held = ["red"] * 2_500 + ["green"] * 1_500 + ["blue"] * 750 + ["black"] * 250
    rows = (f"{i},{party}" for i, party in enumerate(held))
    Path("votes.csv").write_text("\n".join(["voter,party", *rows]) + "\n")
    return {}


has(f"{GUIDES}/frequencies.md", "From the command line", votes, shell=True, by_chance=("%",))
has(f"{GUIDES}/mechanisms.md", slow=True)
has(f"{GUIDES}/mechanisms.md", "Mechanisms", shell=True, slow=True)


@types(f"{GUIDES}/mechanisms.md", "From the command line")
def estimates() -> Told:
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, size=(2_000, 2)).round(3)
    lines = [f"{i // 2},{height},{weight}" for i, (height, weight) in enumerate(rows)]
    Path("samples.csv").write_text("\n".join(["user,height,weight", *lines]) + "\n")
    values = "\n".join(["red", "green", "blue"] * 40) + "\n"
    Path("values.txt").write_text(values)
    printed = yield {}
    assert printed.endswith(values)  # hidden, and recovered by the keys


@reads(f"{GUIDES}/planning.md", slow=True)
def planning() -> Told:
    names: Names = {}
    yield names
    ratio = names["noise"].signal_to_noise_ratio
    assert f"root mean square length: {ratio:.2f}\n" in page("planning.md")


has(
    f"{GUIDES}/planning.md",
    "Planning: which k, ε0 and T",
    shell=True,
    slow=True,
    instead={"-n 1e6 --target-epsilon 1": "-n 1e6 --target-epsilon 1 --rounds 1,100"},  # to save time
)


@reads(f"{GUIDES}/protocols.md", slow=True)
def protocols() -> Told:
    names: Names = {}
    yield names
    assert f"{names['protocol'].messages_per_client / 1e6:.1f} million bits" in page("protocols.md")
    assert f"it is {names['protocol'].bits_per_report / 8:.0f} bytes" in page("protocols.md")


def a_servers_ledger() -> None:
    """``budget.db``, with one round."""
    with BudgetLedger(Path("budget.db"), model="digits") as ledger:
        ledger.begin(token=bytes(16), run="run", server_round=0, worst=drawn(80))
        ledger.receive(bytes(16), actual=drawn(100), participants=people(100))
