"""A topic as Kafka might keep it, and a backup that dies at any step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from millrace.adapters.archive.summaries import resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.archive.chain import Diverged, Recreated, next_ranges
from millrace.domain.archive.manifest import Kind, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.partition import Cause, Label
from millrace.domain.archive.proof.tiling import ObservedLog
from millrace.domain.chain.head import Writer
from millrace.domain.streams.position import LogBounds
from millrace.errors import ObjectExistsError, RefusedError, UnreachableError
from support.archive.parts import BEGAN, RETENTION, Fate, FlakyStore, ModelPartition, Slot, kept_entries, model_object

TOPIC = "shop.purchases"


@dataclass
class Life:
    """One incarnation of the topic, and what the judge has to know of its backup."""

    incarnation: Incarnation
    partitions: list[ModelPartition]
    gone: bool = False
    told: dict[str, set[tuple[int, int]]] = field(default_factory=dict)  # by the reason that was given


@dataclass
class World:
    """The cluster, the store, and the processes that believe to be the backup."""

    dice: random.Random
    counts: Counter[str]
    compacted: bool
    now: datetime = BEGAN
    epoch: int = 0
    lives: list[Life] = field(default_factory=list)
    tees: list[Iterator[str]] = field(default_factory=list)
    texts: int = 0

    def __post_init__(self) -> None:
        self.store = FlakyStore(self.dice, self.counts)
        self.begin_life()

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def begin_life(self) -> None:
        """Make the topic, perhaps again."""
        for life in self.lives:
            life.gone = True
        incarnation = Incarnation(TOPIC, f"{len(self.lives):022d}")
        self.lives.append(Life(incarnation, [ModelPartition() for _ in range(self.dice.randint(1, 2))]))

    def look(self, *, whole: bool = False) -> ObservedLog:
        """What the brokers answer; at times a partition has no leader, unless all are waited for."""
        at = self.now
        bounds = {n: LogBounds(p.start, max(p.start, p.stable())) for n, p in enumerate(self.life.partitions)}
        retention = RETENTION // timedelta(milliseconds=1) if self.compacted else None
        count = len(bounds)
        if not whole and self.dice.random() < 0.05:
            del bounds[self.dice.randrange(count)]
            self.counts["no leader"] += 1
        return ObservedLog(at, self.life.incarnation.topic_id, bounds, retention, count)

    # What happens to the log

    def happen(self) -> None:
        """One thing, by chance; the clock goes on."""
        self.now += timedelta(minutes=self.dice.choice([1, 10, 60, 400]))
        names = ["commit"] * 6 + ["abort", "open", "settle"] * 2 + ["trim"] * 3 + ["compact"] * 5
        name = self.dice.choice([*names, "grow", "recreate", "elect", "elect"])
        if getattr(self, f"_{name}")(self.dice.choice(self.life.partitions)) is not False:
            self.counts[name] += 1

    def _write(self, log: ModelPartition, fate: Fate) -> None:
        self.texts += 1
        key, tombstone = self.dice.randint(0, 5), self.dice.random() < 0.4
        slot = Slot(fate, key, tombstone, f"{key}:{'' if tombstone else self.texts}:{self.texts}")
        log.slots.append(slot)
        if fate is Fate.RECORD:
            log.once.setdefault(len(log.slots) - 1, set()).add(slot.text)

    def _commit(self, log: ModelPartition) -> None:
        for _ in range(self.dice.randint(1, 6)):
            self._write(log, Fate.RECORD)
        if self.dice.random() < 0.4:
            log.slots.append(Slot(Fate.MARKER))

    def _abort(self, log: ModelPartition) -> None:
        for _ in range(self.dice.randint(0, 4)):
            self._write(log, Fate.ABORTED)
        log.slots.append(Slot(Fate.MARKER))

    def _open(self, log: ModelPartition) -> None:
        for _ in range(self.dice.randint(1, 3)):
            self._write(log, Fate.OPEN)

    def _settle(self, log: ModelPartition) -> bool:
        opened = [at for at, slot in enumerate(log.slots) if slot.fate is Fate.OPEN]
        fate = self.dice.choice([Fate.RECORD, Fate.ABORTED])
        for at in opened:
            log.slots[at].fate = fate
            if fate is Fate.RECORD:
                log.once.setdefault(at, set()).add(log.slots[at].text)
        if opened:
            log.slots.append(Slot(Fate.MARKER))
        return bool(opened)

    def _trim(self, log: ModelPartition) -> bool:
        before = log.start
        log.start = self.dice.randint(before, max(before, log.stable()))
        log.most_start = max(log.most_start, log.start)
        return log.start > before

    def _compact(self, log: ModelPartition) -> bool:
        """The cleaner comes by, at times once more when what it met then has had its time."""
        done = self.compacted and self._clean(log)
        if done and self.dice.random() < 0.8:
            self.now += RETENTION + timedelta(minutes=1)
            self._clean(log)
        return done

    def _clean(self, log: ModelPartition) -> bool:
        done = False
        for at in range(log.start, log.stable()):  # it does not go beyond an open transaction
            slot = log.slots[at]
            later = any(s.fate is Fate.RECORD and s.key == slot.key for s in log.slots[at + 1 : log.stable()])
            if slot.fate is not Fate.RECORD or self.dice.random() < 0.2:
                continue
            if later:
                slot.fate, done = Fate.REPLACED, True
            elif slot.tombstone and slot.horizon is None:
                slot.horizon, done = self.now + RETENTION, True
            elif slot.horizon is not None and self.now > slot.horizon:
                slot.fate, done = Fate.BURIED, True
                self.counts["buried"] += 1
        return done

    def _grow(self, log: ModelPartition) -> bool:
        if len(self.life.partitions) < 4:
            self.life.partitions.append(ModelPartition())
            return True
        return False

    def _recreate(self, log: ModelPartition) -> bool:
        if len(self.lives) < 3 and self.dice.random() < 0.4:
            self.begin_life()
            return True
        return False

    def _elect(self, log: ModelPartition) -> bool:
        """A replica becomes leader that has deleted less, and at times one that lags behind."""
        if self.dice.random() > 0.4 or len(log.slots) <= log.start:
            return False
        log.start = self.dice.randint(max(0, log.start - 6), log.start)
        if self.dice.random() < 0.6:
            self.counts["log start back"] += 1
            return False
        end = self.dice.randint(log.start, len(log.slots) - 1)
        log.cut |= set(range(end, len(log.slots)))
        del log.slots[end:]
        return True

    # The backup

    def start_tee(self) -> None:
        """A new process with the next epoch. Another one may live on without knowing of it."""
        self.epoch += 1
        self.tees.append(self._tee(Writer(self.epoch, f"process-{self.epoch}")))

    def step(self) -> None:
        """One process does one thing, or dies."""
        if not self.tees or self.dice.random() < 0.02:
            self.start_tee()
        at = self.dice.randrange(len(self.tees))
        if self.dice.random() < 0.03:
            self.counts["crash"] += 1
            self.tees.pop(at).close()  # type: ignore[attr-defined]
            return
        try:
            next(self.tees[at])
        except StopIteration:
            self.tees.pop(at)

    def _tee(self, writer: Writer) -> Iterator[str]:
        life = self.life
        with suppress(RefusedError):  # fenced, or a topic that was gone before its chain began
            while True:
                yield "begins"
                chain = yield from self._take_over(life, writer)
                if (yield from self._work(life, chain)) == "diverged":
                    self.counts["stopped as diverged"] += 1
                    return
                life = self.life
        self.counts["fenced"] += 1

    def _take_over(self, life: Life, writer: Writer) -> Iterator[str]:
        looks: list[ObservedLog] = []

        def look() -> ObservedLog:
            looks.append(self.look() if not life.gone else ObservedLog(self.now, None, {}))
            return looks[-1]

        while True:
            with suppress(UnreachableError):
                tiling = resume(self.store, life.incarnation)
                yield "read a summary"
                found = ArchiveWriter.take_over(self.store, tiling, writer, look)
                break
            yield "waits for the store"
        return found

    def _work(self, life: Life, chain: ArchiveWriter) -> Iterator[str]:
        """Until the topic is gone, or has diverged."""
        while True:
            log = self.look()
            yield "looked"
            plan = next_ranges(chain.tiling, log)
            if isinstance(plan, Recreated):
                self.counts["recreated seen"] += 1
                yield from self._acknowledge(life, chain, log)
                return "recreated"
            if isinstance(plan, Diverged):
                yield from self._append(chain, Kind.LOOK, log)
                if not (yield from self._acknowledge(life, chain, log)):
                    return "diverged"
                continue
            objects = yield from self._read(life, plan.read)
            after = self.look()
            yield "looked again"
            if objects is None or after.topic_id != life.incarnation.topic_id:
                continue
            if any(e.partition not in after.bounds or e.next > after.bounds[e.partition].end for e in objects):
                continue
            if objects:
                yield from self._append(chain, Kind.DATA, after, objects=objects)
            yield from self._expire(life, chain)
            if self.dice.random() < 0.3:
                yield from self._acknowledge(life, chain, self.look())

    def _read(self, life: Life, spans: tuple[PartitionSpan, ...]) -> Iterator[str]:
        """Objects of some of the ranges, or of a part of them; None where the store would not take one."""
        objects: list[ObjectEntry] = []
        for span in spans:
            if self.dice.random() < 0.2:
                continue
            next_ = self.dice.randint(span.first + 1, span.next)
            log = life.partitions[span.partition]
            if life.gone or next_ > log.stable() or log.start > span.first:
                return None  # failOnDataLoss
            records = log.read(span.first, next_)
            yield "read"
            data, entry = model_object(span.partition, span.first, next_, records)
            try:
                self.store.create(life.incarnation.object_key(entry.name), data)
            except UnreachableError:
                return None
            yield "wrote an object"
            objects.append(entry)
        return objects

    def _append(self, chain: ArchiveWriter, kind: Kind, log: ObservedLog, **what: object) -> Iterator[str]:
        """Whether this very manifest was written by this call."""
        try:
            chain.append(kind, log, **what)  # type: ignore[arg-type]
        except ObjectExistsError:
            return False
        except UnreachableError:
            while True:
                yield "waits for the store"
                with suppress(UnreachableError):
                    return chain.settle()
        self.counts[f"wrote {kind}"] += 1
        yield "wrote a manifest"
        return True

    def _expire(self, life: Life, chain: ArchiveWriter) -> Iterator[str]:
        kept = [entry for entry in kept_entries(self.store, life.incarnation) if self.dice.random() < 0.05]
        kept = [entry for entry in kept if _knows(chain, entry)]  # others are of a writer that has taken over
        if kept and (yield from self._append(chain, Kind.EXPIRY, self.look(), objects=kept, by="keep", reason="old")):
            self.store.delete([life.incarnation.object_key(entry.name) for entry in kept])

    def _acknowledge(self, life: Life, chain: ArchiveWriter, log: ObservedLog) -> Iterator[str]:
        """Somebody says that they know, at times of far more than is lost: that must not excuse what is lost later."""
        lost = [tile for part in chain.tiling.end(log).partitions for tile in part.unacknowledged]
        if not lost or self.dice.random() < 0.4:
            return False
        spans = {tile.partition: PartitionSpan(tile.partition, tile.first, tile.next) for tile in lost}
        if self.dice.random() < 0.5:
            spans = {number: PartitionSpan(number, 0, 1_000_000) for number in spans}
        yield "acknowledges"
        again = self.look() if not life.gone else ObservedLog(self.now, None, {})
        if again.topic_id != log.topic_id:
            return False  # what was asked for is not what is lost now
        told = _lost_now(chain, again, spans)
        known, reason = list(spans.values()), f"reason {len(life.told)}"
        life.told[reason] = told
        return (yield from self._append(chain, Kind.ACKNOWLEDGEMENT, again, acknowledged=known, by="me", reason=reason))


def _knows(chain: ArchiveWriter, entry: ObjectEntry) -> bool:
    state = chain.tiling.partitions.get(entry.partition)
    return state is not None and entry.next <= state.next and not any(state.expired.within(entry.first, entry.next))


def _lost_now(chain: ArchiveWriter, log: ObservedLog, spans: dict[int, PartitionSpan]) -> set[tuple[int, int]]:
    return {
        (tile.partition, at)
        for part in chain.tiling.end(log).partitions
        for tile in part.unacknowledged
        for at in range(tile.first, tile.next)
        if tile.cause is not Cause.CUT  # no label
        if tile.label is not Label.DIVERGED or at < part.archived_to  # beyond it, the offset is yet to be filled again
        if tile.partition in spans and spans[tile.partition].first <= at < spans[tile.partition].next
    }
