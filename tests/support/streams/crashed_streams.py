"""Streams that are crashed in process: many that read one topic, each with a group, a table and epochs of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import TopicPartition as ClientTopicPartition

from millrace import declarations
from millrace.adapters.control.store import ControlStore
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.streams.hosts import Host
from millrace.domain.streams.supervision import DesiredState, ExitReason
from millrace.errors import MillraceError
from millrace.runtime.life.app import Launch
from support.drills.record_check import books_against_sink, group_ahead, rows_against_record
from support.stack.faults import Life, unexpected
from support.streams.driver_without_spark import IDENTITY, DriverWithoutSpark, Record
from support.streams.project import ONE_BAD_IN, TESTS, StreamProject, commits_reader
from support.waiting import Deadline

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.stack.control_databases import ControlDatabase

CHILD = Path(__file__).with_name("crashed_stream_child.py")
GONE = "gone in the middle"
RECORDS = 10
BATCH = 6
HERE = Host("here", "localhost", "")
ACTOR = "test"


class CrashedStreams:
    """One project: a declaration, a topic of two partitions with one bad record, a control database."""

    def __init__(self, root: Path, stack: Stack, database: ControlDatabase) -> None:
        self.project = StreamProject(root, stack, database, partitions=2, batch=BATCH).make()
        self._transform.write_text(IDENTITY)
        self.project.create_topic()
        self.project.produce(RECORDS, first=ONE_BAD_IN - 3 * RECORDS // 4)  # the bad one comes late
        self._open()

    @classmethod
    def opened(cls, project: StreamProject) -> CrashedStreams:
        """One that another process has made."""
        found = cls.__new__(cls)
        found.project = project
        found._open()
        return found

    def _open(self) -> None:
        project = self.project
        self.settings = project.settings
        self.pipeline = declarations.load_pipeline(project.root, project.name)
        self.topic_id = project.topic_id()
        self.records = read_topic(project)
        self.control = ControlStore(self.settings.postgres("millrace_control"))
        self.made: list[CrashedStream] = []
        self.done: list[CrashedStream] = []
        self._idle: list[psycopg.Connection[Any]] = []

    @property
    def _transform(self) -> Path:
        return self.project.root / "spark_apps" / self.project.name / "transform.py"

    def new(self, name: str = "") -> CrashedStream:
        """A stream that was never started."""
        project = self.project
        stream = CrashedStream(
            project.root, project.stack, project.database, name or f"c{uuid.uuid4().hex[:8]}", 2, BATCH, of=self
        )
        self.made.append(stream)
        return stream

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """One to the sink database that nobody else uses meanwhile."""
        try:
            found = self._idle.pop()
        except IndexError:
            found = psycopg.connect(**self.project.sink.keywords(), autocommit=True)  # type: ignore[arg-type]
        yield found
        self._idle.append(found)

    def done_once(self) -> CrashedStream:
        """A stream that has done all there is, on its first timeline; nobody is given it again."""
        while True:
            with suppress(IndexError):
                return self.done.pop()
            assert self.new().go_on() == []

    def reopen(self) -> None:
        """Look again at the topic and at the connections: both may have been changed."""
        self._hang_up()
        self._open()

    def _hang_up(self) -> None:
        self.control.close()
        for connection in self._idle:
            connection.close()

    def close(self) -> None:
        self._hang_up()
        if self.made:
            self.project.query(f"DROP SCHEMA IF EXISTS {', '.join(stream.name for stream in self.made)} CASCADE")
            for table in ("fence", "progress", "quarantine"):
                names = [stream.stream for stream in self.made]
                self.project.query(f"DELETE FROM millrace.{table} WHERE stream = ANY(%s)", names)
        self.project.drop()


@dataclass
class CrashedStream(StreamProject):
    """One stream of them."""

    of: CrashedStreams = field(kw_only=True)
    rewound: int = 0

    @property
    def topic(self) -> str:
        return self.of.project.topic

    @property
    def group(self) -> str:
        return f"millrace.{self.stream}" + ".rewound" * self.rewound

    def topic_id(self) -> str:
        return self.of.topic_id

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Over a connection that others have left: most of what a look costs is to connect."""
        with self.of.connection() as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @property
    def pipeline(self) -> Pipeline:
        """The project's declaration with this stream's own name, group and table."""
        [declared] = self.of.pipeline.streams
        stream = replace(
            declared,
            pipeline=self.name,
            group=self.group,
            sink=replace(declared.sink, table=f"{self.name}.rows"),
            trigger=timedelta(milliseconds=1),
            stuck_after=timedelta(seconds=2),
        )
        return replace(self.of.pipeline, name=self.name, streams=(stream,))

    # Lives

    def raise_epoch(self) -> Launch:
        """What supervision does before it submits an app."""
        streams = self.of.control.streams
        wanted = streams.set_desired(self.stream, actor=ACTOR, reason="to be crashed", state=DesiredState.RUNNING)
        epoch = streams.raise_epoch(self.stream, wanted.epoch, host=HERE.identity)
        assert epoch is not None
        return Launch(self.stream, epoch, uuid.uuid4().hex, False, HERE)

    def live(self, life: Life, launch: Launch | None = None) -> MillraceError | None:
        """One epoch with adapters of its own, until all records are done; what ended it before, but for a crash."""
        launch, pipeline, stop = launch or self.raise_epoch(), self.pipeline, threading.Event()
        folder = self.root / "lives" / self.stream / str(launch.epoch)  # where nobody counts drivers that were started
        folder.mkdir(parents=True)
        control = ControlStore(self.of.settings.postgres("millrace_control"))
        driver = DriverWithoutSpark(
            life,
            self.of.records,
            stop,
            settings=self.of.settings,
            control=control,
            pipeline=pipeline,
            stream=pipeline.streams[0],
            launch=launch,
            folder=folder,
        )
        try:
            return life.lived(lambda: driver.run(stop))
        finally:
            driver.end()
            control.close()
            shutil.rmtree(folder)

    def crash_and_go_on(self, life: Life) -> list[str]:
        """Live a life that is struck, then a whole one: what was wrong, after the one and at the end."""
        ended = self.live(life)
        wrong = [*unexpected(life, ended), *self.out_of_balance()]
        return wrong + (self.go_on() if life.struck else self.incomplete())

    def go_on(self) -> list[str]:
        """The next epoch does the rest: what was wrong at the end."""
        whole = Life()
        ended = self.live(whole)
        return unexpected(whole, ended) + self.out_of_balance() + self.incomplete()

    def incomplete(self) -> list[str]:
        """Whether sink and quarantine do not hold every record of the topic, each once."""
        expected = {(self.topic_id(), record.partition, record.offset): 1 for record in self.of.records}
        found = dict(self.sink_sources())
        if found == expected:
            self.of.done += [] if self.rewound else [self]
            return []
        return [f"in the end the sink holds {sorted(found.items())}"]

    def out_of_balance(self) -> list[str]:
        return group_ahead(self) + rows_against_record(self) + books_against_sink(self)

    def rewind(self, offsets: dict[int, int]) -> None:
        """Leave what a reset of the group leaves: commits that are not the stream's own.

        They are made in a group nobody was ever a member of: the broker refuses to reset one whose static member it
        still lists, for the ten seconds of a session.
        """
        self.rewound += 1
        commits = [ClientTopicPartition(self.topic, number, offset) for number, offset in offsets.items()]
        with closing(commits_reader(self.of.settings.kafka(), self.group)) as client:
            client.commit(offsets=commits, asynchronous=False)

    def timelines(self) -> list[int]:
        """The timelines on record."""
        found = self.query("SELECT DISTINCT timeline FROM millrace.progress WHERE stream = %s ORDER BY 1", self.stream)
        return [int(timeline) for (timeline,) in found]


def read_topic(project: StreamProject) -> list[Record]:
    """All that a topic holds, as a plain consumer reads it."""
    missing, found = sum(project.ends().values()), list[Record]()
    with closing(commits_reader(project.settings.kafka(), "test.reader")) as consumer:
        consumer.assign([ClientTopicPartition(project.topic, number, 0) for number in range(project.partitions)])
        while len(found) < missing:
            messages = consumer.consume(missing, Deadline.METADATA.seconds)
            assert messages, f"{missing - len(found)} records of {project.topic} do not come"
            for one in messages:
                assert one.error() is None, one.error()
                place = (one.partition(), one.offset(), one.timestamp()[1])
                found.append(Record(*place, one.key(), one.value(), tuple(one.headers() or ())))
    return found


def die_in_child(stream: CrashedStream, call: str, occurrence: int) -> str:
    """A process of its own lives one epoch and is gone after a call: `GONE`, or what it said instead."""
    launch, project = stream.raise_epoch(), stream.of.project
    order = [str(project.root), project.name, stream.name, str(launch.epoch), launch.instance, call, str(occurrence)]
    done = subprocess.run(
        [sys.executable, str(CHILD), *order],
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent / 'include'}{os.pathsep}{TESTS}"},
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=False,
    )
    return GONE if done.returncode == ExitReason.KILLED else f"exit {done.returncode}: {done.stdout}{done.stderr}"
