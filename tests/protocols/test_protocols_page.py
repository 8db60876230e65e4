"""The page on protocols: its numbers for the scalar sums are the calibrated ones."""

from pathlib import Path

import pytest

from shuffle_plugins.protocols import ScalarSum, SplitSum

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "protocols.md").read_text()


@pytest.mark.parametrize(("kind", "row"), [(ScalarSum, "ScalarSum"), (SplitSum, "SplitSum")])
def test_the_table_says_what_is_calibrated(kind, row):
    protocol = kind.calibrated(cohort=10_000, epsilon=1.0, delta=1e-6)
    cells = next(line for line in PAGE.splitlines() if line.startswith(f"| `{row}`")).split(" | ")
    assert cells[2].startswith(f"{protocol.messages_per_client} ")
    assert cells[3].split()[0] == str(protocol.bits_per_report)
    assert float(cells[4]) == pytest.approx(protocol.worst_variance**0.5, rel=0.04)
