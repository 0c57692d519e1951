"""The worked example of the guide, computed again from its declaration."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from millrace.declarations import load_pipeline
from millrace.domain.formats.durations import roughly
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.groups.snapshots import LogSeen, Snapshot, TopicSeen
from millrace.domain.retention.bounds import span
from millrace.domain.topics.changes import wanted_config
from millrace.usecases.retention.sizing import TopicSizing, size
from support.fakes.groups import FakeCluster, GroupsPlatform, groups_platform
from support.groups.worlds import BEGAN

GUIDE = Path(__file__).resolve().parents[3] / "docs/guide/retention.md"
KAFKA = "millrace_kafka"
TOPIC = "orders.placed"


@pytest.fixture
def platform(tmp_path: Path) -> GroupsPlatform:
    """The declaration of the guide, with what it leaves out, beside a topic that is as declared and empty."""
    [snippet] = re.findall(r"```yaml\n(topics:\n.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "include/pipelines").mkdir(parents=True)
    (tmp_path / "include/environments").mkdir(parents=True)
    (tmp_path / "include/environments/embedded.yaml").write_text("all_topics: {replication: 3}\n")
    (tmp_path / "include/pipelines/orders.yaml").write_text(f"pipeline: orders\nowner: me\n{snippet}")
    made = groups_platform(tmp_path, BEGAN)
    declared = load_pipeline(tmp_path, "orders").topics[0]
    logs = tuple(LogSeen(0, 0, 0, None, 0) for _ in range(declared.partitions or 0))
    seen = TopicSeen("id", logs, wanted_config(declared), declared.replication or 0)
    made.clusters[KAFKA] = FakeCluster(Snapshot(BEGAN, "c", {TOPIC: seen}, {}, check_every=timedelta(minutes=5)))
    return made


def told(what: str, of: str) -> str:
    """The value that the guide's table of a partition, or of the topic, has for it."""
    text = GUIDE.read_text(encoding="utf-8")
    table = text.partition(f"| {of} | value |")[2].partition("\n\n")[0]
    found = re.search(rf"^\| {re.escape(what)} \| ([^|]+) \|", table, re.MULTILINE)
    assert found is not None, f"the guide does not tell `{what}` of {of}"
    return found[1]


def sizing(platform: GroupsPlatform) -> TopicSizing:
    [found] = size(platform, KAFKA, [TOPIC]).topics
    assert found.assumed
    return found


def test_the_worked_example_is_what_comes_out(platform: GroupsPlatform) -> None:
    found = sizing(platform)
    one = found.partitions[0]
    assert one.flow is not None
    assert one.bound.log_bytes is not None
    assert one.bound.age is not None
    assert found.settings is not None
    assert found.bound_bytes is not None
    assert found.disk_bytes is not None
    partition, topic = "one partition", "the topic"
    assert told("comes in", partition) == f"{roughly_bytes(one.flow.mean)}/s"
    assert told("a segment spans", partition) == roughly(span(found.settings, one.flow))
    assert told("oldest record at most", partition) == roughly(one.bound.age)
    assert told("log at most", partition) == roughly_bytes(one.bound.log_bytes)
    assert told("segments about", partition) == str(one.bound.segments)
    assert told("log at most", topic) == roughly_bytes(found.bound_bytes)
    assert told("on disks at most", topic) == roughly_bytes(found.disk_bytes)
    limit = found.settings.size_bytes
    assert limit is not None
    assert f"the limit by size would be {roughly_bytes(limit + found.settings.segment_bytes)}" in GUIDE.read_text()
