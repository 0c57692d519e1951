"""What every app's driver does, whatever it writes to: claim, beat, join the group, start Spark, report, end.

The claim in the control database lets one instance of an epoch through, and the group refuses older members' commits.
What fences older epochs in the sink is the sink's own, and comes between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millrace.adapters.apps.host import read_host
from millrace.adapters.control.store import ControlStore
from millrace.adapters.kafka.log import KafkaLog
from millrace.adapters.kafka.member import GroupMember
from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.declaration.pipeline import App, BackupApp
from millrace.domain.streams.control import BatchSecond, StreamProgress
from millrace.domain.streams.hosts import Host
from millrace.domain.streams.supervision import Phase
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import FencedError, MillraceError
from millrace.runtime.life.heartbeat import Heartbeat
from millrace.runtime.life.lookout import Lookout
from millrace.runtime.life.pulse import Pulse
from millrace.runtime.life.reporter import Reporter
from millrace.runtime.life.session import open_session
from millrace.settings import KafkaSettings, Settings

log = structlog.get_logger()

_LAG_WITHIN = timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the runner was told to start."""

    stream: str
    epoch: int
    instance: str
    accept_recreated: bool
    host: Host


class ClaimLostError(FencedError):
    """Another instance has claimed this epoch, or another host has adopted the stream."""


class Life:
    """One life of an app's driver, from the claim to the end; what is done in between is handed to `run`.

    Guarantees: who loses the claim writes nothing; the group is left before Spark ends, and both before the status
    says that the life has.

    Args:
        settings: the installation's settings.
        control: the control database.
        kafka: the Connection of the app's cluster.
        app: what is declared.
        launch: what the runner was told.
        folder: this epoch's own, for the status and for scratch.
        end: asks for the end of this life as a stop does; called where the control database says that it must end.
    """

    def __init__(
        self,
        settings: Settings,
        control: ControlStore,
        kafka: KafkaSettings,
        app: App,
        launch: Launch,
        folder: Path,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        self.settings = settings
        self.control = control
        self.kafka = kafka
        self.app = app
        self.launch = launch
        self.folder = folder
        self._end = end
        self.log = KafkaLog(kafka, client_id=f"millrace.{launch.stream}#{launch.epoch}")
        self.member = GroupMember(
            kafka,
            stream=launch.stream,
            group=app.group,
            epoch=launch.epoch,
            topics_may_go=isinstance(app, BackupApp),  # a stream reads on only with every topic that it declares
        )
        self.reporter = Reporter(self._save_progress, self._set_alarm)
        self.pulse = Pulse(folder / "status.json", app.stuck_after)
        self.heartbeat = Heartbeat(self._beat)
        self.lookout = Lookout(self.pulse)
        self._reached: Mapping[TopicPartition, int] = {}  # by the last batch

    def run(self, work: Callable[[Future[SparkSession]], None], spark_options: Mapping[str, str] = {}) -> None:
        """Claim the epoch, begin to start Spark, do the work, and end whatever came of it.

        Args:
            work: is given the session that is starting.
            spark_options: what this kind of app wants of its session.

        Raises:
            ClaimLostError: another instance runs this epoch: nothing was written, the epoch's folder is the winner's.
        """
        self._claim()
        self.heartbeat.start()
        self.pulse.phase(Phase.STARTING)
        error: str | None = None
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="spark-start") as pool:
                starting = pool.submit(self._open_session, spark_options)
                try:
                    work(starting)
                finally:
                    self.member.close()
                    _end_session(starting)
        except MillraceError as failure:
            error = str(failure)
            raise
        finally:
            self.pulse.phase(Phase.ENDED, error=error)
            self.reporter.close()
            self.heartbeat.close()
            self.pulse.close()

    def join(self, partitions: Sequence[TopicPartition], topics: Collection[str] | None = None) -> None:
        """Join the app's group as its one member: see `GroupMember.join`."""
        self.pulse.at(f"join the group {self.app.group}")
        self.member.join(partitions, topics)
        log.info(
            "group_joined" if partitions else "group_waits_for_topics", group=self.app.group, partitions=len(partitions)
        )

    def report(
        self, progress: StreamProgress, steps: Mapping[str, float], reached: Mapping[TopicPartition, int]
    ) -> None:
        """Tell people of a batch that went through.

        Args:
            progress: what it did; the lag is filled in when it is saved.
            steps: seconds of each of its steps.
            reached: the next offset of each partition.
        """
        self.pulse.done(progress.batch_id)
        self._reached = reached
        self.reporter.progress(progress, steps)

    def _claim(self) -> None:
        launch = self.launch
        if not self.control.streams.claim(launch.stream, launch.epoch, launch.instance, launch.host.identity):
            raise ClaimLostError(
                f"another instance claimed epoch {launch.epoch}, or another host adopted the stream",
                where=f"stream {launch.stream}",
            )
        log.info("claimed", stream=launch.stream, epoch=launch.epoch, instance=launch.instance)

    def _beat(self) -> None:
        """Give a heartbeat; end where the stream is to stop, or was adopted, and no supervision here has said so."""
        launch = self.launch
        phase, step = self.pulse.doing
        hosts = self.control.hosts
        if not hosts.beat(launch.stream, launch.epoch, launch.instance, self._host(), phase=phase, step=step):
            if phase not in (Phase.DRAINING, Phase.ENDED):
                log.warning("must_end", stream=launch.stream, epoch=launch.epoch)
            self._end()

    def _host(self) -> Host:
        """Return this host; its identity may have been made anew since the start."""
        found = read_host(self.settings.root)
        return found if found.identity else self.launch.host

    def _open_session(self, options: Mapping[str, str]) -> SparkSession:
        listing = self.settings.state_folder / "spark-jars"
        jars = [Path(line) for line in listing.read_text(encoding="utf-8").splitlines()] if listing.exists() else []
        return open_session(self.app, self.launch.epoch, jars, self.folder / "scratch", options)

    def _save_progress(self, progress: StreamProgress, history: Sequence[BatchSecond]) -> None:
        """Save the progress with the lag, which is asked for here and not in the batch.

        The lag is that of every partition or None: a part of it would look like a backup that keeps up. Brokers that
        hang hold up the row for seconds.
        """
        reached = self._reached
        lag: int | None
        try:
            ends = self.log.ends(reached, within=_LAG_WITHIN)
            lag = sum(max(0, ends[partition] - offset) for partition, offset in reached.items())
        except MillraceError:  # the batches that fail of it say so
            lag = None
        *before, last = history
        saved = (*before, replace(last, lag=lag))
        self.control.streams.save_progress(replace(progress, lag=lag), saved)

    def _set_alarm(self, kind: AlarmKind, detail: str | None, extent: Extent) -> None:
        alarms = self.control.alarms
        if detail is None:
            alarms.close(kind, self.launch.stream)
        else:
            alarms.open(kind, self.launch.stream, detail, extent)


def _end_session(starting: Future[SparkSession]) -> None:
    """Stop Spark. A JVM that is gone already needs no stopping, and its errors would hide why the app ended."""
    if starting.exception() is not None:
        return
    try:
        starting.result().stop()
    except (Py4JError, OSError) as error:
        log.warning("spark_ended_first", error=type(error).__name__)
