"""New topics that the broker shows."""

from __future__ import annotations

from millrace.domain.topics.changes import NewTopic
from millrace.ports.kafka import TopicAdmin
from support.waiting import Deadline, eventually


def create_topics(admin: TopicAdmin, *topics: NewTopic) -> None:
    """Create topics and wait until the broker shows them: it acknowledges a topic a little before.

    Raises:
        DeadlinePassedError: the broker does not show all of them in time.
    """
    names = [topic.name for topic in topics]
    assert admin.create(topics) == dict.fromkeys(names)
    eventually(lambda: len(admin.observe(names)) == len(names), within=Deadline.METADATA, what="the new topics")
