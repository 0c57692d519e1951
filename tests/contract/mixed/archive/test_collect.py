"""What need not be kept: asked of a tee, let go in its chain, deleted; the rest is proven all the while."""

from __future__ import annotations

from datetime import timedelta

import pytest

from millrace.domain.archive.audits.findings import Depth
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.declaration.pipeline import Backup
from millrace.embedded.stack import Stack
from millrace.usecases.archive.audits import exit_code_of
from millrace.usecases.archive.collect import Collected, Request, collect
from support.archive.audits.worlds import AuditWorld
from support.archive.tees import Topics
from support.stack.control_databases import Databases
from support.stack.embedded import start

KEPT_SHORTLY = Backup(every=timedelta(0), max_lag=timedelta(0), keep=timedelta(0))
NOW = Request("cli:ann", "older than keep", timedelta(0))


@pytest.fixture(scope="module")
def topics(idle_stack: Stack) -> Topics:
    return Topics(start(idle_stack, "kafka", "s3", "postgres"))


def collected(world: AuditWorld, here: Incarnation, request: Request = NOW) -> Collected:
    return collect(world.topics.platform, world.backed(here.topic), here, request)


def left(world: AuditWorld, here: Incarnation) -> int:
    return sum(1 for info in world.store.list(here.prefix) if info.key.endswith(".parquet"))


def proven(world: AuditWorld, here: Incarnation) -> int:
    """The records of an archive that the closest look finds nothing wrong with."""
    kept = world.audit(here.topic, Depth.ALL, here.topic_id)
    assert (exit_code_of([kept.audit]), kept.audit.verdict) == (0, Verdict.PROVEN), kept.audit.breaches
    return kept.audit.records


def test_what_is_older_than_keep_is_asked_for_let_go_and_deleted(topics: Topics, control_databases: Databases) -> None:
    name = topics.make("kept_shortly", partitions=2)
    world = AuditWorld.of(topics, control_databases, name, backup=KEPT_SHORTLY)
    tee, here = world.tee(), world.here(name)
    for partition, value in ((0, b"a"), (1, b"b"), (0, b"c")):
        topics.produce(name, partition, [value] * 10)
        world.archive_all(tee)
    dry = collected(world, here, Request("cli:ann", "to see", timedelta(0), dry_run=True))
    assert (dry.due, dry.asked, dry.waits, dry.expired) == (30, False, False, 0)
    first, second = collected(world, here), collected(world, here)
    assert (first.due, first.asked, first.waits) == (30, True, False)
    assert (second.due, second.asked, second.waits) == (30, False, True)
    assert (left(world, here), proven(world, here)) == (3, 30)
    topics.produce(name, 0, [b"d"] * 5)
    world.archive_all(tee)  # came after it was asked for: it is kept
    tee.round()
    assert (left(world, here), proven(world, here)) == (4, 5)
    kept = collected(world, here, Request("cli:ann", "older than keep", timedelta(hours=24)))
    assert (kept.expired, left(world, here)) == (0, 4)
    done = collected(world, here)
    assert (done.expired, done.wrong, done.due, done.waits) == (3, (), 5, True)
    assert (left(world, here), proven(world, here)) == (1, 5)
    log = topics.platform.control.log.list(subject=str(here))
    assert [(entry.action, entry.outcome) for entry in reversed(log)] == [
        ("backup.collect", "begun"),
        ("backup.collect", "done"),
    ]


def test_the_archive_of_a_topic_that_is_gone_expires_too(topics: Topics, control_databases: Databases) -> None:
    name = topics.make("former", partitions=1)
    world = AuditWorld.of(topics, control_databases, name, backup=KEPT_SHORTLY)
    topics.produce(name, 0, [b"a"] * 3)
    world.archive_all(world.tee())
    here = world.here(name)
    topics.delete(name)
    topics.make("former", partitions=1)
    tee = world.tee()
    tee.round()
    assert collected(world, here).asked
    tee.round()
    done = collected(world, here)
    assert (done.expired, done.due, done.wrong) == (1, 0, ())
    assert (left(world, here), proven(world, here)) == (0, 0)


def test_of_an_archive_with_a_fault_nothing_is_asked_for_and_nothing_deleted(
    topics: Topics, control_databases: Databases
) -> None:
    name, other = topics.make("faulty", partitions=1), topics.make("beside", partitions=1)
    world = AuditWorld.of(topics, control_databases, name, other, backup=KEPT_SHORTLY)
    tee, here = world.tee(), world.here(name)
    for value in (b"a", b"b"):
        topics.produce(name, 0, [value])
        world.archive_all(tee)
    assert collected(world, here).asked
    tee.round()
    assert proven(world, here) == 0
    last = max(info.key for info in world.store.list(here.manifests))
    head = world.store.get(last)
    world.store.delete([last])
    refused = collected(world, here)
    assert refused.wrong
    assert (refused.expired, left(world, here)) == (0, 2)
    topics.produce(other, 0, [b"x"])
    world.let_go(name, 5)  # a tee whose head is gone halts this topic, and goes on with the other
    stuck = world.next_epoch(asked=lambda: [], expiries=lambda: list(world.expiries))
    world.archive_all(stuck)
    assert proven(world, world.here(other)) == 1
    world.raw.put_object(Bucket=topics.settings.s3().bucket, Key=last, Body=head)
    assert world.expiries
