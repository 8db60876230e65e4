"""The page on optimisers: its snippet runs as printed, and the plan beneath it is the plan it prints."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "optimizers.md").read_text()


def test_the_snippet_runs_and_prints_the_plan_beneath_it(capsys):
    code, plan = re.findall(r"^```(?:python)?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[:2]
    names: dict[str, object] = {}
    exec(compile(code, "docs/guides/optimizers.md", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.startswith(plan)
    assert names["result"].epsilon(1e-6).upper <= 1.0
