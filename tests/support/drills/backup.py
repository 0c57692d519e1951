"""What drills do to a backup: keep it busy, hold and kill its driver, hold its archive against what consumers get.

A driver is held at a request to the store, by a proxy before it: between two requests nothing of it is cut in half.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from enum import Enum
from typing import Any

from confluent_kafka import KafkaException, Producer

from millrace.adapters.apps.processes import Process, processes, send
from millrace.adapters.archive.chain import read_on
from millrace.adapters.chain.documents import decode
from millrace.adapters.chain.links import links
from millrace.adapters.s3.store import S3Store
from millrace.domain.archive.manifest import Kind, Manifest
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Verdict
from millrace.domain.archive.proof.tiling import Tiling
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError
from millrace.settings import STATE_FOLDER, S3Settings, read_environment_file, variable_name
from support.archive.chains import what_is_wrong
from support.archive.tees import TeeWorld, Topics
from support.archive.truth import PlainBucket, compare
from support.stack.faulty_proxy import FaultyProxy, plain_client
from support.streams.apps import Driven
from support.topics.plain_consumer import PlainTopic, read_topic
from support.waiting import Deadline, DeadlinePassedError, eventually, exit_code_of, joined

S3_VARIABLE = variable_name("millrace_s3")
PARTITIONS = 2
LARGE_RECORDS, LARGE = 600, b"." * 16_000  # of one partition over 8 MiB, which is due as soon as `every` has passed
HELD_SECONDS = 150.0
MOST_LOG = 6_000


# What an archive is held against


def consumed(world: TeeWorld, name: str) -> PlainTopic:
    """All that a consumer gets of a topic now."""
    return read_topic(world.topics.kafka.librdkafka, name)


def wrong_with(
    world: TeeWorld, name: str, *, topic_id: str = "", known: PlainTopic | None = None, lost: bool = False
) -> list[str]:
    """What is wrong with a topic's archive; empty: nothing, and every offset is archived once.

    Args:
        world: whose topic it is.
        name: of the topic.
        topic_id: of which incarnation; the present one's where it is left out.
        known: what consumers got of it; asked for now where it is left out.
        lost: whether records were lost on purpose, so that the proof has to say so.
    """
    known = known or consumed(world, name)
    topic_id = topic_id or world.topics.topic_id(name)
    settings = world.topics.settings.s3()
    bucket = PlainBucket(plain_client(settings), settings.bucket)
    wrong = [f"{name}: {fault}" for fault in compare(bucket, name, topic_id, known.records, known.bounds)]
    coverage = world.inspect(name, topic_id).coverage
    if coverage.verdict is not (Verdict.BROKEN if lost else Verdict.PROVEN):
        wrong.append(f"{name}: the proof says {coverage.verdict}: {', '.join(map(str, what_is_wrong(coverage)))}")
    return wrong


def manifests(world: TeeWorld, name: str) -> list[Manifest]:
    """A topic's chain."""
    chain = links(world.store, Incarnation(name, world.topics.topic_id(name)))
    return [decode(link.data, Manifest, link.key) for link in chain if link.data is not None]


def takeovers(found: Sequence[Manifest]) -> list[int]:
    """The epochs that took a chain over, in the order in which they did."""
    return [manifest.epoch for manifest in found if manifest.kind is Kind.TAKEOVER]


def out_of_order(found: Sequence[Manifest]) -> list[str]:
    """Manifests that an epoch wrote behind a newer one's takeover."""
    newest, wrong = 0, []
    for manifest in found:
        if manifest.epoch < newest:
            wrong.append(f"manifest {manifest.sequence} of {manifest.topic}: epoch {manifest.epoch} after {newest}")
        newest = max(newest, manifest.epoch)
    return wrong


class Busy:
    """Small records in every partition all the time, from a thread of its own; so many at most."""

    AT_ONCE = 20

    def __init__(
        self, topics: Topics, names: Collection[str], partitions: int, *, most: int, pause_seconds: float
    ) -> None:
        self._producer = Producer({**topics.kafka.librdkafka, "acks": "all", "linger.ms": 5})
        self._places = [(name, number) for name in names for number in range(partitions)]
        self._times = most // self.AT_ONCE
        self._pause_seconds = pause_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="busy", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        joined(self._thread, within=Deadline.SERVER, what="the last records to be produced")
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            for number in range(self._times):
                if self._over.wait(self._pause_seconds):
                    return
                for name, partition in self._places:
                    for each in range(self.AT_ONCE // len(self._places)):
                        self._producer.produce(name, b"%d.%d" % (number, each), partition=partition)
                assert self._producer.flush(Deadline.SERVER.seconds) == 0
        except BaseException as error:
            self._failure = error


# Where a driver is held


class Point(Enum):
    """Where a driver is when it is struck."""

    COPY = "during the copy"  # an object is on its way, the store has not seen it
    MANIFEST = "between object and manifest"  # a manifest is on its way, the store has not seen it
    COMMIT = "between manifest and commit"  # a manifest is written, its writer does not know yet

    def is_reached(self, operation: str, path: str, body: bytes, done: bool) -> bool:
        """Whether this request is the one; `done`: the store has carried it out."""
        if operation != "PutObject":
            return False
        if self is Point.COPY:
            return not done and path.endswith(".parquet")
        brings_objects = "/manifest/" in path and f'"kind":"{Kind.DATA}"'.encode() in body
        return brings_objects and done is (self is Point.COMMIT)


class Gate:
    """Holds one request to the store, until it is opened; the others pass.

    Args:
        proxy: before the store.
        pipeline: whose topics' requests are held.
    """

    def __init__(self, proxy: FaultyProxy, pipeline: str) -> None:
        self._pipeline = pipeline
        self._lock = threading.Lock()
        self._point: Point | None = None
        self._reached, self._opened = threading.Event(), threading.Event()
        self._began: set[str] = set()
        proxy.watcher = self._pass

    def arm(self, point: Point) -> None:
        """Hold the next request that is at this point, of those that begin from now on."""
        with self._lock:
            self._reached, self._opened = threading.Event(), threading.Event()
            self._began = set()
            self._point = point

    @property
    def is_reached(self) -> bool:
        """Whether one is held."""
        return self._reached.is_set()

    def open(self) -> None:
        """Let it go on; hold none from now on."""
        with self._lock:
            self._point = None
            self._opened.set()

    def _pass(self, operation: str, path: str, body: bytes, done: bool) -> None:
        with self._lock:
            if self._point is None or self._pipeline not in path:
                return
            if not done:
                self._began.add(path)
            if path not in self._began or not self._point.is_reached(operation, path, body, done):
                return
            self._point = None
            reached, opened = self._reached, self._opened
        reached.set()
        opened.wait(HELD_SECONDS)


def connection_through(stack: Stack, proxy: FaultyProxy) -> str:
    """The store's Connection, in Airflow's JSON form, that leads through a proxy."""
    said = json.loads(read_environment_file(stack.root / STATE_FOLDER / "env")[S3_VARIABLE])
    extra = said["extra"] if isinstance(said["extra"], dict) else json.loads(said["extra"])
    return json.dumps({**said, "extra": {**extra, "endpoint_url": proxy.settings.endpoint_url}})


# The drill


class BackupDrill:
    """A pipeline with a backup, and its driver, which is started again wherever it has ended.

    Two topics, so that there is a moment between the manifests of both: one of large records, which are archived some
    seconds after they came, and one of small ones, which wait for half a minute.

    Args:
        stack: with Kafka, the object store and PostgreSQL running.
        direct: the store, past the proxy.
        proxy: before the store; the driver goes through it.
    """

    def __init__(self, stack: Stack, direct: S3Settings, proxy: FaultyProxy) -> None:
        self.stack = stack
        self.topics = Topics(stack)
        self.gate = Gate(proxy, self.topics.pipeline)
        self.large = self.topics.make("large", partitions=PARTITIONS)
        self.small = self.topics.make("small", partitions=PARTITIONS)
        self.names = (self.large, self.small)
        self.world = TeeWorld(self.topics, self.names, S3Store(direct))
        self.app = Driven(stack.root, f"{self.topics.pipeline}.backup")
        self.ended: list[int] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._sessions: list[int] = []
        self._lives = ExitStack()
        self._filled = 0
        self._tilings = {name: Tiling(Incarnation(name, self.topics.topic_id(name))) for name in self.names}
        self._file = stack.root / "include" / "pipelines" / f"{self.topics.pipeline}.yaml"
        declared = "".join(
            f"  {name}:\n    manage: none\n    backup: {{every: 10s, max_lag: 1m}}\n" for name in self.names
        )
        self._file.write_text(f"pipeline: {self.topics.pipeline}\nowner: tests\ntopics:\n{declared}")

    def busy(self) -> Busy:
        """Small records meanwhile."""
        return Busy(self.topics, [self.small], PARTITIONS, most=12_000, pause_seconds=0.2)

    def fill(self) -> None:
        """Large records that are soon due."""
        numbers = range(self._filled, self._filled + LARGE_RECORDS)
        for partition in range(PARTITIONS):
            self.topics.produce(self.large, partition, [b"%d" % number + LARGE for number in numbers])
        self._filled += LARGE_RECORDS

    # The driver

    @property
    def driver(self) -> subprocess.Popen[bytes]:
        """The one that was started last."""
        assert self._driver is not None
        return self._driver

    def begin(self) -> None:
        """Start the next epoch, whatever is with the one before."""
        self._driver = self._lives.enter_context(self.app.started())
        self._sessions.append(self._driver.pid)

    def supervise(self) -> None:
        """Start the next epoch where the driver has ended."""
        if self._driver is not None and (code := self._driver.poll()) is not None:
            self.ended.append(code)
        if self._driver is None or self._driver.poll() is not None:
            self.begin()

    def eventually(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition while supervising, with the end of the driver's log where it does not come."""

        def look() -> Any:
            self.supervise()
            return condition()

        try:
            eventually(look, within=Deadline.STREAM, what=what, ignoring=(MillraceError, KafkaException, OSError))
        except DeadlinePassedError as error:
            error.add_note(self.app.log()[-MOST_LOG:])
            raise

    def processes(self, driver: subprocess.Popen[bytes] | None = None) -> list[Process]:
        """All that a driver has started and that lives, itself included."""
        session = (driver or self.driver).pid
        return [one for one in processes() if one.session == session]

    # Blows

    def held(self, point: Point) -> None:
        """Have the driver held at a point, with records that it brings there."""
        self.gate.arm(point)
        self.fill()
        self.eventually(lambda: self.gate.is_reached, f"the driver to be {point.value}")

    def strike(self, point: Point, kill: Callable[[BackupDrill], None]) -> None:
        """Kill at a point, let go on what lives, and wait until what was there is archived."""
        self.held(point)
        kill(self)
        self.gate.open()
        self.until_archived()

    def until_archived(self) -> None:
        """Wait until all large records are archived."""
        self.eventually(
            lambda: self._archived(self.large) >= self._filled * PARTITIONS, "all large records in the archive"
        )

    def wrong(self) -> list[str]:
        """Wait until all is archived, stop the driver in order, and say what is wrong then."""
        ends = {name: sum(bounds.end for bounds in consumed(self.world, name).bounds.values()) for name in self.names}
        for name, end in ends.items():
            self.eventually(lambda name=name, end=end: self._archived(name) == end, f"all of {name} in the archive")
        self.driver.send_signal(signal.SIGTERM)
        code = exit_code_of(self.driver, within=Deadline.STREAM, what="the driver to stop")
        wrong = [f"the last driver ended with {code}"] if code else []
        for name in self.names:
            wrong += out_of_order(manifests(self.world, name)) + wrong_with(self.world, name)
        return wrong

    def _archived(self, name: str) -> int:
        """How many offsets of a topic its chain names."""
        tiling = self._tilings[name]
        read_on(self.world.store, tiling)
        return sum(state.next for state in tiling.partitions.values())

    def close(self) -> None:
        """End every process of this drill."""
        self.gate.open()
        for one in processes():
            if one.session in self._sessions and one.pid not in self._sessions:
                send(one, signal.SIGKILL)
        self._lives.close()
        self._file.unlink(missing_ok=True)


# Victims


def kill_jvm(drill: BackupDrill) -> None:
    """SIGKILL the driver's JVM."""
    _kill(drill, [one for one in drill.processes() if "java" in _program(one.pid)])


def kill_workers(drill: BackupDrill) -> None:
    """SIGKILL the Python workers that Spark's daemon has forked, not the daemon."""
    daemons = {one.pid for one in drill.processes() if "worker_daemon" in _command(one.pid)}
    _kill(drill, [one for one in drill.processes() if one.pid in daemons and one.parent in daemons])


def kill_driver(drill: BackupDrill) -> None:
    """SIGKILL the driver alone: its JVM and its workers end by themselves, or write on for a while."""
    os.kill(drill.driver.pid, signal.SIGKILL)
    exit_code_of(drill.driver, within=Deadline.KILLED, what="the driver's death")


def _kill(drill: BackupDrill, victims: Sequence[Process]) -> None:
    assert victims, f"there is nobody to kill among {[_command(one.pid) for one in drill.processes()]}"
    for one in victims:
        send(one, signal.SIGKILL)


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as line:
            return line.read()
    except OSError:
        return ""


def pss_bytes(drill: BackupDrill) -> dict[str, int]:
    """The memory of the driver, its JVM and its Python workers; pages that several of them share count once."""
    found = {"driver": 0, "JVM": 0, "workers": 0}
    for one in drill.processes():
        role = "driver" if one.pid == drill.driver.pid else "JVM" if "java" in _program(one.pid) else "workers"
        try:
            with open(f"/proc/{one.pid}/smaps_rollup", encoding="ascii") as lines:
                found[role] += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except OSError:  # ended meanwhile
            continue
    return found
