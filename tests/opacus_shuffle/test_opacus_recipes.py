"""The recipes of ``docs/guides/opacus.md`` for Lightning and for Transformers, run as they are printed."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "opacus.md"


def recipe(heading: str) -> str:
    """The Python block under a heading of the guide."""
    found = re.search(rf"^#+ {re.escape(heading)}$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert found is not None, f"docs/guides/opacus.md has no recipe under {heading!r}"
    return found.group(1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs a recipe in a folder of its own, without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")

    def execute(heading: str) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "recipe"}
        exec(compile(recipe(heading), heading, "exec"), names)
        return names

    return execute


@pytest.mark.slow
def test_lightning(run: Any) -> None:
    lightning = pytest.importorskip("lightning")
    from opacus_shuffle import ShufflePrivacyError

    names = run("With Lightning")
    assert len(names["engine"].accountant) == names["EPOCHS"] * len(names["loader"])
    assert names["engine"].get_epsilon(1e-5) <= names["TARGET_EPSILON"]
    assert names["accuracy"] > 0.6  # 0.1 is chance
    # The loader that the engine was given draws otherwise than is accounted for.
    trainer = lightning.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, barebones=True)
    with pytest.raises(ShufflePrivacyError, match="make_private"):
        trainer.fit(names["LitClassifier"](names["model"], names["optimizer"]), names["plain_loader"])


@pytest.mark.slow
def test_transformers(run: Any) -> None:
    pytest.importorskip("transformers")
    names = run("With Transformers")
    assert len(names["engine"].accountant) == names["EPOCHS"] * len(names["loader"])
    assert names["engine"].get_epsilon(1e-5) <= names["TARGET_EPSILON"]
    assert math.isfinite(names["loss"].item())
