"""Streams to be rewound: real broker, real databases, and an app that does what a driver does, at once and in this
process. It joins no group, so that nobody waits ten seconds for a member's session."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg import sql

from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.control.store import ControlStore
from millrace.adapters.kafka.groups import KafkaGroups
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.reader import SinkReader
from millrace.declarations import load_pipeline
from millrace.domain.groups.commits import CommitMetadata
from millrace.domain.plans.plan import Plan, PlanStatus
from millrace.domain.rewind.time_travel import Policy
from millrace.domain.sinks.batch import Identity, Written
from millrace.domain.streams.position import Basis, OpenTimeline, Refuse, Wishes, open_at
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import MillraceError, RefusedError, StalePlanError
from millrace.ports.platform import Platform
from millrace.ports.runner import RunningApp, RunState, Submission
from millrace.usecases.plans import running
from millrace.usecases.rewind import plan as rewind_plan
from millrace.usecases.streams import supervise as streams
from millrace.wiring.apps import AppAdapters
from millrace.wiring.platform import Adapters
from millrace.wiring.sinks import open_sink
from support.fakes.platform import Instead
from support.stack.faults import Life, watched_control
from support.streams.project import StreamProject, committed
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack
    from support.stack.control_databases import ControlDatabase

ACTOR = "test:rewind"
KAFKA, SINK = "millrace_kafka", "millrace_sink"
RECORDS = 12
COLUMNS = pa.schema([("id", pa.string()), ("amount", pa.int32())])


class Apps:
    """A runner whose apps do all there is to do while they are submitted, and then live until they are stopped.

    Attributes:
        wrong: what no runner should ever see: two living apps, or a submit that was refused.
    """

    kind = "process"

    def __init__(self, stream: RewoundStream) -> None:
        self._stream = stream
        self._living: list[RunningApp] = []
        self._ended: dict[int, RunningApp] = {}
        self.wrong: list[str] = []
        self._held: list[Callable[[], None]] | None = None

    def hold(self) -> Callable[[], None]:
        """From now on an app opens its timeline and reads nothing, until what this gives back is called."""
        held = self._held = []

        def go() -> None:
            self._held = None
            for read in held:
                read()

        return go

    def read(self, act: Callable[[], None]) -> None:
        """Read what there is: now, or once apps are no longer held."""
        act() if self._held is None else self._held.append(act)

    def submit(self, submission: Submission) -> RunningApp:
        if self._living:
            self.wrong.append(f"epoch {submission.epoch} was submitted while {self._living[0].epoch} lives")
        app = RunningApp(
            submission.stream,
            submission.epoch,
            submission.instance,
            str(submission.epoch),
            RunState.RUNNING,
            datetime.now(UTC),
            phase="running",
        )
        refused = self._stream.live(submission.epoch, submission.instance)
        if refused:
            self._ended[app.epoch] = replace(app, state=RunState.EXITED, ended_at=datetime.now(UTC), exit_code=14)
        else:
            self._living.append(app)
        return app

    def find(self, stream: str, *, fresh: bool = False) -> Sequence[RunningApp]:
        return list(self._living)

    def find_all(self) -> Mapping[str, Sequence[RunningApp]]:
        return {self._stream.stream: list(self._living)}

    def status(self, stream: str, epoch: int) -> RunningApp | None:
        return next((app for app in self._living if app.epoch == epoch), self._ended.get(epoch))

    def last_lines(self, stream: str, epoch: int, count: int) -> Sequence[str]:
        return []

    def stop(self, app: RunningApp) -> None:
        self._living.remove(app)
        self._ended[app.epoch] = replace(app, state=RunState.EXITED, ended_at=datetime.now(UTC), exit_code=0)

    def kill(self, app: RunningApp) -> None:
        self.stop(app)


class Surroundings:
    """One topic of two partitions that many streams read, each declared in a folder of its own."""

    def __init__(self, root: Path, stack: Stack, database: ControlDatabase) -> None:
        self.project = StreamProject(root / "first", stack, database, partitions=2).make()
        self.project.create_topic()
        self.project.produce(RECORDS)
        self.root, self.kafka = root, self.project.settings.kafka()
        self.ends = self.project.ends()
        self.topic_id = self.project.topic_id()
        upgrade(database.owner, database.working.user)
        self.database = database.working
        self.groups, self.log = KafkaGroups(self.kafka), KafkaLog(self.kafka, client_id="test")
        self.made: list[RewoundStream] = []
        self._making = threading.Lock()

    def new(self, **changes: Any) -> RewoundStream:
        """A stream that has done all there is and runs."""
        stream = RewoundStream(
            self.root / f"r{uuid.uuid4().hex[:8]}", self.project.stack, self.project.database, partitions=2, of=self
        )
        stream.mode = changes.get("mode", stream.mode)
        stream.on_rewind = changes.get("on_rewind", "refuse")
        stream.begin()
        with self._making:
            self.made.append(stream)
        return stream

    def close(self) -> None:
        for stream in self.made:
            self.project.query(f"DROP SCHEMA IF EXISTS {stream.name} CASCADE")
            for table in ("fence", "progress", "quarantine"):
                self.project.query(f"DELETE FROM millrace.{table} WHERE stream = %s", stream.stream)
        self.project.drop()


@dataclass
class RewoundStream(StreamProject):
    """One stream of them.

    Attributes:
        gives_one_of: of how many records its app makes one row.
    """

    of: Surroundings = field(kw_only=True)
    gives_one_of: int = field(kw_only=True, default=1)

    def __post_init__(self) -> None:
        self.apps = Apps(self)

    @property
    def topic(self) -> str:
        return self.of.project.topic

    def begin(self) -> None:
        for folder in ("include/pipelines", f"spark_apps/{self.name}", ".millrace"):
            (self.root / folder).mkdir(parents=True)
        self.deploy(factor=1)  # nothing here runs it: a declaration names it
        shutil.copy(self.of.project.root / ".millrace" / "env", self.root / ".millrace" / "env")
        self.declare()
        with self.platform_of() as platform:
            report = streams.start(platform, self.stream, ACTOR, "to be rewound")
            assert report.state == "running", report

    @contextmanager
    def platform_of(self, life: Life | None = None) -> Iterator[Platform]:
        """The adapters of one process; of a life that is to be struck, its calls are counted."""
        settings, given = self.settings, self.of
        with closing(ControlStore(given.database)) as control:
            watch = life.watch if life else lambda name, adapter: adapter
            adapters = SimpleNamespace(
                groups=watch("groups", given.groups),
                log=watch("kafka", given.log),
                sink=watch("sink", SinkReader(settings.postgres(SINK))),
            )

            held: Any = watched_control(life, control) if life else control
            made: Any = Adapters(settings, control=held)
            made.kafka = Instead(
                made.kafka, groups=lambda name=KAFKA: adapters.groups, logs=lambda name=KAFKA: adapters.log
            )
            made.sinks = Instead(made.sinks, tables=lambda connection: adapters.sink)
            made.apps = AppAdapters(settings, [watch("runner", self.apps)])
            yield made

    # What the app does

    def live(self, epoch: int, instance: str) -> str:
        """All that there is to do, as a driver does it; why it was refused, where it was."""
        pipeline = load_pipeline(self.root, self.name)
        declared = pipeline.stream("s")
        sink: Any = open_sink(self.settings, pipeline, declared, Identity(self.stream, epoch, instance), None)
        log = self.of.log
        sink.take_over()
        partitions = log.partitions([self.topic])
        opening = open_at(
            self.stream,
            epoch,
            sink.read_record(),
            log.committed(self.group, partitions),
            log.bounds(partitions),
            Wishes(declared.start, declared.on_rewind),
        )
        if isinstance(opening, Refuse):
            return opening.what
        positions = {partition: position.offset for partition, position in opening.positions.items()}
        if isinstance(opening, OpenTimeline):
            sink.open_positions(opening.timeline, positions)
        assert all(position.basis is not Basis.BEGINNING for position in opening.positions.values())
        self.apps.read(lambda: self._read(sink, opening.timeline, positions, epoch))
        return ""

    def _read(self, sink: Any, timeline: int, positions: Mapping[TopicPartition, int], epoch: int) -> None:
        sink.prepare(COLUMNS)
        sink.begin_batch()
        ranges = [OffsetRange(p, first, self.of.ends[p.partition]) for p, first in positions.items()]
        staged = sum(at % self.gives_one_of == 0 for entry in ranges for at in range(entry.first, entry.next))
        self._stage(sink, ranges)
        sink.commit_batch(timeline, ranges, Written((1,), staged))
        done = {entry.partition: entry.next for entry in ranges}
        self.of.groups.move(self.group, {p: (o, self._metadata(p, timeline, epoch, o)) for p, o in done.items()})
        sink.discard()
        sink.close()

    def _metadata(self, partition: TopicPartition, timeline: int, epoch: int, offset: int) -> str:
        return CommitMetadata(self.stream, partition.topic_id, timeline, epoch, offset).encode()

    def _stage(self, sink: Any, ranges: Sequence[OffsetRange]) -> None:
        statement = sql.SQL(
            "INSERT INTO {} (_attempt, _topic_id, _partition, _offset, _ordinal, id, amount{}) "
            "SELECT 1, %s, %s, at, 0, 'k' || at, at{} FROM generate_series(%s::bigint, %s - 1) AS at "
            "WHERE mod(at, %s) = 0"
        ).format(
            sink.staging.rows,
            sql.SQL(", _timestamp, _deleted" if sink.metadata else ""),
            sql.SQL(", now(), false" if sink.metadata else ""),
        )
        with connect(self.settings.postgres(SINK), "stage") as connection:
            for entry in ranges:
                source = (entry.partition.topic_id, entry.partition.partition, entry.first, entry.next)
                connection.execute(statement, (*source, self.gives_one_of))

    # What is done to it

    def plan(self, back: int = 2, **changes: Any) -> Plan:
        """A plan to read the last records of each partition again."""
        target = {(self.topic, number): end - back for number, end in self.of.ends.items()}
        with self.platform_of() as platform:
            asked = {"policy": Policy.FAIL, "by": ACTOR, "reason": "damaged", **changes}
            return rewind_plan.make_plan(platform, self.stream, target, **asked)

    def run(self, plan: Plan, life: Life | None = None) -> MillraceError | None:
        """One life of who runs the plan; what ended it, but for a crash."""
        with self.platform_of(life) as platform:
            act = lambda: running.run(platform, plan.id, actor=ACTOR, reason="repair")  # noqa: E731
            return life.lived(act) if life else _ended_by(act)

    def abort(self, plan: Plan, life: Life | None = None) -> MillraceError | None:
        """One life of who takes the plan back."""
        with self.platform_of(life) as platform:
            act = lambda: running.abort(platform, plan.id, actor=ACTOR, reason="wrong time")  # noqa: E731
            return life.lived(act) if life else _ended_by(act)

    def until_free(self, plan: Plan) -> None:
        """Wait until the right to run the plan is free: a server may count a dead runner for a moment."""

        def free() -> bool:
            with self.platform_of() as platform, platform.control.plans.running(plan.id) as mine:
                return mine

        eventually(free, within=Deadline.METADATA, what=f"the dead runner of {plan.id} to be noticed")

    def end(self, plan: Plan, act: Any) -> None:
        """Go on, by hand, until the plan has ended; a server may count a dead runner for a moment."""

        def tried() -> bool:
            error = act(plan)
            if error is not None and not isinstance(error, RefusedError):
                raise error
            return self.status(plan) not in (PlanStatus.OPEN, PlanStatus.RUNNING)

        eventually(tried, within=Deadline.METADATA, what=f"the end of {plan.id}")

    def status(self, plan: Plan) -> PlanStatus:
        with self.platform_of() as platform:
            return platform.control.plans.get(plan.id).status

    def wanted(self) -> str:
        with self.platform_of() as platform:
            found = platform.control.streams.desired(self.stream)
            return found.state.value if found else ""

    def damage(self) -> None:
        """Every row is wrong now: what is read again is right afterwards, the rest still wrong."""
        self.query(f"UPDATE {self.name}.rows SET id = 'damaged'")

    def wrong(self, *, rewound: int) -> list[str]:
        """What is not as it must be, with so many records of each partition read again; 0: all was put back."""
        timelines = [1, 2] if rewound else [1]
        found = [f"timelines {t}" for t in [self._timelines()] if t != timelines]
        rows = self.query(f"SELECT _partition, _offset, _timeline, id FROM {self.name}.rows ORDER BY 1, 2")
        wanted = [
            (number, at, 2 if at >= end - rewound else 1, f"k{at}" if at >= end - rewound else "damaged")
            for number, end in sorted(self.of.ends.items())
            for at in range(end)
        ]
        found += [f"rows {rows} instead of {wanted}"] if rows != wanted else []
        record, group = self.record_of_work(), committed(self)
        if not record == group == self.of.ends:
            found.append(f"the record is {record}, the group {group}, the log {self.of.ends}")
        if self.wanted() != "running":
            found.append(f"it is wanted {self.wanted()}")
        else:
            eventually(self._lives, within=Deadline.SERVER, what=f"the one app of {self.stream}")
        return found + self.apps.wrong

    def _lives(self) -> bool:
        """Whether one app lives, supervised: who dies in the middle of a start leaves one that nobody answered."""
        with self.platform_of() as platform:
            streams.supervise(platform, self.stream, ACTOR)
        return len(self.apps.find(self.stream)) == 1

    def _timelines(self) -> list[int]:
        asked = "SELECT DISTINCT timeline FROM millrace.progress WHERE stream = %s ORDER BY 1"
        return [int(row[0]) for row in self.query(asked, self.stream)]


def _ended_by(act: Any) -> MillraceError | None:
    try:
        act()
    except StalePlanError as error:
        return error
    except MillraceError as error:
        return error
    return None
