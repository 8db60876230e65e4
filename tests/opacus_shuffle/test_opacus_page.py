"""What docs/guides/opacus.md prints is what examples/opacus_mnist.py runs."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from opacus.accountants import PRVAccountant
from opacus_shuffle import SubsampledShufflePLDAccountant
from scipy.stats import binom

from shuffle_plugins.mechanisms import BinaryRandomizedResponse
from shuffle_plugins.protocols import VectorSum

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "opacus.md").read_text()


def recipes() -> dict[tuple[str, str], dict[str, Any]]:
    """RECIPES of the example, read from its source: it needs packages that tests do without."""
    tree = ast.parse((ROOT / "examples" / "opacus_mnist.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RECIPES":
            assert isinstance(node.value, ast.Dict)
            return {
                ast.literal_eval(key): {each.arg: ast.literal_eval(each.value) for each in call.keywords}
                for key, call in zip(node.value.keys, node.value.values, strict=True)
            }
    raise AssertionError("the example has no RECIPES")


def test_the_two_relations_and_the_mixed_rows_have_the_numbers_that_the_page_says() -> None:
    theirs, ours = PRVAccountant(), SubsampledShufflePLDAccountant()
    for _ in range(200):
        theirs.step(noise_multiplier=4.0, sample_rate=0.1)
    vectors = VectorSum.with_noise(dim=6_120, cohort=6_000, noise_multiplier=4.0)
    ours.record(vectors.round(population=60_000, cohort=6_000), num_steps=200)
    add_remove, replace_one = (math.ceil(each.get_epsilon(1e-5) * 100) / 100 for each in (theirs, ours))
    assert f"ε ≤ {add_remove:.2f} in Opacus's books (PRV, add/remove) and ε ≤ {replace_one:.2f} here" in PAGE

    one = BinaryRandomizedResponse(local_epsilon=4.0).round(population=10_000, cohort=10_000)
    ours = SubsampledShufflePLDAccountant()
    ours.record(one)
    certified = ours.get_epsilon(1e-5)
    low = 1 / (math.exp(4) + 1)
    others = binom.pmf(np.arange(10_001), 9_998, low)
    with_, without = (np.convolve(others, binom.pmf(np.arange(3), 2, p)) for p in (1 - low, low))
    true = np.maximum(without - math.exp(certified) * with_, 0).sum()
    assert f"({certified:.4f}, 1e-5) is certified" in PAGE
    assert f"have δ ≥ {true:.1e}".replace("e-0", "e-") in PAGE


def printed_calls() -> dict[str, dict[str, Any]]:
    """Arguments of the calls in the page's whole program that are plain values, by the function's name."""
    found = re.search(r"<!-- recipe -->\n```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    calls: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(found[1])):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rsplit(".", 1)[-1]
            values = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            calls[name] = {**calls.get(name, {}), **values}
            calls[name]["positional"] = [a.value for a in node.args if isinstance(a, ast.Constant)]
    return calls


def row(label: str) -> list[str]:
    """Cells of a row of the page's table of recipes."""
    line = next(each for each in PAGE.splitlines() if each.startswith(f"| {label}"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_printed_program_is_the_examples_first_recipe() -> None:
    recipe, calls = recipes()["features", "privunit"], printed_calls()
    private = calls["make_private_with_epsilon"]
    assert private["randomizer"] == "privunit"
    assert private["num_steps"] == recipe["num_steps"]
    assert private["max_grad_norm"] == recipe["max_grad_norm"]
    assert private["target_epsilon"] == 2.93
    assert private["target_delta"] == 1e-5
    assert calls["SGD"]["lr"] == recipe["learning_rate"]
    assert calls["SGD"]["momentum"] == recipe["momentum"]
    assert calls["DataLoader"]["batch_size"] == recipe["batch_size"]
    assert calls["range"]["positional"] == [recipe["num_steps"] // (60_000 // recipe["batch_size"])]


def test_the_printed_table_is_both_recipes() -> None:
    both = [recipes()["features", name] for name in ("privunit", "vector-sum")]
    assert row("`batch_size`") == [
        f"{r['batch_size']:,}, {r['num_steps']} ({r['num_steps'] * r['batch_size'] // 60_000} epochs)"
        for r in both
    ]
    assert row("`lr`") == [f"{r['learning_rate']:g}, {r['momentum']:g}, {r['max_grad_norm']:g}" for r in both]
