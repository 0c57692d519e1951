"""A chain with which nobody can go on halts its own topic, and what people said of it is not lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from millrace.adapters.archive.cutting import Copied
from millrace.adapters.archive.summaries import put_summary
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.expiry import Expiry
from millrace.domain.archive.manifest import Kind, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import Read
from millrace.domain.archive.proof.tiling import LogsSeen, ObservedLog, Tiling
from millrace.domain.chain.head import LARGEST_EPOCH, Writer
from millrace.domain.declaration.pipeline import Backup, BackupApp, Topic
from millrace.domain.groups.commits import Committed
from millrace.domain.streams.control import Claim
from millrace.domain.streams.position import LogBounds
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import FencedError, PartFailedError, UnreachableError
from millrace.runtime.backup.asked import Claimants
from millrace.runtime.backup.parts import Parts
from millrace.runtime.backup.silence import Silence
from millrace.runtime.backup.tee import Tee
from support.archive.audits.in_memory import NOON
from support.archive.chains import entry, read_chain
from support.fakes.objects import MemoryStore

A, B = Incarnation("shop.a", "A" * 22), Incarnation("shop.b", "B" * 22)
AT_ONCE = Backup(every=timedelta(0), max_lag=timedelta(0), keep=timedelta(0))


@dataclass
class World:
    """Two topics with ten offsets each, and an app whose copier only notes what it is asked for."""

    store: MemoryStore = field(default_factory=MemoryStore)
    ids: dict[str, str] = field(default_factory=lambda: {A.topic: A.topic_id, B.topic: B.topic_id})
    starts: dict[str, int] = field(default_factory=lambda: {A.topic: 0, B.topic: 0})
    hidden: set[str] = field(default_factory=set)  # topics that may not be described
    mute: set[str] = field(default_factory=set)  # topics whose partition gives no answer
    now: datetime = NOON
    asked: list[Acknowledgement] = field(default_factory=list)
    expiries: list[Expiry] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    alarms: dict[tuple[str, str], str | None] = field(default_factory=dict)
    extents: dict[tuple[str, str], Extent] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)
    claims: dict[int, str] = field(default_factory=dict)
    control_is_away: bool = False
    commits: dict[tuple[str, int], Committed] = field(default_factory=dict)

    def look(self, topics: Collection[str]) -> LogsSeen:
        self.now += timedelta(seconds=1)
        logs = {}
        for topic in set(topics) - self.hidden:
            bounds = {} if topic in self.mute else {0: LogBounds(self.starts[topic], 10)}
            logs[topic] = ObservedLog(self.now, self.ids[topic], bounds, partitions=1)
        silent = {topic: "not authorized" for topic in self.hidden & set(topics)}
        return LogsSeen(logs, silent | {f"{topic}/0": "timed out" for topic in self.mute & set(topics)})

    def copy(self, reads: Sequence[Read]) -> Sequence[Copied]:
        self.copied += [read.partition.topic for read in reads]
        return []

    def committed(self, partitions: Collection[TopicPartition]) -> Mapping[tuple[str, int], Committed]:
        keys = {(partition.topic, partition.partition) for partition in partitions}
        return {key: commit for key, commit in self.commits.items() if key in keys}

    def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
        self.commits |= {(partition.topic, partition.partition): each for partition, each in commits.items()}

    def _taken(self, identity: int) -> None:
        self.taken.append(identity)
        self.asked = [one for one in self.asked if one.identity != identity]

    def claimed(self, epoch: int) -> str | None:
        if self.control_is_away:
            raise UnreachableError("the control database does not answer")
        return self.claims.get(epoch)

    def archived_by(self, here: Incarnation, epoch: int, instance: str) -> ArchiveWriter:
        """Let somebody else take a chain over."""
        tiling = Tiling(here)
        look = lambda: ObservedLog(self.now, here.topic_id, {0: LogBounds(0, 10)})  # noqa: E731
        return ArchiveWriter.take_over(self.store, tiling, Writer(epoch, instance), look)

    def tee(self, epoch: int = 1) -> Tee:
        self.claims[epoch] = f"i{epoch}"
        topics = tuple(Topic(name, "shop", partitions=1, backup=AT_ONCE) for name in (A.topic, B.topic))
        given: dict[str, Any] = {
            "app": BackupApp("shop", topics),
            "store": self.store,
            "look": self.look,
            "copier": self,
            "committed": self.committed,
            "commit": self.commit,
            "writer": Writer(epoch, f"i{epoch}"),
            "claimed": self.claimed,
            "asked": lambda: list(self.asked),
            "taken": self._taken,
            "expiries": lambda: list(self.expiries),
            "expired": lambda identity, reached: None,
            "breach": self._breach,
            "step": lambda text: None,
            "clock": lambda: self.now,
        }
        return Tee(Parts(**given))

    def _breach(self, kind: str, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        self.alarms[kind, subject] = detail
        self.extents[kind, subject] = extent


@pytest.mark.parametrize("cause", ["acknowledged", "lost"])
def test_a_head_that_was_deleted_halts_its_own_topic_and_no_other(cause: str) -> None:
    world = World()
    tee = world.tee()
    tee.round()
    assert world.copied == [A.topic, B.topic]
    del world.store.objects[max(key for key in world.store.objects if key.startswith(A.manifests))]
    if cause == "lost":
        world.starts[A.topic] = 4
    else:
        world.asked = [Acknowledgement(1, "shop.backup", A, PartitionSpan(0, 0, 5), None, "ann", "seen")]
    world.copied.clear()
    for _ in range(2):
        tee.round()
    assert "is missing" in tee.halted[A]
    assert world.alarms[AlarmKind.BACKUP_HALTED, str(A)]
    assert world.extents[AlarmKind.BACKUP_HALTED, str(A)] == Extent(fault="corrupt")
    assert world.copied == [B.topic] * 2
    assert world.taken == []


def test_the_alarm_of_lost_offsets_says_how_many_there_are_each_time_it_is_said() -> None:
    world = World()
    tee = world.tee()
    for start in (4, 9):
        tee.round()
        world.starts[A.topic] = start
        tee.round()
        assert world.extents[AlarmKind.BACKUP_LOST, str(A)] == Extent(start)
        assert f"{start} offsets are not in the archive" in (world.alarms[AlarmKind.BACKUP_LOST, str(A)] or "")


def test_a_former_chain_that_another_app_wrote_on_holds_up_nothing() -> None:
    world = World()
    former = Incarnation(A.topic, "C" * 22)
    world.archived_by(former, 9, "another app's")
    tee = world.tee()
    world.asked = [Acknowledgement(1, "shop.backup", former, PartitionSpan(0, 0, 5), None, "ann", "seen")]
    world.expiries = [Expiry(1, "shop.backup", former, 5, "ann", "old")]
    for _ in range(2):
        tee.round()
    assert world.copied == [A.topic, B.topic] * 2
    assert (world.taken, world.alarms.get((AlarmKind.BACKUP_HALTED, str(former)))) == ([], None)


def test_what_is_known_of_a_topic_that_is_gone_is_written_where_the_end_of_its_chain_is_gone_too() -> None:
    world = World()
    tiling = Tiling(A)
    chain = ArchiveWriter.take_over(world.store, tiling, Writer(1, "z"), lambda: world.look([A.topic]).logs[A.topic])
    chain.append(Kind.LOOK, world.look([A.topic]).logs[A.topic])
    put_summary(world.store, tiling)
    del world.store.objects[A.manifest_key(1)]
    world.ids[A.topic] = "C" * 22
    tee = world.tee(5)
    tee.round()
    lost = Acknowledgement(8, "shop.backup", A, PartitionSpan(0, 0, 10), None, "ann", "lost")
    world.asked = [lost]
    for _ in range(2):
        tee.round()
    assert (world.taken, A in tee.halted) == ([], True)
    world.asked = [lost, Acknowledgement(7, "shop.backup", A, None, 1, "ann", "deleted by hand")]
    for _ in range(2):
        tee.round()
    assert sorted(world.taken) == [7, 8]
    assert [manifest.kind for manifest in read_chain(world.store, A)][-1] is Kind.ACKNOWLEDGEMENT
    assert A not in tee.halted


@pytest.mark.parametrize("silent", ["hidden", "mute"])
def test_a_topic_that_gives_no_answer_waits_and_holds_up_no_other(silent: str) -> None:
    world = World()
    tee = world.tee()
    tee.round()
    before = [manifest.sequence for manifest in read_chain(world.store, A)]
    setattr(world, silent, {A.topic})
    world.copied.clear()
    for _ in range(3):
        done = tee.round()
        world.now += timedelta(minutes=10)
    assert set(done.silent) == {A.topic if silent == "hidden" else f"{A.topic}/0"}
    assert world.copied == [B.topic] * 3
    assert [manifest.sequence for manifest in read_chain(world.store, A)] == before
    assert (world.alarms.get((AlarmKind.BACKUP_LOST, str(A))), dict(tee.halted)) == (None, {})
    setattr(world, silent, set())
    world.copied.clear()
    assert not tee.round().silent
    assert set(world.copied) == {A.topic, B.topic}


@pytest.mark.parametrize("silent", ["hidden", "mute"])
def test_a_topic_without_an_answer_from_the_start_is_taken_over_when_it_answers(silent: str) -> None:
    world = World()
    setattr(world, silent, {A.topic})
    tee = world.tee()
    tee.round()
    assert world.copied == [B.topic]
    setattr(world, silent, set())
    tee.round()
    assert set(world.copied) == {A.topic, B.topic}
    assert world.alarms.get((AlarmKind.BACKUP_LOST, str(A))) is None


@pytest.mark.parametrize("silent", ["hidden", "mute"])
def test_a_loss_that_was_told_stays_open_while_its_partition_gives_no_answer(silent: str) -> None:
    world = World()
    tee = world.tee()
    world.starts[A.topic] = 4
    tee.round()
    assert world.alarms.get((AlarmKind.BACKUP_LOST, str(A))) is None  # the account begins with the first look
    world.starts[A.topic] = 7
    tee.round()
    told = world.alarms[AlarmKind.BACKUP_LOST, str(A)]
    assert "3 offsets are not in the archive" in str(told)
    setattr(world, silent, {A.topic})
    world.asked = [Acknowledgement(1, "shop.backup", A, PartitionSpan(0, 4, 7), None, "ann", "seen")]
    for _ in range(2):
        tee.round()
    assert (world.taken, world.alarms[AlarmKind.BACKUP_LOST, str(A)]) == ([], told)
    setattr(world, silent, set())
    tee.round()
    assert (world.taken, world.alarms[AlarmKind.BACKUP_LOST, str(A)]) == ([1], None)


def test_reads_of_a_leader_that_fell_silent_are_left_out_and_the_others_are_copied() -> None:
    class Failing(World):
        def copy(self, reads: Sequence[Read]) -> Sequence[Copied]:
            if any(read.partition.topic == A.topic for read in reads):
                self.mute = {A.topic}
                raise PartFailedError("Spark could not copy", where="shop")
            return super().copy(reads)

    world = Failing()
    done = world.tee().round()
    assert (world.copied, done.failure, set(done.silent)) == ([B.topic], None, {f"{A.topic}/0"})


def test_a_chain_whose_topic_gives_no_answer_is_not_committed() -> None:
    class Refusing(World):
        refuses = True

        def commit(self, commits: Mapping[TopicPartition, Committed]) -> None:
            if self.refuses:
                raise UnreachableError("the coordinator does not answer")
            super().commit(commits)

    world = Refusing()
    tee = world.tee()
    with pytest.raises(UnreachableError):
        tee.round()
    world.refuses, world.hidden = False, {A.topic}
    tee.round()
    assert set(world.commits) == {(B.topic, 0)}
    world.hidden = set()
    tee.round()
    assert set(world.commits) == {(A.topic, 0), (B.topic, 0)}


def test_objects_of_a_partition_that_falls_silent_between_two_manifests_wait_and_halt_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Copying(World):
        looks: int | None = None  # since the copy

        def look(self, topics: Collection[str]) -> LogsSeen:
            if self.looks is not None:
                self.mute = {A.topic} if self.looks else set()  # it answers the look after the copy, and no other
                self.looks += 1
            return super().look(topics)

        def copy(self, reads: Sequence[Read]) -> Sequence[Copied]:
            self.looks = 0
            return [Copied(read, (entry(0, 4), entry(4, 10)), 10) for read in reads if read.partition.topic == A.topic]

    monkeypatch.setattr("millrace.runtime.backup.tee.MANIFEST_OBJECTS", 1)
    world = Copying()
    tee = world.tee()
    done = tee.round()
    named = [each for manifest in read_chain(world.store, A) for each in manifest.objects]
    assert [(each.first, each.next) for each in named] == [(0, 4)]
    assert A not in tee.halted
    assert set(done.silent) == {f"{A.topic}/0"}


def test_an_alarm_of_silence_is_over_when_all_that_it_names_answer_and_others_fall_silent() -> None:
    said: list[str | None] = []
    now = [NOON]
    silence = Silence("shop.backup", lambda kind, subject, detail, extent=UNKNOWN: said.append(detail), lambda: now[0])
    silence.heard({"shop.a/0": "timed out"})
    now[0] += timedelta(minutes=5)
    silence.heard({"shop.a/0": "timed out"})
    silence.heard({"shop.b/0": "timed out"})
    assert len(said) == 2
    assert said[1] is None


def test_an_alarm_names_what_gives_no_answer_for_five_minutes_and_closes_when_it_does() -> None:
    told: dict[str, str | None] = {}
    extents: list[Extent] = []
    now = [NOON]

    def say(kind: str, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        told[f"{kind} {subject}"] = detail
        extents.append(extent)

    silence = Silence("shop.backup", say, lambda: now[0])
    names = {f"shop.a/{number}": "broker 2: it did not answer in time" for number in range(7)}
    assert silence.heard(names).endswith("shop.a/4 (broker 2: it did not answer in time) and 2 more")
    assert told == {}  # an alarm of a former epoch stays as it is
    now[0] += timedelta(minutes=5)
    silence.heard(names)
    assert "shop.a/0 (broker 2" in str(told["backup.silent shop.backup"])
    assert silence.heard({}) == ""
    assert told == {"backup.silent shop.backup": None}
    assert extents == [Extent(7), UNKNOWN]


# Fences


@pytest.mark.parametrize("meets", ["at its start", "while it runs", "as its own epoch"])
def test_a_head_of_an_epoch_that_nobody_claimed_halts_its_own_topic(meets: str) -> None:
    world = World()
    epoch = 5 if meets == "as its own epoch" else 9
    world.archived_by(B, 3, "i3")
    if meets != "while it runs":
        world.archived_by(A, epoch, "somebody's")
    tee = world.tee(5)
    tee.round()
    if meets == "while it runs":
        world.archived_by(A, epoch, "somebody's")
        world.starts[A.topic] = 4  # a loss, which has to be written down
        tee.round()
    before = sorted(world.store.objects)
    world.copied.clear()
    tee.round()
    assert world.copied == [B.topic]
    assert sorted(world.store.objects) == before
    told = world.alarms[AlarmKind.BACKUP_HALTED, str(A)] or ""
    assert f"epoch {epoch}, instance somebody's, that no start claimed" in told
    assert "`millrace streams stop shop.backup --reason TEXT`, then `start`" in told
    assert world.alarms[AlarmKind.BACKUP_HALTED, str(B)] is None
    world.tee(10).round()
    assert world.alarms[AlarmKind.BACKUP_HALTED, str(A)] is None


@pytest.mark.parametrize("meets", ["at its start", "while it runs"])
def test_a_head_of_an_epoch_that_another_instance_claimed_ends_the_app(meets: str) -> None:
    world = World(claims={9: "i9"})
    tee = world.tee(5)
    if meets == "while it runs":
        tee.round()
    world.archived_by(A, 9, "i9")
    world.starts[A.topic] = 4
    with pytest.raises(FencedError, match="epoch 9 of another instance"):
        tee.round()
    assert not any(world.alarms.values())


def test_a_fence_waits_for_the_control_database_and_holds_up_no_other_topic() -> None:
    world = World()
    tee = world.tee(5)
    tee.round()
    world.archived_by(A, 9, "i9")
    world.starts[A.topic] = 4
    world.control_is_away = True
    before = sorted(world.store.objects)
    world.copied.clear()
    for _ in range(2):
        tee.round()
    assert world.copied == [B.topic] * 2
    assert (sorted(world.store.objects), tee.halted, any(world.alarms.values())) == (before, {}, False)
    world.control_is_away, world.claims[9] = False, "i9"
    with pytest.raises(FencedError):
        tee.round()


def test_an_app_ends_where_its_start_was_too_low_for_every_chain() -> None:
    """Its start could not ask the bucket. It is started again, and the next start can."""
    world = World()
    for here in (A, B):
        world.archived_by(here, 9, "of a database that is lost")
    with pytest.raises(FencedError):
        world.tee(1).round()
    world.tee(10).round()
    assert world.copied == [A.topic, B.topic]


@pytest.mark.parametrize("at_first", ["hidden", "mute", "without the control database", "beside a new topic"])
def test_an_app_that_was_too_low_ends_also_where_that_shows_later(at_first: str) -> None:
    world = World()
    for here in (A,) if at_first == "beside a new topic" else (A, B):
        world.archived_by(here, 9, "of a database that is lost")
    tee = world.tee(1)
    if at_first in ("hidden", "mute"):
        setattr(world, at_first, {A.topic, B.topic})
    world.control_is_away = at_first == "without the control database"
    with pytest.raises(FencedError):  # noqa: PT012 - a silent leader hides no chain, so the first round may end it
        tee.round()
        world.hidden, world.mute, world.control_is_away = set(), set(), False
        tee.round()


def test_a_loss_that_a_former_epoch_told_stays_told_while_its_partition_gives_no_answer() -> None:
    world = World()
    tee = world.tee(1)
    world.starts[A.topic] = 4
    tee.round()
    world.starts[A.topic] = 7
    tee.round()
    told = world.alarms[AlarmKind.BACKUP_LOST, str(A)]
    assert told
    world.mute = {A.topic}
    world.tee(2).round()
    assert world.alarms[AlarmKind.BACKUP_LOST, str(A)] == told
    world.mute = set()
    later = world.tee(3)
    later.round()
    assert world.alarms[AlarmKind.BACKUP_LOST, str(A)]


def test_an_epoch_that_no_start_may_exceed_halts_its_topic_also_where_it_is_the_only_one() -> None:
    world = World()
    for here in (A, B):
        world.archived_by(here, LARGEST_EPOCH + 1, "by hand")
    tee = world.tee(1)
    tee.round()
    assert set(tee.halted) == {A, B}
    assert "remove manual changes" in (world.alarms[AlarmKind.BACKUP_HALTED, str(A)] or "")


def test_claimants_are_not_asked_twice_in_a_minute_while_the_database_is_away() -> None:
    now, asked, is_away = [0.0], list[int](), [True]

    def claimed(epoch: int) -> Claim | None:
        asked.append(epoch)
        if is_away[0]:
            raise UnreachableError("the control database does not answer")
        return Claim("shop.backup", epoch, "i9", "host", NOON) if epoch == 9 else None

    claimants = Claimants(claimed, lambda: now[0])
    for _ in range(3):
        with pytest.raises(UnreachableError, match="does not answer"):
            claimants.of(9)
    assert asked == [9]
    now[0], is_away[0] = 60.0, False
    assert (claimants.of(9), claimants.of(8)) == ("i9", None)
