"""The page on protocols: its code runs, and its numbers for the scalar sums are the calibrated ones."""

import re
from pathlib import Path

import pytest

from shuffle_plugins.protocols import ScalarSum, SplitSum

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "protocols.md").read_text()


@pytest.mark.slow
def test_the_code_runs(capsys):
    names: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/guides/protocols.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith("scalar-sum ε ∈ [")
    assert "split-sum ε ∈ [" in printed
    assert names["estimate"].shape == (5,)
    assert f"{names['protocol'].messages_per_client / 1e6:.1f} million bits" in PAGE
    assert f"{names['protocol'].bits_per_report / 8:.0f}\nbytes" in PAGE
    assert "times the variance" in printed
    assert "multi-message budget" in printed
    with pytest.raises(ValueError, match="hand the shuffler whole reports"):
        names["protocol"].messages(names["protocol"].randomize(names["vectors"]))


@pytest.mark.parametrize(("kind", "row"), [(ScalarSum, "ScalarSum"), (SplitSum, "SplitSum")])
def test_the_table_says_what_is_calibrated(kind, row):
    protocol = kind.calibrated(cohort=10_000, epsilon=1.0, delta=1e-6)
    cells = next(line for line in PAGE.splitlines() if line.startswith(f"| `{row}`")).split(" | ")
    assert cells[2].startswith(f"{protocol.messages_per_client} ")
    assert cells[3].split()[0] == str(protocol.bits_per_report)
    assert float(cells[4]) == pytest.approx(protocol.worst_variance**0.5, rel=0.04)
