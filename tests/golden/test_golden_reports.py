"""What reports, sums, hosts, files and messages were before is what they are now."""

from __future__ import annotations

import pytest
import reports_answers
import reports_topics

ANSWERS = {topic: reports_answers.read(topic) for topic in reports_topics.TOPICS}
CASES = [(topic, name) for topic, asked in reports_topics.TOPICS.items() for name in asked]


@pytest.mark.parametrize(("topic", "name"), CASES, ids=[f"{topic}-{name}" for topic, name in CASES])
def test_the_answer_has_not_moved(topic: str, name: str) -> None:
    found = reports_topics.ask(reports_topics.TOPICS[topic][name])
    reports_answers.compare(found, ANSWERS[topic][name])


@pytest.mark.parametrize("topic", reports_topics.TOPICS)
def test_every_answer_is_asked_for(topic: str) -> None:
    assert set(ANSWERS[topic]) == set(reports_topics.TOPICS[topic])
