"""The driver of a backup: join the group, take each topic's chain over, then one round after another."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime

import structlog
from pyspark.sql import SparkSession

from millrace.adapters.archive.looks import Looks
from millrace.adapters.archive.plain import PlainCopier
from millrace.domain.archive.pace import rest
from millrace.domain.chain.head import Writer
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.groups.commits import archived_to
from millrace.domain.retention.headroom import Headroom
from millrace.domain.streams.control import StreamProgress
from millrace.domain.streams.supervision import Phase
from millrace.errors import FencedError, MillraceError, RefusedError, UnreachableError
from millrace.ports.objects import ObjectStore
from millrace.runtime.backup.asked import Asked, Claimants
from millrace.runtime.backup.breaches import Breaches
from millrace.runtime.backup.copying import Destination, PatientCopier, SparkCopier
from millrace.runtime.backup.doom import Doom
from millrace.runtime.backup.parts import Parts
from millrace.runtime.backup.silence import Silence
from millrace.runtime.backup.tee import Round, Tee
from millrace.runtime.life.app import Life
from millrace.wiring import open_platform

log = structlog.get_logger()

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
# Spark keeps consumers, and what they fetched ahead, for five minutes: longer than a log may need to be another one.
SPARK_OPTIONS = {
    f"spark.kafka.consumer.{cache}.{setting}": "5s"
    for cache in ("cache", "fetchedData.cache")
    for setting in ("timeout", "evictorThreadRunInterval")
}


class BackupDriver:
    """Keeps a pipeline's backup until it is told to stop, fails, or loses its place to a newer epoch.

    Args:
        life: what it has in common with the drivers of streams.
        pipeline: whose topics.
    """

    def __init__(self, life: Life, pipeline: Pipeline) -> None:
        assert pipeline.backup is not None
        self._life = life
        self._app = pipeline.backup
        self._cluster = pipeline.kafka
        self._platform = open_platform(life.settings)
        self._breaches = Breaches(life.control.alarms)
        self._doom = Doom(self._app.qualified_name, self._headroom, self._breaches.say)
        self._silent: Mapping[str, str] = {}  # in the last look
        self._silence = Silence(self._app.qualified_name, self._breaches.say, lambda: datetime.now(UTC))

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set, and then to the end of the round; raises what ended the backup."""
        self._life.run(lambda starting: self._work(starting, stop), SPARK_OPTIONS)

    def _work(self, starting: Future[SparkSession], stop: threading.Event) -> None:
        life = self._life
        life.pulse.at("look at the topics")
        life.join(sorted(life.log.described(self._app.reads).leaders), self._app.reads)
        life.pulse.at("start Spark")
        session = starting.result()
        life.lookout.watch_jvm(session)
        store = self._platform.objects.store(self._app.store)
        tee = Tee(self._parts(session, store))
        life.pulse.phase(Phase.RUNNING)
        life.pulse.ready()
        log.info("running", stream=life.launch.stream, topics=len(self._app.reads))
        self._rounds(tee, store, stop)
        life.pulse.phase(Phase.DRAINING)
        log.info("draining", asked=stop.is_set())

    def _parts(self, session: SparkSession, store: ObjectStore) -> Parts:
        life, name = self._life, self._app.qualified_name
        spark = SparkCopier(session, life.kafka, name, store, Destination(life.settings.s3(self._app.store)))
        plain = PlainCopier(self._platform.kafka.records(self._cluster), store)
        return Parts(
            app=self._app,
            store=store,
            look=Looks(life.log, self._platform.kafka.topics(self._cluster)).look_around,
            copier=PatientCopier(spark, plain),
            committed=lambda partitions: life.log.committed(self._app.group, partitions),
            commit=life.member.commit,
            writer=Writer(life.launch.epoch, life.launch.instance),
            claimed=Claimants(lambda epoch: life.control.streams.claimed(name, epoch)).of,
            asked=Asked(lambda: life.control.backups.waiting(name)).now,
            taken=life.control.backups.taken,
            expiries=Asked(lambda: life.control.backups.expiries(name)).now,
            expired=life.control.backups.expired,
            breach=self._breaches.say,
            step=life.pulse.at,
            clock=lambda: datetime.now(UTC),
        )

    def _rounds(self, tee: Tee, store: ObjectStore, stop: threading.Event) -> None:
        pause = rest([topic.backup for topic in self._app.topics if topic.backup is not None])
        number, proven = 0, False
        while not stop.is_set():
            number += 1
            done = self._round(number, tee, None if proven else store, stop)
            if done is None:
                return
            self._doom.look(keeps_up=not done.behind and not done.silent, complete=not done.silent)
            self._breaches.flush()
            proven = True
            self._life.pulse.ready()
            if not done.behind:
                stop.wait(pause.total_seconds())

    def _round(self, number: int, tee: Tee, unproven: ObjectStore | None, stop: threading.Event) -> Round | None:
        """One round, and again where something did not answer; None where a stop came first.

        Raises:
            FencedError: this epoch's time is over.
            RefusedError: the store would write over what is there.
        """
        seconds = FIRST_PAUSE_SECONDS
        with self._life.pulse.batch(number):
            while not stop.is_set():
                self._life.member.check()
                try:
                    if unproven is not None:
                        self._prove(unproven, tee)
                        unproven = None
                    done = tee.round()
                    self._note_silence(tee)
                    if done.objects:
                        self._report(number, done)
                        seconds = FIRST_PAUSE_SECONDS
                    if done.failure is not None:
                        raise done.failure
                    return done
                except FencedError:
                    raise
                except MillraceError as error:
                    if unproven is not None and isinstance(error, RefusedError):
                        raise
                    log.warning("round_failed", round=number, error=str(error))
                    self._life.pulse.at(f"round {number}: pause before it is tried again")
                    self._life.pulse.waits_for(error.what)
                    self._note_silence(tee)
                    self._doom.look(keeps_up=False, complete=not self._silent)
                    self._breaches.flush()
                    stop.wait(seconds)
                    seconds = min(2 * seconds, LONGEST_PAUSE_SECONDS)
        return None

    def _prove(self, store: ObjectStore, tee: Tee) -> None:
        self._life.pulse.at("see that the store writes over nothing")
        try:
            store.prove_create_only()
        except UnreachableError:
            tee.look()  # no round comes before the store answers, and the alarms need to know which brokers do
            raise

    def _note_silence(self, tee: Tee) -> None:
        """Take in what gave the last look no answer, also where the round failed after it, as without a store."""
        if (silent := tee.silent) is not None:
            self._silent = silent
            self._life.pulse.notice(self._silence.heard(silent))

    def _headroom(self) -> Headroom | None:
        """Return the unarchived record that may be deleted first.

        The group's commits say what is archived: they can be read while the store is away. Topics and partitions that
        gave the last look no answer are left out.
        """
        leaders = self._life.log.described([topic for topic in self._app.reads if topic not in self._silent]).leaders
        partitions = sorted(p for p in leaders if f"{p.topic}/{p.partition}" not in self._silent)
        positions = archived_to(partitions, self._life.log.committed(self._app.group, partitions))
        return self._platform.kafka.unread(self._cluster).least(positions)

    def _report(self, number: int, done: Round) -> None:
        log.info(
            "archived",
            round=number,
            records=done.records,
            objects=done.objects,
            bytes=done.bytes,
            waiting=done.waiting,
            **{f"{step}_seconds": round(seconds, 3) for step, seconds in done.seconds.items()},
        )
        progress = StreamProgress(
            stream=self._life.launch.stream,
            epoch=self._life.launch.epoch,
            timeline=0,
            at=datetime.now(UTC),
            batch_id=number,
            rows_in=done.records,
            rows_out=done.records,
            quarantined=0,
            batch_seconds=sum(done.seconds.values()),
            last_error=None,
            positions={str(partition): offset for partition, offset in done.positions.items()},
        )
        self._life.report(progress, done.seconds, done.positions)
