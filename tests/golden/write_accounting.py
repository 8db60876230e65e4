"""Write the accounting's answers of today into ``data``: ``python tests/golden/write_accounting.py``.

The data are for comparing later code with earlier code, so a file that is there is left alone unless
``--overwrite`` is given; then answers that differ by no more than the tests allow stay as they are.
``--only TEXT`` limits what is written anew to files whose name has that text in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from accountant_questions import SAVED, STATES
from accounting_questions import SUBJECTS
from answers import DATA, answer, differences, plain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overwrite", action="store_true", help="replace what was recorded before")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of a file's name")
    given = parser.parse_args()
    wanted = {DATA / f"{name}.json": asked for name, asked in SUBJECTS.items() if given.only in name}
    write_states = given.only in SAVED.name
    there = [SAVED.name] * (write_states and SAVED.exists())
    there += [path.name for path in wanted if path.exists()]
    if there and not given.overwrite:
        print(f"{', '.join(there)}: recorded already; --overwrite replaces it", file=sys.stderr)
        return 1
    DATA.mkdir(exist_ok=True)
    if write_states:
        _write(SAVED, {name: plain(state()) for name, state in STATES.items()})
    for path, questions in wanted.items():
        before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        answers = {}
        for name, question in questions.items():
            began = time.perf_counter()
            answers[name] = answer(question)
            took = time.perf_counter() - began
            refused = isinstance(answers[name], dict) and set(answers[name]) == {"raises"}
            if refused or took > 1:
                print(f"{name}: {took:.1f} s{', refused' if refused else ''}")
        kept = {n: before[n] for n in answers if n in before and not list(differences(answers[n], before[n]))}
        _write(path, answers | kept)
    return 0


def _write(path: Path, values: dict[str, Any]) -> None:
    """One line for each value: a change shows which."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{path.name}: {len(values)} answers")


if __name__ == "__main__":
    sys.exit(main())
