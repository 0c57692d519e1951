"""Changes of topics are made on a cluster whose brokers learn of a new topic a moment after its controller."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.domain.declaration.pipeline import Pipeline, Topic
from millrace.domain.plans.plan import Outcome, Standing
from millrace.domain.topics.changes import NewTopic, ObservedTopic
from millrace.usecases.topics import plan as topics
from support.fakes.platform import PartsPlatform
from support.fakes.topics import DEFAULTS, FakeTopicAdmin

WANTED = Topic("shop.purchases", "shop", partitions=2, replication=1)
PIPELINE = Pipeline("shop", "owner", "millrace_kafka", (WANTED,), ())


class LateBrokers(FakeTopicAdmin):
    """Shows what is there after so many looks only; until then what was there at first."""

    late = 3

    def __init__(self, *topics: ObservedTopic) -> None:
        super().__init__(topics)
        self.first = dict(self.topics)

    def observe(self, names: Collection[str]) -> Mapping[str, ObservedTopic]:
        found = super().observe(names)
        seen = self.first if self.calls.count("observe") <= self.late else found
        return {name: topic for name, topic in seen.items() if name in names}


def platform_of(admin: FakeTopicAdmin) -> Any:
    control = SimpleNamespace(holds=SimpleNamespace(list=lambda kafka: ()))
    return PartsPlatform(kafka_topics=lambda connection="": admin, control=control)


def result_of_creating(admin: FakeTopicAdmin) -> Outcome:
    platform = platform_of(admin)
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


def test_what_is_told_as_done_is_found_done_by_the_next_runner() -> None:
    """A setting may be made twice without an error, so only what the brokers show keeps it from being told twice."""
    admin = LateBrokers(ObservedTopic(WANTED.name, "id-1", 2, 1, {}, dict(DEFAULTS)))
    kept = replace(WANTED, config=(("segment.ms", "70000"),))
    platform = platform_of(admin)
    plan = topics.propose(platform, replace(PIPELINE, topics=(kept,)), by="test")
    [(_, result)] = topics.run_changes(platform, plan, topics.look(platform, plan)[1])
    assert result.outcome is Outcome.DONE
    [(_, again)] = topics.run_changes(platform, plan, topics.look(platform, plan)[1])  # who took over
    assert again.outcome is Outcome.FOUND_DONE
    assert admin.calls.count("set_config") == 1
