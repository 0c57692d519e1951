"""Checks of a stream's table in real databases: what is proven, looked at again, alarmed, accepted and kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.adapters.quality.evidence import QualityEvidence
from millrace.adapters.sinks.postgres.reader import SinkReader
from millrace.domain.alarms.extent import Extent
from millrace.domain.declaration.pipeline import Pipeline, PostgresSink, Stream
from millrace.domain.quality.evidence import document_of, documents_of
from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.results import Freshness, Gain, Outcome, QualityCheck, RuleResult, SourceAt, Verdict
from millrace.domain.quality.rules import Fresh, NotNull, Query, Range, RowCount, Rule, Severity, StreamQuality, Volume
from millrace.domain.rewind.time_travel import PartitionTimes, RecordAt
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import RefusedError, UnreachableError, UsageError
from millrace.usecases.quality import check as quality
from millrace.usecases.quality.check import check
from support.checks.tiers import examples
from support.fakes.objects import MemoryStore
from support.fakes.platform import GroupedPlatform
from support.quality.sinks import TOPIC, TOPIC_ID, Sink, open_sink

if TYPE_CHECKING:
    from support.stack.control_databases import Databases

HOUR = timedelta(hours=1)
BEGAN = datetime(2036, 5, 4, 12, tzinfo=UTC)  # after any alarm was opened: one that is newer than a look stays
TABLE = "quality.rows"
NAME = "shop.purchases"
GIVEN = Rule("given", NotNull("customer"))
SANE = Rule("sane", Range("amount", 0, 1000))
MILD = Rule("mild", Range("quantity", 1, 5), Severity.WARN)
PARTITIONS = [TopicPartition(TOPIC, TOPIC_ID, number) for number in range(4)]


class Bucket(MemoryStore):
    """A bucket that may be away."""

    away = False

    def create(self, key: str, data: bytes) -> Any:
        if self.away:
            raise UnreachableError("the bucket does not answer")
        return super().create(key, data)


@dataclass
class Shop(GroupedPlatform):
    """A stream with a real sink and control database; its bucket is in memory, and Kafka says what it is told."""

    sink_: Sink
    store: ControlStore
    bucket: Bucket = field(default_factory=Bucket)
    rules: tuple[Rule, ...] = (GIVEN, SANE, MILD)
    now: datetime = BEGAN
    records: dict[TopicPartition, list[tuple[int, datetime]]] = field(default_factory=dict)

    @property
    def control(self) -> ControlStore:
        return self.store

    def sinks_tables(self, connection: str) -> SinkReader:
        assert connection == "reader"
        return SinkReader(self.sink_.database.working)

    def sinks_checker(self, connection: str) -> Any:
        from millrace.adapters.quality.checker import QualityChecker

        assert connection == "reader"
        return QualityChecker(self.sink_.database.working)

    def objects_quality_evidence(self) -> QualityEvidence:
        return QualityEvidence(self.bucket)

    def kafka_logs(self, connection: str) -> Any:
        return SimpleNamespace(leaders=lambda topics: dict.fromkeys(PARTITIONS, True), times=self._times)

    def kafka_records(self, connection: str) -> Any:
        def between(topic: str, number: int, first: int, end: int) -> Iterator[Any]:
            for offset, at in self.records.get(PARTITIONS[number], []):
                if first <= offset < end:
                    yield SimpleNamespace(offset=offset, timestamp_ms=int(at.timestamp() * 1000))

        return SimpleNamespace(between=between)

    def _times(self, partitions: Any, time_ms: int) -> dict[TopicPartition, PartitionTimes]:
        found = {}
        for one in partitions:
            held = [(offset, int(at.timestamp() * 1000)) for offset, at in self.records.get(one, [])]
            at = next((RecordAt(*each) for each in held if each[1] >= time_ms), None)
            first = RecordAt(*held[0]) if held else None
            latest = None if at or not held else RecordAt(*max(held, key=lambda each: each[1]))
            end = held[-1][0] + 1 if held else 0
            found[one] = PartitionTimes(LogBounds(held[0][0] if held else 0, end), at, first if at else None, latest)
        return found

    @property
    def stream(self) -> Stream:
        sink = PostgresSink("writer", TABLE)
        declared = StreamQuality("shop", self.rules, HOUR, timedelta(days=90), "reader")
        return Stream("purchases", "shop", "app", (TOPIC,), sink, "group", quality=declared)

    def check(self, after: timedelta = HOUR, **more: Any) -> quality.Checked:
        """An hour later by default."""
        self.now += after
        pipeline = Pipeline("shop", "me", "kafka", (), (self.stream,))
        return check(self, pipeline, self.stream, actor="me", now=self.now, **more)  # type: ignore[arg-type]

    def work(self, next_offset: int, *, timeline: int = 1, first: int = 0) -> None:
        """The record of work of every partition."""
        for one in PARTITIONS:
            self.sink_.connection.execute(
                "INSERT INTO millrace.progress VALUES (%s, %s, 0, %s, %s, %s, %s, %s, 1) "
                "ON CONFLICT ON CONSTRAINT progress_pkey DO UPDATE SET next_offset = excluded.next_offset",
                (NAME, timeline, TOPIC, TOPIC_ID, one.partition, first, next_offset),
            )

    def spoil(self, offset: int, change: str = "customer = NULL") -> None:
        self.sink_.connection.execute(f"UPDATE {TABLE} SET {change} WHERE _offset = {offset} AND _partition = 0")

    def alarms(self) -> set[tuple[str, str]]:
        return {(alarm.kind, alarm.subject) for alarm in self.store.alarms.list()}


@pytest.fixture(scope="module")
def opened(control_databases: Databases) -> Iterator[Sink]:
    """The sink, with Millrace's own tables."""
    from millrace.adapters.postgres.schema import ensure_schema

    with open_sink(control_databases) as made:
        ensure_schema(made.connection.cursor())
        yield made


@pytest.fixture
def shop(opened: Sink, control_databases: Databases) -> Iterator[Shop]:
    """A table of 400 rows, 100 offsets a partition, of which the record of work has 50."""
    opened.make(TABLE, 400)
    opened.connection.execute(f"UPDATE {TABLE} SET happened = happened + interval '10 years'")
    opened.connection.execute("DELETE FROM millrace.progress")
    made = control_databases.create_upgraded()
    with closing(ControlStore(made.working)) as store:
        found = Shop(opened, store)
        found.work(50)
        yield found


def outcomes(checked: quality.Checked) -> dict[str, str]:
    return {result.rule: result.outcome.value for result in checked.check.results}


def test_what_is_proven_is_not_looked_at_again(shop: Shop) -> None:
    first = shop.check()
    assert (first.check.verdict, first.check.rows, len(first.warned)) == (Verdict.PASSED, 200, 1)
    assert shop.store.quality.mark(NAME) == Mark(1, dict.fromkeys(PARTITIONS, 50))
    shop.work(60)
    second = shop.check()
    assert (second.check.rows, second.check.ranges[0]) == (40, OffsetRange(PARTITIONS[0], 50, 60))
    third = shop.check()
    assert (third.check.verdict, third.check.rows, outcomes(third)["given"]) == (Verdict.EMPTY, 0, "skipped")
    assert shop.alarms() == set()


def test_what_is_broken_is_looked_at_until_it_is_mended(shop: Shop) -> None:
    shop.spoil(7)
    first = shop.check()
    assert (first.check.verdict, len(first.new), first.known) == (Verdict.FAILED, 1, ())
    assert first.new[0] == f"given: 1 of 200 rows break it (not_null); from {TOPIC}/0@7"
    assert shop.alarms() == {("quality.broken", "shop.purchases: given")}
    assert [alarm.extent for alarm in shop.store.alarms.list()] == [Extent(1)]
    assert shop.store.quality.mark(NAME) == Mark()

    shop.work(60)
    shop.spoil(55, "amount = -1")
    second = shop.check()
    assert (second.check.rows, len(second.new), len(second.known)) == (240, 1, 1)

    shop.spoil(7, "customer = 'c1'")
    third = shop.check()
    assert shop.alarms() == {("quality.broken", "shop.purchases: sane")}
    assert (third.new, len(third.known)) == ((), 1)

    shop.spoil(55, "amount = 1")
    assert shop.check().check.verdict is Verdict.PASSED
    assert shop.alarms() == set()
    assert shop.store.quality.mark(NAME).offsets[PARTITIONS[0]] == 60


def test_what_a_rewind_writes_again_is_looked_at_again(shop: Shop) -> None:
    shop.check()
    shop.work(20, timeline=2, first=10)
    again = shop.check()
    assert {(one.first, one.next) for one in again.check.ranges} == {(10, 20)}
    assert shop.store.quality.mark(NAME) == Mark(2, dict.fromkeys(PARTITIONS, 20))
    shop.work(50, timeline=2, first=10)
    assert {(one.first, one.next) for one in shop.check().check.ranges} == {(20, 50)}


def test_a_rewind_during_a_check_that_passes_is_not_missed(shop: Shop) -> None:
    """The mark is of the timeline that was looked at, so that the next check begins where the new one began."""
    seen = shop.store.quality.mark(NAME)
    passed = replace(shop.check().check, began=BEGAN + timedelta(days=1), identity=None)
    shop.work(20, timeline=2, first=10)  # opened after the check had read the record of work
    shop.store.quality.store(passed, seen=seen, mark=passed.upto)
    assert {(one.first, one.next) for one in shop.check(timedelta(days=2)).check.ranges} == {(10, 20)}


def test_what_is_too_much_for_one_check_is_looked_at_in_several(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MOST_OFFSETS", 100)
    first = shop.check().check
    assert (first.verdict, first.rows, first.left) == (Verdict.PASSED, 100, 100)
    assert "100 offsets wait for the next check" in str(first)
    shop.work(20, timeline=2, first=10)  # written again, in the middle of it
    assert {(one.first, one.next) for one in shop.check().check.ranges} == {(10, 20)}
    shop.work(60, timeline=2, first=10)
    shop.spoil(22)
    broken = shop.check().check
    assert (broken.verdict, {(one.first, one.next) for one in broken.ranges}) == (Verdict.FAILED, {(20, 45)})
    quality.accept(shop, shop.stream, actor="me", reason="known to the shop")  # type: ignore[arg-type]
    last = shop.check().check
    assert ({(one.first, one.next) for one in last.ranges}, last.left) == ({(45, 60)}, 0)


def test_offsets_without_a_row_are_passed_by(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of records that are all in quarantine: more of them than one check looks at must not hold up the rest."""
    monkeypatch.setattr(quality, "MOST_OFFSETS", 40)
    shop.sink_.connection.execute(f"DELETE FROM {TABLE} WHERE _offset < 30")
    looks = [shop.check().check for _ in range(6)]
    assert [look.verdict for look in looks[:3]] == [Verdict.EMPTY] * 3
    assert [look.rows for look in looks] == [0, 0, 0, 40, 40, 0]
    assert shop.store.quality.mark(NAME).offsets == dict.fromkeys(PARTITIONS, 50)


def test_a_run_goes_on_until_all_is_looked_at(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "MOST_OFFSETS", 40)
    pipeline = Pipeline("shop", "me", "kafka", (), (shop.stream,))
    done = quality.check_on(shop, pipeline, shop.stream, actor="me")  # type: ignore[arg-type]
    assert ([one.check.rows for one in done], done[-1].check.left) == ([40] * 5, 0)
    assert quality.verdict_on(done) is Verdict.PASSED
    shop.work(100)
    shop.spoil(72)
    red = quality.check_on(shop, pipeline, shop.stream, actor="me")  # type: ignore[arg-type]
    assert ([one.check.verdict for one in red], red[-1].check.left) == ([Verdict.PASSED] * 2 + [Verdict.FAILED], 80)
    assert quality.verdict_on(red) is Verdict.FAILED


def test_what_stays_as_it_is_is_accepted_once(shop: Shop) -> None:
    with pytest.raises(RefusedError, match="it was never checked"):
        quality.accept(shop, shop.stream, actor="me", reason="known to the shop")  # type: ignore[arg-type]
    shop.spoil(7)
    shop.check()
    done = quality.accept(shop, shop.stream, actor="me", reason="known to the shop")  # type: ignore[arg-type]
    assert done.verdict is Verdict.FAILED
    assert shop.alarms() == set()
    shop.work(60)
    after = shop.check()
    assert (after.check.verdict, after.check.rows) == (Verdict.PASSED, 40)
    with pytest.raises(RefusedError, match="its last check is passed"):
        quality.accept(shop, shop.stream, actor="me", reason="known to the shop")  # type: ignore[arg-type]
    [entry] = [one for one in shop.store.log.list() if one.action == "quality.accept"]
    assert (entry.subject, entry.reason, entry.actor) == (NAME, "known to the shop", "me")


def test_nobody_accepts_what_he_has_not_seen(shop: Shop) -> None:
    shop.spoil(7)
    shown = shop.check().check
    shop.work(60)
    shop.check()
    assert shop.store.quality.accept(shown, actor="me", reason="late") is False
    assert shop.store.quality.mark(NAME) == Mark()


def test_of_two_checks_at_once_the_first_moves_the_mark(shop: Shop) -> None:
    first, second = (replace(shop.check().check, identity=None, actor=name) for name in ("one", "two"))
    near, far = Mark(1, {PARTITIONS[0]: 60}), Mark(1, {PARTITIONS[0]: 70})
    seen = shop.store.quality.mark(NAME)
    shop.store.quality.store(first, seen=seen, mark=far)
    shop.store.quality.store(second, seen=seen, mark=near)
    assert shop.store.quality.mark(NAME) == far


def test_up_tells_the_verdict_and_looks_where_nobody_has(shop: Shop) -> None:
    from millrace.usecases.example.quality import verdict_on

    def told() -> tuple[str, int]:
        found = verdict_on(shop, Pipeline("shop", "me", "kafka", (), (shop.stream,)), shop.stream)  # type: ignore[arg-type]
        assert found is not None
        return found.line, len(found.faults)

    assert told() == ("3 rules over 200 rows: passed; 1 warned (mild)", 0)
    assert shop.check(timedelta(days=5000)).check.verdict is Verdict.EMPTY
    assert told() == ("3 rules over 200 rows: passed; 1 warned (mild)", 0)  # of the look that saw rows
    assert len(shop.store.quality.history(NAME)) == 2
    shop.work(60)
    shop.spoil(55)
    assert told() == ("3 rules over 40 rows: broken: given; 1 warned (mild)", 1)
    shop.spoil(55, "customer = 'c1'")
    assert told()[1] == 0  # what was broken is looked at again
    plain = replace(shop.stream, quality=None)
    assert verdict_on(shop, Pipeline("shop", "me", "kafka", (), (plain,)), plain) is None  # type: ignore[arg-type]


def test_a_table_that_is_gone_is_one_alarm_and_ends_with_it(shop: Shop) -> None:
    shop.sink_.connection.execute(f"ALTER TABLE {TABLE} RENAME TO away")
    gone = shop.check()
    assert (gone.check.verdict, outcomes(gone)["given"]) == (Verdict.ERROR, "error")
    assert shop.alarms() == {("quality.unchecked", NAME)}
    shop.sink_.connection.execute("ALTER TABLE quality.away RENAME TO rows")
    assert shop.check().check.verdict is Verdict.PASSED
    assert shop.alarms() == set()


def test_a_stream_that_wrote_nothing_is_empty_also_without_a_table(shop: Shop) -> None:
    shop.sink_.connection.execute("DELETE FROM millrace.progress")
    shop.sink_.connection.execute(f"DROP TABLE {TABLE}")
    shop.rules = (*shop.rules, Rule("some", RowCount(1)))
    assert shop.check().check.verdict is Verdict.EMPTY


def test_a_record_of_work_that_is_gone_is_no_emptiness(shop: Shop) -> None:
    shop.check()
    shop.sink_.connection.execute("DELETE FROM millrace.progress")
    gone = shop.check().check
    assert (gone.verdict, gone.problem) == (
        Verdict.ERROR,
        "its record of work is missing; an earlier check has seen it",
    )
    assert shop.alarms() == {("quality.unchecked", NAME)}


def test_a_partition_that_joins_a_timeline_late_is_looked_at_from_where_it_began_there(shop: Shop) -> None:
    connection = shop.sink_.connection
    shop.work(50, timeline=2, first=10)
    connection.execute("DELETE FROM millrace.progress WHERE timeline = 2 AND partition = 3")
    assert shop.check().check.verdict is Verdict.PASSED
    assert shop.store.quality.mark(NAME).older == {PARTITIONS[3]: 1}
    shop.work(60, timeline=2, first=10)
    assert {str(one) for one in shop.check().check.ranges} == {
        *(f"{TOPIC}/{number}[50, 60)" for number in range(3)),
        f"{TOPIC}/3[10, 60)",
    }


def test_rules_about_the_whole_are_held_against_nothing_too(shop: Shop) -> None:
    shop.rules = (GIVEN, Rule("some", RowCount(1)))
    shop.check()
    stopped = shop.check()
    assert (stopped.check.verdict, outcomes(stopped)) == (Verdict.FAILED, {"given": "skipped", "some": "failed"})


def test_a_rule_that_could_not_be_tried_is_red_and_of_severity_warn_it_is_told(shop: Shop) -> None:
    shop.rules = (GIVEN, Rule("lost", NotNull("lost")), Rule("mild", NotNull("lost"), Severity.WARN))
    found = shop.check()
    assert found.check.verdict is Verdict.ERROR
    assert shop.alarms() == {("quality.unchecked", "shop.purchases: lost")}
    assert "column `lost` does not exist" in found.warned[0]
    shop.rules = (GIVEN,)
    assert shop.check().check.verdict is Verdict.PASSED
    assert shop.alarms() == set()  # of a rule that is declared no more


def test_an_alarm_stays_while_nothing_can_be_said_of_its_rule(shop: Shop) -> None:
    shop.spoil(7)
    shop.check()
    shop.sink_.connection.execute(f"ALTER TABLE {TABLE} RENAME TO away")
    shop.check()
    assert shop.alarms() == {("quality.broken", "shop.purchases: given"), ("quality.unchecked", NAME)}


def test_a_window_of_time_moves_nothing_and_alarms_nobody(shop: Shop) -> None:
    shop.records = {
        one: [(offset, BEGAN + offset * timedelta(minutes=1)) for offset in range(100)] for one in PARTITIONS
    }
    shop.spoil(12)
    window = (BEGAN + timedelta(minutes=10), BEGAN + timedelta(minutes=20))
    found = shop.check(window=window).check
    assert (found.verdict, found.rows, found.window) == (Verdict.FAILED, 40, window)
    assert {(one.first, one.next) for one in found.ranges} == {(10, 20)}
    late = shop.check(window=(BEGAN + timedelta(minutes=40), BEGAN + timedelta(hours=9))).check
    assert {(one.first, one.next) for one in late.ranges} == {(40, 50)}  # no further than the record of work
    assert shop.alarms() == set()
    assert shop.store.quality.mark(NAME) == Mark()
    assert shop.store.quality.latest(NAME) is None
    assert len(shop.store.quality.history(NAME, windows=True)) == 2

    shop.records[PARTITIONS[0]][15] = (15, BEGAN + timedelta(days=900))  # one that is dated far ahead hides no other
    shop.records[PARTITIONS[0]][30] = (30, BEGAN + timedelta(minutes=19))  # and one that came late is of it too
    wide = shop.check(window=window).check
    assert {str(one) for one in wide.ranges} >= {f"{TOPIC}/0[10, 31)", f"{TOPIC}/1[10, 20)"}

    shop.records = {one: records[15:] for one, records in shop.records.items()}
    with pytest.raises(RefusedError, match="begins after the window"):
        shop.check(window=window)
    with pytest.raises(UsageError, match="ends before it begins"):
        shop.check(window=(window[1], window[0]))


def test_the_bucket_may_be_away(shop: Shop) -> None:
    shop.bucket.away = True
    first = shop.check()
    assert first.check.verdict is Verdict.PASSED
    assert "2 documents wait for the bucket" in first.evidence_problem
    shop.bucket.away = False
    shop.work(60)
    second = shop.check()
    assert second.evidence_problem == ""
    assert len(shop.bucket.objects) == 4
    kept = shop.store.quality.get(first.check.identity or 0)
    assert set(kept.evidence) == {key for key, _ in documents_of(first.check, "page")}
    assert shop.store.quality.waiting(NAME) == ()


def test_evidence_is_deleted_when_it_is_old_and_nothing_else_is(shop: Shop) -> None:
    shop.bucket.objects["quality/shop.purchases/notes.txt"] = b"mine"
    shop.bucket.objects["quality/shop.purchases2/20200101T000000000000Z-0123456789abcdef.json"] = b"another's"
    shop.check()
    shop.work(60)
    shop.check(timedelta(days=91))
    keys = sorted(shop.bucket.objects)
    assert len(keys) == 4
    assert {key.rpartition("/")[2][:8] for key in keys if "purchases/2" in key} == {"20360803"}


def test_volume_is_judged_by_what_came_before(shop: Shop) -> None:
    shop.rules = (GIVEN, Rule("steady", Volume(0.5)))
    assert "no earlier check" in str(shop.check().check.results[1])
    shop.sink_.make(TABLE, 4000)
    for hour in range(1, 6):
        shop.work(50 + hour * 10)
        assert outcomes(shop.check())["steady"] == "skipped"
    shop.work(112)
    found = shop.check()
    assert (outcomes(found)["steady"], found.check.gain) == ("passed", Gain(48, HOUR))
    stopped = shop.check()
    assert (stopped.check.verdict, outcomes(stopped)["steady"]) == (Verdict.FAILED, "failed")
    for _ in range(examples(30)):  # what is not usual does not become so by being looked at often
        assert outcomes(shop.check(timedelta(minutes=55)))["steady"] == "failed"
    shop.now += timedelta(days=8)
    shop.work(20, timeline=2, first=10)
    assert "rewound" in str(shop.check().check.results[1])


def test_freshness_is_told_in_its_parts(shop: Shop) -> None:
    shop.rules = (Rule("events", Fresh(2 * HOUR, "happened")), Rule("records", Fresh(2 * HOUR)))
    shop.records = {
        one: [(offset, BEGAN - timedelta(minutes=60 - offset)) for offset in range(60)] for one in PARTITIONS
    }
    found = shop.check().check
    assert outcomes(quality.Checked(found)) == {"events": "passed", "records": "passed"}
    assert found.freshness is not None
    parts = dict(found.freshness.parts)
    assert parts["event -> broker"] == -timedelta(minutes=11)  # the newest row is of twelve, record 49 of 11:49
    later = shop.check(3 * HOUR).check  # nothing came: what was seen before counts
    assert [result.outcome for result in later.results] == [Outcome.FAILED, Outcome.FAILED]
    assert later.results[0].detail == "the newest is 4:00:00 old, at most 2:00:00 is allowed"
    assert found.freshness.event_at is not None
    assert found.freshness.event_at.isoformat()[:16].encode() not in document_of(found)


def test_what_one_column_is_fresh_by_makes_no_other_fresh(shop: Shop) -> None:
    shop.sink_.connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN touched timestamptz")
    shop.sink_.connection.execute(f"UPDATE {TABLE} SET touched = happened - interval '1 day'")
    shop.rules = (Rule("made", Fresh(9 * HOUR, "happened")), Rule("touched", Fresh(9 * HOUR, "touched")))
    assert outcomes(shop.check()) == {"made": "passed", "touched": "failed"}
    shop.work(60)
    assert outcomes(shop.check()) == {"made": "passed", "touched": "failed"}


def test_a_check_that_was_killed_before_its_alarms_leaves_none_open_for_ever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.spoil(7)
    shop.check()
    shop.spoil(7, "customer = 'c1'")

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(quality.quality_alarms, "hold", killed)
        with pytest.raises(KeyboardInterrupt):
            shop.check()
    assert shop.store.quality.mark(NAME).offsets
    assert shop.alarms()
    assert shop.check().check.verdict is Verdict.EMPTY
    assert shop.alarms() == set()


def test_a_look_that_ends_late_leaves_the_alarms_of_a_later_one_alone(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.spoil(7)
    store, slow = shop.store.quality.store, []

    def later_first(check: QualityCheck, **more: Any) -> QualityCheck:
        if not slow:
            slow.append(check)
            shop.spoil(7, "customer = 'c1'")
            assert shop.check().check.verdict is Verdict.PASSED
        return store(check, **more)

    monkeypatch.setattr(shop.store.quality, "store", later_first)
    late = shop.check()
    assert (late.check.verdict, late.new, len(late.known)) == (Verdict.FAILED, (), 1)
    assert shop.alarms() == set()
    assert shop.store.quality.mark(NAME) == Mark(1, dict.fromkeys(PARTITIONS, 50))


def test_the_documents_hold_no_time_of_a_row(shop: Shop) -> None:
    shop.rules = (Rule("events", Fresh(HOUR, "happened")), SANE)
    shop.sink_.connection.execute(f"UPDATE {TABLE} SET happened = '2036-05-04 12:34:56.789+00'")
    shop.check()
    for data in shop.bucket.objects.values():
        assert b"12:34:56" not in data


def test_every_field_of_a_check_comes_back(shop: Shop) -> None:
    whole = QualityCheck(
        stream=NAME,
        began=BEGAN,
        ended=BEGAN + timedelta(seconds=3),
        reached=Mark(3, {PARTITIONS[0]: 5}),
        upto=Mark(3, {PARTITIONS[0]: 4}),
        ranges=(OffsetRange(PARTITIONS[0], 1, 5),),
        rows=4,
        results=(
            RuleResult("a", "sql", Severity.WARN, Outcome.FAILED, 4, 2, "more", (SourceAt(TOPIC, 0, 3),)),
            RuleResult("b", "volume", Severity.FAIL, Outcome.SKIPPED),
        ),
        gain=Gain(4, timedelta(seconds=90.5)),
        freshness=Freshness(BEGAN, {"fresh/at": BEGAN - HOUR}, visible_at=BEGAN - timedelta(microseconds=1)),
        problem="none",
        actor="me",
    )
    made = shop.store.quality.store(whole, seen=Mark(), mark=None, documents=[("quality/x.json", b"{}")])
    assert replace(made, identity=None) == whole
    again = shop.store.quality.store(whole, seen=Mark(), mark=None, documents=[("quality/x.json", b"{}")])
    assert again == made == shop.store.quality.get(made.identity or 0) == shop.store.quality.latest(NAME)
    [waiting] = shop.store.quality.waiting()
    shop.store.quality.uploaded(waiting)
    shop.store.quality.uploaded(waiting)
    assert shop.store.quality.get(made.identity or 0).evidence == ("quality/x.json",)
    windowed = replace(whole, began=BEGAN + HOUR, window=(BEGAN - HOUR, BEGAN), rows=None, gain=None, freshness=None)
    assert replace(shop.store.quality.store(windowed, seen=Mark(), mark=None), identity=None) == windowed
    assert shop.store.quality.latest(NAME) == replace(made, evidence=("quality/x.json",))
    assert shop.store.quality.gains(NAME, BEGAN, BEGAN) == ((BEGAN, Gain(4, timedelta(seconds=90.5))),)
    with pytest.raises(UsageError, match=r"check \d+ is unknown"):
        shop.store.quality.get(10**9)


def test_old_checks_are_forgotten_but_never_the_newest(shop: Shop) -> None:
    one = shop.check().check
    for number in range(1, 30):
        old = replace(one, identity=None, began=BEGAN - number * timedelta(days=10), evidence=())
        shop.store.quality.store(old, seen=Mark(), mark=None, documents=[(f"quality/{number}", b"")])
    shop.store.quality.tidy(BEGAN + timedelta(days=100))
    left = shop.store.quality.history(NAME, limit=100)
    assert [check.began for check in left][:2] == [one.began, BEGAN - timedelta(days=10)]
    assert len(left) == 20


def test_sql_of_a_rule_file_is_run_with_braces_and_percent_signs(shop: Shop) -> None:
    text = "select _topic_id, _partition, _offset from {rows} where customer ~ '^c0{{3}}1$' or customer like '%zz:a%'"
    shop.rules = (Rule("q", Query(text)), Rule("w", NotNull("customer"), where="customer like 'c%' and kind <> ':a'"))
    found = shop.check().check
    assert [(result.broken, result.rows) for result in found.results] == [(1, 200), (0, 200)]
