"""What the command line answers in JSON, by subcommand."""

from __future__ import annotations

import contextlib
import io
import json
from functools import partial
from typing import Any

from answers import Questions

from shuffle_plugins import cli
from shuffle_plugins.accounting import Sampling

QUESTIONS = Questions()

_PROSE = ("source", "summary", "reason", "warnings")
"""Words for people: free to change."""


def said(*arguments: str) -> dict[str, Any]:
    """Exit status, and the JSON that was printed; nothing for a refusal."""
    printed, aside = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(aside):
        status = cli.main([*arguments, "--json"])
    text = printed.getvalue()
    return {"status": status, "answer": _without_prose(json.loads(text)) if text.strip() else None}


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_prose(item) for key, item in value.items() if key not in _PROSE}
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


_QUESTION = "-n 2000 -k 200 -e 1 -t 20 -d 1e-5"
_LINES = {
    "epsilon": f"epsilon {_QUESTION}",
    "epsilon, all": f"epsilon {_QUESTION} --all",
    "epsilon, server": f"epsilon {_QUESTION} --adversary server",
    "epsilon, privunit": f"epsilon {_QUESTION} --mechanism privunit --dim 50",
    "epsilon, no dim": f"epsilon {_QUESTION} --mechanism k-rr",
    "epsilon, local delta": f"epsilon {_QUESTION} --local-delta 1e-10",
    "compare": "compare -n 500 -k 500 -e 0.3,0.4 -t 3 -d 1e-5 --sampling full",
    "calibrate": "calibrate --target-epsilon 0.7 -d 1e-5 -n 2000 -k 200 -t 20",
    "calibrate, rounds": "calibrate --target-epsilon 0.7 -d 1e-5 -n 2000 -k 200 -e 1 --solve rounds",
    "calibrate, cohort": "calibrate --target-epsilon 0.7 -d 1e-5 -n 500 -e 0.5 -t 5 --solve cohort",
    "plan": "plan -n 400 --target-epsilon 0.5 -d 1e-5 --dim 20 --mechanism l2-block -t 2 -k 40,400",
    "mechanisms": "mechanisms",
    "mechanisms, costs": "mechanisms --dim 30 -e 2",
    "mechanisms, categories": "mechanisms --dim 30 -e 2 --norm categories",
}
for _scheme in (Sampling.POISSON, Sampling.EPOCH):
    _LINES[f"epsilon, {_scheme}"] = f"epsilon {_QUESTION} --sampling {_scheme}"
for _name, _line in _LINES.items():
    QUESTIONS.add(_name, partial(said, *_line.split()))
