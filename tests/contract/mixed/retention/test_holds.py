"""Holds in the real control database and on the real broker: kept as they were asked for, ended once nobody loses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.adapters.kafka.topics import KafkaTopicAdmin
from millrace.declarations import load_pipeline
from millrace.domain.retention.holds import Hold
from millrace.domain.streams.control import Action
from millrace.embedded.stack import Stack
from millrace.errors import RefusedError
from millrace.ports.platform import Platform
from millrace.usecases.retention import holds
from millrace.usecases.topics import plan as topics
from millrace.wiring.kafka import KafkaAdapters
from millrace.wiring.platform import Adapters
from support.crash_walks import crash_at_every_call
from support.retention.cut_projects import CutProject
from support.stack.control_databases import Databases
from support.stack.faults import Life, Moment, unexpected, watched_control
from support.waiting import Deadline, eventually

KAFKA = "millrace_kafka"
NOW = datetime.now(UTC)
DAY = timedelta(days=1)
MONTH = str(30 * 86_400_000)
PLENTY = 1 << 40
FULL = pytest.mark.full
MOMENTS = (Moment.AFTER, *(pytest.param(moment, marks=FULL) for moment in (Moment.ANSWER_LOST, Moment.BEFORE)))


@pytest.fixture
def store(control_databases: Databases) -> Iterator[ControlStore]:
    """An empty control database, as the role that Millrace works as."""
    made = control_databases.create_upgraded()
    with closing(ControlStore(made.working)) as opened:
        yield opened


HOLD = Hold(
    kafka=KAFKA,
    topic="shop.purchases",
    topic_id="id-1",
    before={"retention.ms": None, "retention.bytes": "5"},
    found={"retention.ms": "100", "retention.bytes": "5"},
    after={"retention.ms": "200", "retention.bytes": "50"},
    began_at=NOW,
    until=NOW + DAY,
    actor="cli:ann",
    reason="wrong totals",
)


def ended(store: ControlStore, hold: Hold) -> bool:
    return store.holds.end(hold, at=NOW, actor="dag:x", reason="over", after=dict(hold.found), outcome="done")


def test_what_is_stored_is_what_comes_back(store: ControlStore) -> None:
    made = store.holds.begin(HOLD)
    assert made.identity > 0
    assert replace(made, identity=0) == HOLD
    assert store.holds.list() == store.holds.list(KAFKA) == (made,)
    assert store.holds.list("other_kafka") == ()


def test_begun_twice_it_is_one_hold_until_the_later_end_with_what_was_before_the_first(store: ControlStore) -> None:
    first = store.holds.begin(HOLD)
    more = replace(
        HOLD,
        before={"retention.ms": "200", "retention.bytes": "50"},
        found={"retention.ms": "200", "retention.bytes": "50"},
        after={"retention.ms": "-1", "retention.bytes": "40"},
        until=NOW + DAY / 2,
        actor="cli:bob",
        reason="more of them",
    )
    second = store.holds.begin(more)
    assert (second.identity, second.before, second.found, second.began_at) == (
        first.identity,
        HOLD.before,
        HOLD.found,
        NOW,
    )
    assert (second.until, second.after) == (NOW + DAY, {"retention.ms": "-1", "retention.bytes": "50"})
    assert (second.actor, second.reason) == ("cli:bob", "more of them")
    assert store.holds.list() == (second,)


def test_a_topic_that_was_made_again_is_held_anew(store: ControlStore) -> None:
    store.holds.begin(HOLD)
    again = store.holds.begin(replace(HOLD, topic_id="id-2"))
    assert store.holds.list() == (again,)
    assert len(store.holds.list(only_open=False)) == 2
    [entry] = store.log.list(subject="shop.purchases")
    assert (entry.action, entry.outcome) == ("topic.hold.end", "the topic was deleted and made again")


def test_it_ends_once_and_the_log_says_so_once(store: ControlStore) -> None:
    made = store.holds.begin(HOLD)
    assert [ended(store, made), ended(store, made)] == [True, False]
    assert store.holds.list() == ()
    [entry] = store.log.list(subject="shop.purchases")
    assert (entry.action, entry.actor, entry.before, entry.after) == (
        "topic.hold.end",
        "dag:x",
        HOLD.after,
        HOLD.found,
    )
    assert store.holds.begin(HOLD).identity > made.identity


def test_one_at_a_time_is_at_the_hold_of_a_topic(store: ControlStore) -> None:
    with store.holds.working(KAFKA, "a") as mine, store.holds.working(KAFKA, "a") as second:
        assert (mine, second) == (True, False)
        with store.holds.working(KAFKA, "b") as other:
            assert other


@pytest.fixture
def project(kafka: Stack, postgres: Stack, tmp_path: Path) -> CutProject:
    """A topic that keeps 30 days, with 60 records of 29 days ago and 40 of now in each partition."""
    made = CutProject(tmp_path / "project", kafka)
    made.provision("{time: 30d}")
    made.produce([100] * 60, age=timedelta(days=29))
    made.produce([100] * 40)
    return made


def told(project: CutProject) -> list[Action]:
    return [entry for entry in project.platform.control.log.list(subject=project.topic) if "hold" in entry.action]


def held(project: CutProject, platform: Platform | None = None) -> holds.Held:
    return holds.hold(
        platform or project.platform, project.topic, DAY, actor="test:me", reason="a test", budget_bytes=PLENTY, now=NOW
    )


def end_due(project: CutProject, after: timedelta, platform: Platform | None = None) -> list[str]:
    own = load_pipeline(project.root, project.name).topics
    return holds.end_due(platform or project.platform, KAFKA, own, actor="test:me", now=NOW + after)


def keeps(project: CutProject, value: str | None) -> None:
    """Wait until the broker shows what is set on the topic itself."""
    admin = project.platform.kafka.topics()
    eventually(
        lambda: admin.observe([project.topic])[project.topic].config.get("retention.ms") == value,
        within=Deadline.METADATA,
        what=f"retention.ms {value}",
    )


def test_a_hold_raises_what_is_kept_and_plans_leave_it_until_its_readers_have_read(project: CutProject) -> None:
    project.commit(project.group, [10, 60])
    made = held(project)
    keeps(project, made.hold.after["retention.ms"])
    assert int(made.hold.after["retention.ms"]) >= int(MONTH) + 86_400_000
    assert made.need_bytes > 0
    declared = load_pipeline(project.root, project.name)
    assert not topics.propose(project.platform, declared, by="test").changes
    assert not topics.propose(project.platform, project.declare("{time: 1d}"), by="test").changes
    project.declare("{time: 30d}")
    [line] = end_due(project, 2 * DAY)  # by then the oldest are 31 days old
    assert f"stream {project.name}.s would lose 50 records" in line
    subject = f"{KAFKA}/{project.topic}"
    alarms = [each for each in project.platform.control.alarms.list() if each.subject == subject]
    assert [each.kind for each in alarms] == ["topic.hold"]
    with pytest.raises(RefusedError, match="would lose 50 records"):
        holds.end(project.platform, project.topic, actor="test:me", reason="a test", now=NOW + 2 * DAY)
    keeps(project, made.hold.after["retention.ms"])
    project.commit(project.group, [60, 60])
    assert "its hold has ended" in end_due(project, 2 * DAY)[0]
    keeps(project, MONTH)
    assert not [each for each in project.platform.control.alarms.list() if each.subject == subject]
    assert [entry.action for entry in told(project)] == ["topic.hold.end", "topic.hold"]


def test_what_was_the_brokers_default_is_that_again(project: CutProject) -> None:
    admin, default = project.platform.kafka.topics(), {"retention.ms": None}
    path = project.root / f"include/pipelines/{project.name}.yaml"
    path.write_text(path.read_text().replace("retention: {time: 30d}\n", "\n"))
    assert admin.set_config({project.topic: default}) == {project.topic: None}
    keeps(project, None)
    held(project)
    assert project.setting("retention.ms") != MONTH
    project.commit(project.group, [100, 100])
    holds.end(project.platform, project.topic, actor="test:me", reason="a test")
    keeps(project, None)


@pytest.mark.parametrize("moment", MOMENTS)
def test_who_dies_at_any_call_of_a_hold_leaves_one_that_holds_and_ends(
    kafka: Stack, postgres: Stack, tmp_path: Path, moment: Moment
) -> None:
    """All lives are of one project, so that none ends what another has begun."""

    def once(life: Life) -> list[str]:
        project = CutProject(tmp_path / "project", kafka, stream=None)
        project.provision("{time: 30d}")
        settings = project.platform.settings
        with closing(ControlStore(settings.postgres("millrace_control"))) as control:
            admin = life.watch("admin", KafkaTopicAdmin(settings.kafka()))
            mortal = Adapters(
                settings, control=watched_control(life, control), kafka=KafkaAdapters(settings, {KAFKA: admin})
            )

            def act() -> None:
                made = held(project, mortal)
                keeps(project, made.hold.after["retention.ms"])
                end_due(project, 2 * DAY, mortal)

            died = life.lived(act)
        return unexpected(life, died) + go_on(project)

    tried = crash_at_every_call(moment, once)
    tried.must_be_well("holds.begin", "admin.set_config", "log.append", "holds.end")


def go_on(project: CutProject) -> list[str]:
    """What was wrong after a life that had asked for a hold and ended it, or begun to."""
    control, wrong = project.platform.control, []

    def rows() -> list[Hold]:
        return [each for each in control.holds.list(only_open=False) if each.topic == project.topic]

    if any(each.ended_at is None for each in rows()):  # held: run again, it is as it was asked for
        eventually(lambda: held(project), within=Deadline.METADATA, what="the right to it", ignoring=(RefusedError,))
        keeps(project, rows()[0].after["retention.ms"])
        eventually(
            lambda: any("has ended" in line for line in end_due(project, 2 * DAY)),
            within=Deadline.METADATA,
            what="the end of the hold",
        )
    keeps(project, MONTH)
    entries = [entry.action for entry in told(project)]
    found = rows()
    if len(found) > 1 or any(each.before["retention.ms"] != MONTH or each.ended_at is None for each in found):
        wrong.append(f"the holds are {found}")
    if entries.count("topic.hold.end") != len(found) or (found and "topic.hold" not in entries):
        wrong.append(f"the action log says {entries} of {len(found)} holds")
    return wrong
