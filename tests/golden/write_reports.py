"""Write down what reports, sums, hosts, files and messages are today.

``python tests/golden/write_reports.py [TOPIC ...] [--overwrite]`` writes ``data/reports_TOPIC.json``. What is
written is what later code is held against: do it only when a change is meant, and look at the difference.
"""

from __future__ import annotations

import argparse
import sys

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
        answers = {name: reports_topics.ask(question) for name, question in questions.items()}
        reports_answers.write(topic, answers)
        print(f"{len(answers)} answers in {reports_answers.path_of(topic)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
