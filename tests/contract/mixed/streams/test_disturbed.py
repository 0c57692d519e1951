"""A stream whose servers are disturbed in the midst of a batch: nothing is lost, and what can be waited out is.

Real broker, real databases, the real driver; only Spark is left out (`support.streams.driver_without_spark`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from millrace.adapters.apps.status import beat_of
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.streams.vitals import Trouble, trouble
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError, RecreatedTopicError, SinkFailedError, UnreachableError
from millrace.runtime.life import app as runtime_life
from millrace.runtime.life.lookout import Lookout
from support.disturbed import DisturbedLife
from support.stack import embedded as runs
from support.stack.control_databases import Databases
from support.stack.faults import Life
from support.streams.crashed_streams import BATCH, CrashedStream, CrashedStreams
from support.streams.driver_without_spark import without_spark
from support.streams.project import committed
from support.waiting import Deadline, eventually, in_time, result_of

ONCE = "IF nextval('{name}.calls') = 1 THEN RAISE EXCEPTION 'once' USING ERRCODE = '{code}'; END IF;"
ALWAYS = "RAISE EXCEPTION 'until somebody acts' USING ERRCODE = '{code}';"
TRIGGER = """
CREATE SEQUENCE {name}.calls;
CREATE FUNCTION {name}.raising() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$;
CREATE TRIGGER raising BEFORE INSERT ON {name}.rows FOR EACH ROW EXECUTE FUNCTION {name}.raising()
"""


@pytest.fixture(scope="module")
def make(
    idle_stack: Stack, control_databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], CrashedStreams]]:
    runs.start(idle_stack, "kafka", "postgres")
    made: list[CrashedStreams] = []

    def one() -> CrashedStreams:
        root = tmp_path_factory.mktemp("disturbed") / "project"
        made.append(CrashedStreams(root, idle_stack, control_databases.create_upgraded()))
        return made[-1]

    yield one
    for streams in made:
        streams.close()


@pytest.fixture(scope="module")
def streams(make: Callable[[], CrashedStreams]) -> Iterator[CrashedStreams]:
    made = make()
    with without_spark(made.project.root):
        yield made


def staging(stream: CrashedStream, suffix: str = "") -> str:
    [(name,)] = stream.query(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'millrace_staging' AND split_part(tablename, '#', 1) = %s "
        "AND (right(tablename, 1) = '!') = %s",
        stream.stream,
        suffix == "!",
    )
    return f'millrace_staging."{name}"'


def raising(stream: CrashedStream, body: str, code: str) -> None:
    name = stream.name
    stream.query(TRIGGER.format(name=name, body=body.format(name=name, code=code)))


def end_backends(stream: CrashedStream, but: int = 0) -> None:
    """As an administrator does, or a pooler that is reloaded."""
    stream.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE split_part(application_name, '#', 1) = %s AND pid <> %s",
        stream.stream,
        but,
    )


def delete_topic(streams: CrashedStreams) -> None:
    project = streams.project
    result_of(project.admin.delete_topics([project.topic])[project.topic], what="the end of the topic")


def create_topic(streams: CrashedStreams) -> None:
    """Another one of the same name, once the broker has forgotten the former."""
    project = streams.project

    def there() -> bool:
        made = project.admin.create_topics([NewTopic(project.topic, 2, 1)])[project.topic]
        made.result(Deadline.METADATA.seconds)
        return True

    eventually(there, within=Deadline.SERVER, what="the topic of the same name", ignoring=(KafkaException,))
    eventually(
        lambda: project.topic_id() != streams.topic_id,
        within=Deadline.METADATA,
        what="the new topic's id",
        ignoring=(KafkaException,),
    )


def recreate(streams: CrashedStreams) -> None:
    delete_topic(streams)
    create_topic(streams)


def lived(stream: CrashedStream, life: DisturbedLife) -> MillraceError | None:
    ended = stream.live(life)
    assert life.disturbed
    return ended


# What stops a stream, with nothing moved


@pytest.mark.parametrize(
    ("call", "suffix", "disturb"),
    [
        ("sink.commit_batch", "", "TRUNCATE {}"),
        ("sink.commit_batch", "!", "TRUNCATE {}"),
        ("task.write_bad_records", "!", "ALTER TABLE {} ADD CHECK (rule <> 'not_json')"),
    ],
    ids=["rows emptied", "bad records emptied", "a bad record that cannot be staged"],
)
def test_what_does_not_arrive_stops_the_batch_and_the_next_epoch_does_it(
    streams: CrashedStreams, call: str, suffix: str, disturb: str
) -> None:
    stream = streams.new()

    def happens() -> None:
        stream.query(disturb.format(staging(stream, suffix)))

    occurrence = DisturbedLife(call, happens)
    if suffix and call == "sink.commit_batch":  # the bad record comes in a later batch than the first
        occurrence = DisturbedLife("task.write_bad_records", happens, after=True)
    ended = lived(stream, occurrence)
    assert isinstance(ended, SinkFailedError), ended
    assert stream.out_of_balance() == []
    assert stream.go_on() == []
    assert len(stream.query("SELECT 1 FROM millrace.quarantine WHERE stream = %s", stream.stream)) == 1


def test_a_sink_that_lost_its_last_transaction_is_filled_by_the_next_epoch(streams: CrashedStreams) -> None:
    """A standby that was promoted without it: the batch after it must not leave a gap."""
    stream = streams.new()

    def failover() -> None:
        stream.query(f"DELETE FROM {stream.name}.rows")
        stream.query("DELETE FROM millrace.quarantine WHERE stream = %s", stream.stream)
        stream.query("UPDATE millrace.progress SET next_offset = first_offset WHERE stream = %s", stream.stream)

    ended = lived(stream, DisturbedLife("sink.commit_batch", failover, after=True))
    assert isinstance(ended, SinkFailedError), ended
    assert "would be lost" in ended.what
    assert stream.go_on() == []


def test_a_topic_that_is_recreated_after_the_merge_is_not_given_the_old_offsets(
    make: Callable[[], CrashedStreams],
) -> None:
    streams = make()
    with without_spark(streams.project.root):
        stream = streams.new()
        ended = lived(stream, DisturbedLife("sink.commit_batch", partial(recreate, streams), after=True))
    assert isinstance(ended, RecreatedTopicError), ended
    done = stream.query("SELECT sum(next_offset) FROM millrace.progress WHERE stream = %s", stream.stream)
    assert done == [(BATCH,)]
    assert set(committed(stream).values()) <= {0}, "the new topic stands at the old one's offsets"


def test_a_topic_that_is_gone_is_no_topic_with_the_same_id(make: Callable[[], CrashedStreams]) -> None:
    streams = make()
    with without_spark(streams.project.root):
        stream = streams.new()
        gone = partial(delete_topic, streams)
        ended = lived(stream, DisturbedLife("task.write_rows", gone, after=True))
    assert isinstance(ended, UnreachableError), ended
    assert stream.query("SELECT sum(next_offset) FROM millrace.progress WHERE stream = %s", stream.stream) == [(0,)]
    create_topic(streams)


# What is waited out


@pytest.mark.parametrize("call", ["sink.begin_batch", "task.write_rows", "sink.commit_batch"])
def test_a_connection_that_is_ended_is_taken_up_again_in_the_same_epoch(streams: CrashedStreams, call: str) -> None:
    stream = streams.new()
    assert lived(stream, DisturbedLife(call, partial(end_backends, stream))) is None
    assert stream.out_of_balance() + stream.incomplete() == []


@pytest.mark.parametrize("call", ["sink.begin_batch", "task.write_rows", "sink.commit_batch"])
def test_what_an_ended_connection_left_behind_is_ended_too(streams: CrashedStreams, call: str) -> None:
    """The server has not heard of the one that broke: its backend keeps the locks, for hours."""
    stream = streams.new()
    left: list[psycopg.Connection[Any]] = []

    def break_off() -> None:
        epoch, staged = stream.query(
            "SELECT epoch, %s FROM millrace.fence WHERE stream = %s", staging(stream), stream.stream
        )[0]
        backend = psycopg.connect(**streams.project.sink.keywords(), application_name=f"{stream.stream}#{epoch}")
        left.append(backend)
        end_backends(stream, backend.info.backend_pid)
        backend.execute(f"LOCK {staged} IN ROW EXCLUSIVE MODE")
        backend.execute("SELECT FROM millrace.progress WHERE stream = %s FOR UPDATE", (stream.stream,))

    life = DisturbedLife(call, break_off)
    try:
        assert in_time(lambda: lived(stream, life), within=Deadline.STREAM, what="the end of the stream") is None
    finally:
        for backend in left:
            backend.close()
    assert stream.out_of_balance() + stream.incomplete() == []


@pytest.mark.parametrize("code", ["40001", "40P01", "57P05", "53300"])
def test_a_batch_that_the_database_ended_is_done_again_in_the_same_epoch(streams: CrashedStreams, code: str) -> None:
    stream = streams.new()
    life = DisturbedLife("sink.commit_batch", partial(raising, stream, ONCE, code))
    assert lived(stream, life) is None
    assert stream.out_of_balance() + stream.incomplete() == []


def test_a_sink_without_room_is_waited_for_with_an_alarm(streams: CrashedStreams) -> None:
    stream, alarms = streams.new(), streams.control.alarms

    def open_alarms() -> list[str]:
        return [
            one.detail
            for one in alarms.list()
            if (one.kind, one.subject) == (AlarmKind.STREAM_SINK_EXHAUSTED, stream.stream)
        ]

    life = DisturbedLife("sink.commit_batch", partial(raising, stream, ALWAYS, "53100"))
    ended: list[MillraceError | None] = []
    thread = threading.Thread(target=lambda: ended.append(stream.live(life)), daemon=True)
    thread.start()
    [detail] = eventually(open_alarms, within=Deadline.STREAM, what="the alarm")
    assert "until somebody acts" in detail
    assert stream.out_of_balance() == []
    stream.query(f"DROP TRIGGER raising ON {stream.name}.rows")
    in_time(thread.join, within=Deadline.STREAM, what="the end of the stream")
    assert ended == [None]
    assert open_alarms() == []
    assert stream.out_of_balance() + stream.incomplete() == []


class OfTheSink(Lookout):
    """Looks at the sink alone: there is no Spark, and a life counts the calls of its Kafka."""

    def watch_jvm(self, session: Any) -> None:
        pass

    def watch_log(self, kafka: Any, positions: Any) -> None:
        pass


def test_who_holds_the_lock_that_a_batch_waits_for_is_named_and_the_batch_goes_on(
    streams: CrashedStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = streams.new()
    monkeypatch.setattr(runtime_life, "Lookout", OfTheSink)
    report = psycopg.connect(**streams.project.sink.keywords(), application_name="a report")
    pid, user = report.info.backend_pid, report.info.user
    life = DisturbedLife("sink.commit_batch", lambda: report.execute(f"LOCK TABLE {stream.name}.rows IN SHARE MODE"))
    ended: list[MillraceError | None] = []
    thread = threading.Thread(target=lambda: ended.append(stream.live(life)), daemon=True)

    def told() -> Trouble | None:
        for status in (streams.project.root / "lives" / stream.stream).glob("*/status.json"):
            beat = beat_of(json.loads(status.read_text()))
            found = trouble(beat.vitals(phase="running", now=beat.at)) if beat else None
            return found if found and "waits for" in found.why else None
        return None

    thread.start()
    try:
        found = eventually(told, within=Deadline.STREAM, what="who is in the way")
    finally:
        report.close()
    assert not found.restart
    assert found.why.startswith("batch 0: merge since ")
    assert f"waits for a lock of pid {pid} (user {user}, a report, idle in" in found.why
    in_time(thread.join, within=Deadline.STREAM, what="the end of the stream")
    assert ended == [None]
    assert stream.out_of_balance() + stream.incomplete() == []


# What the database cannot hold


@pytest.mark.full  # a quarter of a minute for what few databases are
def test_a_database_in_another_encoding_holds_what_it_can_and_quarantines_the_rest(
    make: Callable[[], CrashedStreams], control_databases: Databases
) -> None:
    streams = make()
    project = streams.project
    database, former = f"latin_{project.name}", project.sink
    make_database = f"CREATE DATABASE {database} OWNER {former.user} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    control_databases.as_superuser(make_database)
    given = ('"caf\u00e9","amount":1', '"\u20ac","amount":2', '"x","amount":3,"id":"\u20ac"')
    values = [b'{"id":%s}' % one.encode() for one in given]
    project.produce_values(values, headers=[("caf\u00e9 \u20ac", b"\x00\xff")])
    sink_in(project.root, database)
    streams.reopen()
    try:
        with without_spark(project.root):
            stream = streams.new()
            assert stream.go_on() == []
        assert ("caf\u00e9",) in stream.query(f"SELECT id FROM {stream.name}.rows")
        aside = "SELECT rule, value, headers->0->>'key' FROM millrace.quarantine WHERE stream = %s AND value = ANY(%s)"
        found = {bytes(value): (rule, key) for rule, value, key in stream.query(aside, stream.stream, values)}
        key = "caf\\xe9 \\u20ac"
        assert found == {values[1]: ("sink_refused", key), values[2]: ("duplicate_field", key)}
    finally:
        sink_in(project.root, former.database)
        streams.reopen()
        control_databases.as_superuser(f"DROP DATABASE {database} WITH (FORCE)")


def sink_in(root: Path, database: str) -> None:
    """Have the project's sink be another database of the same server."""
    path = root / ".millrace" / "env"
    lines = []
    for line in path.read_text().splitlines():
        name, _, value = line.partition("=")
        if name.lower() == "airflow_conn_millrace_sink":
            value = json.dumps(json.loads(value) | {"schema": database})
        lines.append(f"{name}={value}\n")
    path.write_text("".join(lines))


def test_a_record_of_a_far_future_goes_aside_whole_with_its_number(make: Callable[[], CrashedStreams]) -> None:
    """Microseconds where milliseconds belong are the usual cause."""
    streams = make()
    project = streams.project
    project.configure_topic({"message.timestamp.after.max.ms": str(2**62)})
    microseconds, last = 1_764_000_000_000_000, 253_402_300_799_999
    for timestamp in (microseconds, last, last + 1):
        project.produce_values([b'{"id":"%d","amount":1}' % timestamp], timestamp=timestamp)
    streams.reopen()
    with without_spark(project.root):
        stream = streams.new()
        assert stream.go_on() == []
    aside = (
        "SELECT value, timestamp_ms, timestamp FROM millrace.quarantine WHERE stream = %s AND rule = 'far_timestamp'"
    )
    found = sorted((bytes(value), number, time) for value, number, time in stream.query(aside, stream.stream))
    assert found == [
        (b'{"id":"%d","amount":1}' % number, number, None) for number in sorted((microseconds, last + 1), key=str)
    ]
    assert (str(last),) in stream.query(f"SELECT id FROM {stream.name}.rows")


def test_a_stream_that_is_not_disturbed_ends_by_itself(streams: CrashedStreams) -> None:
    """What the others are compared with."""
    stream = streams.new()
    assert stream.live(Life()) is None
    assert stream.incomplete() == []
