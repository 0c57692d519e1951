"""Changes of topics are made on a cluster whose brokers learn of a new topic a moment after its controller."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.declaration import Pipeline, Topic
from millrace.domain.plan import Outcome, Standing
from millrace.domain.topics import NewTopic, ObservedTopic
from millrace.usecases import topics
from support.fakes_topics import FakeTopicAdmin

WANTED = Topic("shop.purchases", "shop", partitions=2, replication=1)
PIPELINE = Pipeline("shop", "owner", "millrace_kafka", (WANTED,), ())


class LateBrokers(FakeTopicAdmin):
    """Shows what is there after so many looks only."""

    late = 3

    def observe(self, names: Collection[str]) -> Mapping[str, ObservedTopic]:
        found = super().observe(names)
        return {} if self.calls.count("observe") <= self.late else found


def result_of_creating(admin: FakeTopicAdmin) -> Outcome:
    control = SimpleNamespace(holds=SimpleNamespace(list=lambda kafka: ()))
    platform: Any = SimpleNamespace(topic_admin=lambda connection="": admin, control=lambda: control)
    plan = topics.propose(platform, PIPELINE, by="test")
    assert admin.create([NewTopic(WANTED.name, 2, 1, {})]) == {WANTED.name: None}  # a runner that died, say
    [(_, result)] = topics.run_changes(platform, plan, [Standing.PENDING])
    return result.outcome


def test_a_topic_that_exists_and_is_not_shown_yet_is_waited_for() -> None:
    assert result_of_creating(LateBrokers()) is Outcome.FOUND_DONE


def test_one_that_is_never_shown_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SHOWN_WITHIN", timedelta())
    admin = LateBrokers()
    admin.late = 1_000_000
    assert result_of_creating(admin) is Outcome.FAILED
