"""What PostgreSQL keeps of a stream that writes elsewhere: fence, timelines, and its quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
import structlog

from millrace.adapters.postgres.connection import address
from millrace.adapters.postgres.schema import must_be_current
from millrace.adapters.sinks.postgres.staging import StagedConnection
from millrace.adapters.sinks.postgres.tables import Cursor
from millrace.domain.sinks.batch import Identity, Written
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import Code, FencedError, MillraceError, RefusedError, SinkFailedError
from millrace.settings import PostgresSettings

log = structlog.get_logger()

_NEWEST = (
    "SELECT timeline, topic, topic_id, partition, first_offset, next_offset, begun FROM millrace.timelines "
    "WHERE stream = %(stream)s "
    "AND timeline = (SELECT max(timeline) FROM millrace.timelines WHERE stream = %(stream)s)"
)
# One look into the index a partition: a quarantine may hold millions.
_LAST_BAD = (
    'SELECT _asked.topic_id, _asked.partition, _last."offset" + 1 FROM unnest(%s::text[], %s::int[]) '
    'AS _asked (topic_id, partition), LATERAL (SELECT "offset" FROM millrace.quarantine AS _held '
    "WHERE _held.stream = %s AND _held.topic_id = _asked.topic_id AND _held.partition = _asked.partition "
    'ORDER BY "offset" DESC LIMIT 1) AS _last'
)


_DROP_FORMER = (
    "DELETE FROM millrace.quarantine WHERE stream = %s AND topic_id = %s AND partition = %s "
    'AND "offset" >= %s AND "offset" < %s AND (timeline < %s OR (timeline = %s AND epoch <> %s::bigint))'
)


@dataclass(frozen=True, slots=True)
class Opened:
    """Where a timeline stands on one partition.

    Attributes:
        first: where it began.
        done: up to where its work was done, at least.
        begun: whether work may have gone beyond that: a life has begun it and has not ended in order. A commit that
            is not ours stands in the place of one of ours then, and is a move by somebody wherever it is.
    """

    first: int
    done: int
    begun: bool


class Aside(StagedConnection):
    """The database beside a sink that keeps no books of its own (`ports.Quarantine`).

    Guarantees: an older epoch changes nothing here after `take_over` has returned; bad records are kept once a source,
    all of a batch or none.
    Does not guarantee: anything of the rows, which are elsewhere.

    Args:
        settings: the database.
        identity: who writes.
    """

    def __init__(self, settings: PostgresSettings, identity: Identity) -> None:
        super().__init__(settings, identity)
        self._bad_until: dict[tuple[str, int], int] = {}

    def _provide_tables(self) -> None:
        """See that they are there: in a database that has an owner of its own the working role makes none.

        Raises:
            RefusedError: they are missing, of an older version, or closed to this role.
            DeclarationError: a newer Millrace has made them.
        """
        try:
            self._bounded("look at Millrace's own tables", must_be_current)
        except SinkFailedError as error:
            if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
                raise
            raise RefusedError(
                f"the role {self.settings.user} may not use the schema millrace",
                where=address(self.settings),
                next_step="run `millrace control upgrade`",
                code=Code.MISSING_RIGHT,
            ) from error

    def timeline(self) -> tuple[int, dict[TopicPartition, Opened]]:
        """The newest timeline and where it stands; 0 and nothing where none was opened."""

        def read(cursor: Cursor) -> list[tuple[object, ...]]:
            return list(cursor.execute(_NEWEST, {"stream": self.identity.stream}).fetchall())

        rows: list[tuple[object, ...]] = self._bounded("read the timelines", read)
        found = {TopicPartition(*row[1:4]): Opened(*row[4:]) for row in rows}  # type: ignore[arg-type]
        return int(str(rows[0][0])) if rows else 0, found

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Write where each of these partitions begins on a timeline, under the fence; twice is once.

        Raises:
            FencedError: a newer epoch has taken over.
            SinkFailedError: one of them is on record already, and begins or stands elsewhere.
        """
        self._bounded("open positions", self._put_on_record("timelines", timeline, positions))

    def reached(self, timeline: int, positions: Mapping[TopicPartition, int], *, begun: bool) -> None:
        """Write up to where the work on a timeline is done, at least.

        Args:
            timeline: the newest; it may not be on record here, where the database was lost and the group was not.
            positions: the next offset of each partition.
            begun: whether more will be done.
        """
        stream, epoch = self.identity.stream, self.identity.epoch

        def write(cursor: Cursor) -> None:
            self._hold_fence(cursor)
            cursor.executemany(
                "INSERT INTO millrace.timelines AS held "
                "(stream, timeline, topic, topic_id, partition, first_offset, next_offset, begun, epoch) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) "
                "ON CONFLICT (stream, timeline, topic_id, partition) DO UPDATE SET begun = excluded.begun, "
                "epoch = excluded.epoch, updated_at = now(), "
                "next_offset = greatest(held.next_offset, excluded.next_offset)",
                [
                    (stream, timeline, p.topic, p.topic_id, p.partition, at, at, begun, epoch)
                    for p, at in positions.items()
                ],
            )

        self._bounded("write what was reached", write)

    def look_at_quarantine(self, partitions: Sequence[TopicPartition]) -> None:
        """Learn up to where these partitions have bad records here, for `keep` to take the place of them."""
        ids, numbers, _ = _columns(dict.fromkeys(partitions, 0))

        def read(cursor: Cursor) -> list[tuple[str, int, int]]:
            return list(cursor.execute(_LAST_BAD, (ids, numbers, self.identity.stream)).fetchall())

        self._bad_until = {(topic_id, number): end for topic_id, number, end in self._bounded("look", read)}

    def keep(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> int:
        """See `ports.Quarantine`; a batch without bad records, now and formerly, asks the database nothing."""
        former = self.may_hold(ranges)
        if not written.bad_records and not former:
            return 0
        if written.bad_records:
            self._note(ranges)
        with self._transaction("keep the bad records") as cursor:
            self._hold_fence(cursor)
            for entry in former:
                self.staging.delete_quarantine(cursor, self.identity.stream, entry)
            return self._insert(cursor, timeline, written)

    def may_hold(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Those of some ranges that may have bad records here."""
        return [entry for entry in ranges if entry.first < entry.next and self._may_hold(entry)]

    def keep_beside(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> int:
        """Keep the bad records of a batch, in the place of those of the same sources alone; how many. Twice is once.

        What else a former run of the ranges left is to be dropped once the batch counts (`drop_former`): before, it
        may be all that is known of a record.

        Arguments and errors are those of `keep`; a batch without bad records asks the database nothing.
        """
        if not written.bad_records:
            return 0
        self._note(ranges)
        with self._transaction("keep the bad records") as cursor:
            self._hold_fence(cursor)
            self.staging.delete_quarantine_of_staged(cursor, self.identity.stream, written.attempts)
            return self._insert(cursor, timeline, written)

    def drop_former(self, timeline: int, epoch: int | None, ranges: Sequence[OffsetRange]) -> None:
        """Drop what former runs of a batch's ranges left here, once the batch counts. Twice is once.

        Args:
            timeline: of the batch.
            epoch: what did it; what another one has kept on this timeline was never on record. None: that stays.
            ranges: the batch's, as far as something may be there.

        Raises:
            FencedError: a newer epoch has taken over.
        """
        if not ranges:
            return
        stream = self.identity.stream
        with self._transaction("drop the former bad records") as cursor:
            self._hold_fence(cursor)
            for entry in ranges:
                source = (entry.partition.topic_id, entry.partition.partition, entry.first, entry.next)
                cursor.execute(_DROP_FORMER, (stream, *source, timeline, timeline, epoch))

    def _note(self, ranges: Sequence[OffsetRange]) -> None:
        """Before they are kept: a commit whose answer is lost may have kept them."""
        for entry in ranges:
            key = (entry.partition.topic_id, entry.partition.partition)
            self._bad_until[key] = max(self._bad_until.get(key, 0), entry.next)

    def _insert(self, cursor: Cursor, timeline: int, written: Written) -> int:
        kept = self.staging.insert_quarantine(
            cursor, self.identity.stream, timeline, self.identity.epoch, written.attempts
        )
        if kept != written.bad_records:
            raise SinkFailedError(
                f"{written.bad_records} bad records were staged, but {kept} arrived, so none was kept. Staging was "
                "emptied meanwhile (a TRUNCATE, a promoted standby, a pooler that changes connections)",
                where=f"stream {self.identity.stream}, table millrace.quarantine",
                next_step="find out what emptied it; the next start processes the batch again",
            )
        return kept

    def _may_hold(self, entry: OffsetRange) -> bool:
        """Whether a range may have bad records here."""
        return entry.first < self._bad_until.get((entry.partition.topic_id, entry.partition.partition), 0)


def if_it_can(step: Callable[[], None]) -> None:
    """Tidy up; where the database is away or says no, the next start does it.

    Raises:
        FencedError: a newer epoch has taken over.
    """
    try:
        step()
    except FencedError:
        raise
    except MillraceError as error:
        log.warning("not_tidied_up", error=str(error))


def _columns(positions: Mapping[TopicPartition, int]) -> tuple[list[str], list[int], list[int]]:
    listed = [(p.topic_id, p.partition, offset) for p, offset in positions.items()]
    return [one[0] for one in listed], [one[1] for one in listed], [one[2] for one in listed]
