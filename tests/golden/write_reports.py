"""Write down what reports, sums, hosts, files and messages are today.

``python tests/golden/write_reports.py [TOPIC ...] [--overwrite]`` writes ``data/reports_TOPIC.json``. What is
written is what later code is held against: do it only when a change is meant, and look at the difference.
Answers that differ by no more than the tests allow stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import reports_answers
import reports_topics


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", nargs="*", help=f"of {', '.join(reports_topics.TOPICS)}; all by default")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    asked = parser.parse_args()
    unknown = set(asked.topics) - set(reports_topics.TOPICS)
    if unknown:
        parser.error(f"no such topics: {', '.join(sorted(unknown))}")
    topics = asked.topics or list(reports_topics.TOPICS)
    there = [topic for topic in topics if reports_answers.path_of(topic).exists()]
    if there and not asked.overwrite:
        print(f"written already: {', '.join(there)}; pass --overwrite to replace them", file=sys.stderr)
        return 1
    for topic in topics:
        if topic in reports_topics.FILES:
            reports_topics.FILES[topic]()
        questions = reports_topics.TOPICS[topic]
        before = reports_answers.read(topic)
        answers = {name: reports_topics.ask(question) for name, question in questions.items()}
        kept = {name: before[name] for name in answers if same(answers[name], before.get(name))}
        reports_answers.write(topic, answers | kept)
        print(f"{len(answers)} answers in {reports_answers.path_of(topic)}")
    return 0


def same(found: Any, recorded: Any) -> bool:
    try:
        reports_answers.compare(found, recorded)
    except AssertionError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
