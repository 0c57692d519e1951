"""The object store's side of a stream: rows in objects that count once a manifest of its dataset names them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from millrace.adapters.chain.documents import sha256_of
from millrace.adapters.sinks.aside import Aside, if_it_can
from millrace.adapters.sinks.s3.objects import (
    TIMESTAMP,
    entries_of,
    file_schema,
    read_rows,
    without,
    without_sources,
    write_object,
)
from millrace.adapters.sinks.s3.output import ObjectsWriter, objects_of, told_as_a_sink
from millrace.adapters.sinks.s3.writer import DatasetWriter
from millrace.domain.declaration.pipeline import S3Sink as DeclaredSink
from millrace.domain.sinks.batch import BatchCounts, Identity, Written
from millrace.domain.sinks.dataset.coverage import Covered
from millrace.domain.sinks.dataset.manifest import DataObject, Held, Kind, Span
from millrace.domain.sinks.dataset.names import Dataset
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import Meeting, OffsetRange, Source, TopicPartition, classify
from millrace.errors import Code, DeclarationError, ObjectExistsError, SinkFailedError
from millrace.ports.objects import ObjectStore
from millrace.ports.sinks import Quarantine, TaskWriter
from millrace.settings import S3Settings

_LOOKS = 16  # at objects, at the same time
_RESTS = 4  # objects that are read, at the same time: each may be of as many rows as a task holds


class S3Sink:
    """A dataset that a stream writes to (`SinkStore`).

    Guarantees: exactly once by offset range, for who reads the dataset by its manifests (`DatasetReader`). The rows of
    a batch count, and its record of work moves, with one manifest, which is written where none is; an older epoch
    writes none after `take_over` has returned, also one that was stopped meanwhile. Bad records are in quarantine
    before that manifest is written.
    Does not guarantee: that an object which no manifest names is gone: a try that failed leaves its own behind. Who
    lists objects instead of reading manifests sees those, and rows that a rewind has replaced. Nor that bad records of
    a batch whose manifest was never written are not in quarantine: they are until the range is read again. Nor that two
    rows of one source and ordinal are noticed where they come into different objects.

    Args:
        settings: the bucket.
        identity: who writes.
        sink: as declared.
        store: the bucket, which writes over nothing.
        aside: keeps the fence a second time, and the quarantine.
    """

    metadata: tuple[str, ...] = (TIMESTAMP,)

    def __init__(
        self, settings: S3Settings, identity: Identity, sink: DeclaredSink, *, store: ObjectStore, aside: Aside
    ) -> None:
        self.where = sink.named
        self.quarantine: Quarantine | None = None
        self._settings = settings
        self._identity = identity
        self._event_date = sink.event_date
        self._dataset = Dataset(sink.prefix)
        self._store = store
        self._chain = DatasetWriter(store, self._dataset, identity)
        self._aside = aside
        self._schema = pa.schema([])

    # A life's beginning

    def take_over(self) -> None:
        """Raise the fence in the control database, then write this epoch's takeover into the chain.

        Raises:
            FencedError: a newer epoch has done so.
            RefusedError: the store writes over what is there, or the dataset is another stream's.
            CorruptArchiveError: the chain cannot be read.
            UnreachableError: store or database do not answer.
        """
        self._aside.take_over()
        with told_as_a_sink():
            self._store.prove_create_only()
            self._chain.take_over()

    def check_fence(self) -> None:
        """Learn whether somebody else has taken over.

        Raises:
            FencedError: somebody has.
        """
        with told_as_a_sink():
            self._chain.read_on()

    def read_record(self) -> WorkRecord:
        """The record of work on the newest timeline, by the chain as it is now."""
        with told_as_a_sink():
            self._chain.read_on()
        return self._chain.history.record()

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Write where each of these partitions begins on a timeline; twice is once.

        Raises:
            FencedError: a newer epoch has taken over.
            SinkFailedError: one of them has begun, and elsewhere.
        """
        while True:
            with told_as_a_sink():
                self._chain.settle()
                done = self._chain.history.timelines.get(timeline, {})
                new = {partition: at for partition, at in positions.items() if done.get(partition) != (at, at)}
                if not new:
                    return
                if elsewhere := [partition for partition in new if partition in done]:
                    raise self._failed(
                        f"{len(elsewhere)} partitions have other offsets on timeline {timeline} already",
                        "wait for the next start: it reads the record of work again",
                    )
                spans = [Span.of(OffsetRange(partition, at, at)) for partition, at in new.items()]
                if self._append(Kind.TIMELINE, timeline=timeline, spans=spans):
                    return

    def prepare(self, columns: pa.Schema) -> None:
        """See that rows of these columns can stand beside those that are there; new columns are named in the chain.

        Raises:
            DeclarationError: they cannot, or the column whose date names the folders is none that has one.
            FencedError: a newer epoch has taken over.
        """
        where = f"the output of the app for {self.where}"
        self._schema = file_schema(columns, where)
        if (named := self._event_date) is not None:
            index = columns.get_field_index(named)
            type_ = columns.field(index).type if index >= 0 else None
            if type_ is None or not (pa.types.is_date32(type_) or pa.types.is_timestamp(type_)):
                raise DeclarationError(
                    f"the sink's `event_date` is `{named}`, but "
                    + (
                        "the app returns no such column"
                        if type_ is None
                        else f"that is {type_}, not a date or timestamp"
                    ),
                    where=where,
                    next_step="name a column of the transform's output, or remove `event_date`: then the record's "
                    "timestamp counts",
                    code=Code.WRONG_TRANSFORM,
                )
        self._say_columns(columns, where)
        self._aside.prepare_staging()
        history = self._chain.history
        last = history.last_batch  # after which the life before may have ended at once
        ranges = [OffsetRange(span.of_partition, span.first, span.next) for span in last.spans]
        self._aside.look_at_quarantine([*{*history.record().next_offsets, *(entry.partition for entry in ranges)}])
        self._aside.drop_former(last.timeline, last.epoch, self._aside.may_hold(ranges))

    def _say_columns(self, columns: pa.Schema, where: str) -> None:
        entries, event_date = entries_of(columns), self._event_date or ""
        while True:
            with told_as_a_sink():
                self._chain.settle()
                history = self._chain.history
                if misfit := next(history.misfits(entries, event_date), ""):
                    raise DeclarationError(
                        misfit,
                        where=where,
                        next_step="give it another name in the transform, or declare another `prefix`",
                        code=Code.WRONG_TRANSFORM,
                    )
                if history.event_date is not None and all(entry.name in history.columns for entry in entries):
                    return
                if self._append(Kind.COLUMNS, columns=entries, event_date=event_date):
                    return

    def _append(self, kind: Kind, **said: object) -> bool:
        """Write the next manifest; False where another came in between, so that it is to be planned anew.

        Raises:
            SinkFailedError: none that follows can say this.
        """
        try:
            self._chain.append(kind, **said)  # type: ignore[arg-type]
        except ObjectExistsError:
            return False
        except ValueError as error:  # another process of this instance has begun a newer timeline, say
            next_step = "wait for the next start: it reads the record of work again; nothing of this counts"
            raise self._failed(f"the chain cannot have this manifest: {error}", next_step) from error
        return True

    # Batches

    def begin_batch(self) -> None:
        """Nothing is to be made ready: what no manifest names does not count."""

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> TaskWriter:
        """Writes rows into objects."""
        return ObjectsWriter(
            settings=self._settings,
            dataset=self._dataset,
            timeline=timeline,
            ranges=tuple(ranges),
            schema=self._schema,
            event_date=self._event_date or TIMESTAMP,
        )

    def bad_records_writer(self) -> TaskWriter:
        """Writes bad records to the staging table in the control database, emptied first."""
        self._aside.begin_batch()
        return self._aside.bad_records_writer()

    def commit_batch(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        """Keep the bad records, then write the manifest of the batch.

        Raises:
            FencedError: a newer epoch has taken over.
            SinkFailedError: not every object that was written is there, the batch begins behind the end of the record
                of work, or bad records were lost on the way.
            SinkUnreachableError: store or database do not answer; the same batch may be tried again.
        """
        while True:
            with told_as_a_sink():
                self._chain.settle()
                todo = self._ranges_to_do(timeline, ranges)
                former = self._aside.may_hold(ranges)
                if not todo:
                    self._aside.drop_former(timeline, None, former)  # the answer to its manifest was lost
                    return BatchCounts()
                objects = self._that_count(todo, written)
                self._must_be_there(objects)
                kept = self._aside.keep_beside(timeline, ranges, written)
                spans = [Span.of(entry) for entry in todo if entry.first < entry.next]
                if not spans or self._append(Kind.DATA, timeline=timeline, spans=spans, objects=objects):
                    # Only now does what a former run left there not hold any more.
                    self._aside.drop_former(timeline, self._identity.epoch, former)
                    return BatchCounts(sum(one.rows for one in objects), kept)

    def _ranges_to_do(self, timeline: int, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        done = self._chain.history.timelines.get(timeline, {})
        todo = []
        for batch in ranges:
            if batch.partition not in done:
                raise self._gap(f"{batch}: the record of work does not know this partition")
            _, stored = done[batch.partition]
            meeting = classify(batch, stored)
            if meeting is Meeting.GAP:
                raise self._gap(
                    f"{batch} begins after the record of work, which ends at {stored}: the offsets between them would "
                    "be lost"
                )
            if meeting is not Meeting.SKIP:
                todo.append(OffsetRange(batch.partition, stored, batch.next))
        return todo

    def _gap(self, what: str) -> SinkFailedError:
        return self._failed(what, "wait for the next start: it resumes from the record of work; nothing was written")

    def _failed(self, what: str, next_step: str) -> SinkFailedError:
        return SinkFailedError(what, where=f"stream {self._identity.stream}, {self.where}", next_step=next_step)

    def _that_count(self, todo: Sequence[OffsetRange], written: Written) -> list[DataObject]:
        """The objects of a batch, without rows that are on record already or are refused."""
        brought = [one for receipt in written.receipts for one in objects_of(receipt)]
        rows = sum(one.rows for one in brought)
        if rows != written.rows:
            raise self._failed(
                f"{written.rows} rows were written, but the tasks name objects with {rows}: the record of work does "
                "not change",
                "wait for the next start: it processes the batch again",
            )
        first = {(entry.partition.topic_id, entry.partition.partition): entry.first for entry in todo}
        refused = _by_partition(written.refused)

        def rest_of(one: DataObject) -> DataObject | None:
            covered = [_below(held, first.get((held.topic_id, held.partition), held.next)) for held in one.held]
            return self._rest(one, [each for each in covered if each is not None], _within(refused, one))

        with ThreadPoolExecutor(_RESTS, thread_name_prefix="rests") as pool:
            found = [rest for rest in pool.map(rest_of, brought) if rest is not None]
        if len(set(found)) < len(found):
            raise DeclarationError(
                "two tasks returned the same rows, with the same sources and ordinals",
                where=f"stream {self._identity.stream}, {self.where}",
                next_step="add an integer column `_ordinal` in the transform that numbers the rows of one record",
                code=Code.WRONG_TRANSFORM,
            )
        return sorted(found)

    def _rest(self, one: DataObject, covered: list[Covered], refused: Mapping[Source, str]) -> DataObject | None:
        """An object without some of its rows, written anew; itself where it has none of them, None where no others."""
        if not covered and not refused:
            return one
        if all(_is_all(covered, part) for part in one.held):
            return None
        key = self._dataset.object_key(one.date, one.sha256)
        data = self._store.get(key)
        if data is None or sha256_of(data) != one.sha256:
            raise self._lost(key)
        rows = without_sources(without(read_rows(key, data).cast(self._schema), covered), refused)
        if not len(rows):
            return None
        if len(rows) == one.rows:
            return one
        data, rest = write_object(one.date, rows)
        self._store.create(self._dataset.object_key(rest.date, rest.sha256), data)
        return rest

    def _must_be_there(self, objects: Sequence[DataObject]) -> None:
        """Look at every object that is to count: a rule of the bucket, or somebody, may have deleted one meanwhile."""
        keys = [self._dataset.object_key(one.date, one.sha256) for one in objects]
        with ThreadPoolExecutor(_LOOKS, thread_name_prefix="looks") as pool:
            for key, one, found in zip(keys, objects, pool.map(self._store.head, keys), strict=True):
                if found is None or found.size_bytes != one.size_bytes:
                    raise self._lost(key)

    def _lost(self, key: str) -> SinkFailedError:
        return self._failed(
            f"the object {key} was deleted or changed after its write: the record of work does not change",
            "find out who deletes objects there (a lifecycle rule of the bucket); "
            "the next start processes the batch again",
        )

    def waits_for(self) -> str:
        """Whom the database beside the sink keeps waiting for."""
        return self._aside.waits_for()

    def discard(self) -> None:
        """Drop the staging table of bad records; the next start does so too."""
        if_it_can(self._aside.discard)

    def close(self) -> None:
        """Hang up."""
        self._aside.close()


def _below(held: Held, first: int) -> Covered | None:
    """What an object holds below an offset."""
    if first <= held.first:
        return None
    return Covered(held.topic_id, held.partition, held.first, min(first, held.next))


def _by_partition(refused: Mapping[Source, str]) -> dict[tuple[str, int], list[int]]:
    """The offsets of these sources, in order, by topic id and partition."""
    found: dict[tuple[str, int], list[int]] = {}
    for topic_id, partition, offset in sorted(refused):
        found.setdefault((topic_id, partition), []).append(offset)
    return found


def _within(refused: Mapping[tuple[str, int], Sequence[int]], one: DataObject) -> dict[Source, str]:
    """Those of these sources that an object may have rows of."""
    return {
        (held.topic_id, held.partition, offset): ""
        for held in one.held
        if (offsets := refused.get((held.topic_id, held.partition)))
        for offset in offsets[bisect_left(offsets, held.first) : bisect_left(offsets, held.next)]
    }


def _is_all(covered: Sequence[Covered], held: Held) -> bool:
    return Covered(held.topic_id, held.partition, held.first, held.next) in covered
