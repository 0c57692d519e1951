"""The sink of a batch: write, keep bad records, commit with what the sink refuses, wait while it takes nothing.

Nothing moves without its count: what was read and found bad, what was staged, and what arrived are compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import structlog
from pyspark.sql import DataFrame

from millrace.domain.sinks.batch import BatchCounts, TaskResults, Written
from millrace.domain.streams.failing import FailingBound
from millrace.domain.topics.offsets import Source, TopicPartition
from millrace.errors import Code, MillraceError, RowsRefusedError
from millrace.ports.sinks import SinkStore
from millrace.runtime.stream.batch.constants import StreamConstants
from millrace.runtime.stream.batch.records import Batch
from millrace.runtime.stream.batch.refusals import Refusals
from millrace.runtime.stream.batch.tries import Tries
from millrace.runtime.stream.inputs import Read, write_counted
from millrace.runtime.stream.isolation import Frames, without
from millrace.runtime.stream.writing import with_sources, writing

log = structlog.get_logger()

_REFUSED_ROUNDS = 5


class BatchSink:
    """Takes the batches of a stream, one at a time.

    Each batch runs inside `until_taken`, which forgets what the former batch was refused. Any method may raise what the
    methods of `SinkStore` raise.

    Args:
        constants: what the batches have in common.
        store: the sink, taken over and prepared for these columns.
        may_fail: on how many records the transform may raise.

    Attributes:
        wrote: True once a try has written rows that readers of the sink see at once.
        longest_merge: how long the longest commit of a try lasted.
    """

    def __init__(self, constants: StreamConstants, store: SinkStore, may_fail: FailingBound | None = None) -> None:
        self._constants = constants
        self._store = store
        self._refusals = Refusals(constants.stream, constants.topics, store, may_fail or FailingBound())
        self.wrote = False
        self.longest_merge = timedelta()

    def until_taken(
        self, attempt: Callable[[], None], stop: threading.Event, on_wait: Callable[[MillraceError], None]
    ) -> bool:
        """Try one batch, and try it again after a wait where the sink could not take it for a while.

        Args:
            attempt: tries the whole batch.
            stop: ends a wait, and leaves the batch undone.
            on_wait: called before each wait, with its cause.

        Returns:
            True once the batch is done.

        Raises:
            Exception: what `attempt` raised, where another try cannot help.
        """
        tries = Tries()
        self._refusals.begin_batch()
        while True:
            self.wrote, self.longest_merge = False, timedelta()
            try:
                attempt()
            except MillraceError as error:
                pause = tries.pause_after(error)
                if pause is None:
                    raise
                on_wait(error)
                if stop.wait(pause):
                    return False
            else:
                return True

    def open_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Put on record where these partitions begin on the timeline; twice is once."""
        self._store.open_positions(self._constants.timeline, positions)

    def write(self, batch: Batch, inputs: Frames, before_keep: Callable[[], None]) -> tuple[Read, TaskResults]:
        """Count the records and write the transform's rows; where rows are seen at once, keep bad records before.

        Args:
            batch: the batch.
            inputs: its decoded records (`StreamConstants.decode`).
            before_keep: called before bad records are kept; what it raises ends the write.

        Raises:
            Exception: among others what the transform raised; `isolate` finds the records that are its cause.
        """
        timeline, quarantine = self._constants.timeline, self._store.quarantine
        self._store.begin_batch()
        writer = self._store.rows_writer(timeline, batch.ranges, in_order=self._constants.in_order)

        def of_good(good: Frames) -> DataFrame:
            return writing(self._rows_of(good), writer)

        def keep(read: Read) -> None:
            assert quarantine is not None
            self._refusals.must_be_allowed(read.bad, {})
            refused = self._refusals.known(batch.ranges)
            aside = self._refusals.write(batch.raw, batch.ids, refused, read.bad)
            before_keep()
            of_bad = Written(aside.attempts, 0, aside.rows, refused, read.of_each)
            quarantine.keep(timeline, batch.ranges, of_bad)
            self.wrote = True

        return write_counted(inputs, of_good, None if quarantine is None else keep)

    def isolate(self, inputs: Frames, failure: Exception, on_try: Callable[[str], None]) -> None:
        """Find the records that the transform raises on; the next `write` leaves them out, for quarantine.

        Args:
            inputs: the decoded records of the batch.
            failure: what the transform raised; raised again where no record is the cause.
            on_try: called before each try, with a text about it; what it raises ends the search.

        Raises:
            TooManyFailingError: there are more of them than are set aside within an hour.
            DataLossError: the stream declares `on_bad_record: fail`.
        """
        self._refusals.isolate(inputs, self._rows_of, failure, on_try)

    def merge(self, batch: Batch, rows: TaskResults, read: Read) -> BatchCounts:
        """Commit what was written, with quarantine; once more for each round of rows that the sink refuses.

        Args:
            batch: the batch.
            rows: the report of the tasks that wrote it.
            read: the count of its records.

        Raises:
            DataLossError: there are bad records, and the stream declares `on_bad_record: fail`.
            MillraceError: the sink goes on refusing rows.
        """
        refused = self._refusals.of_rows(rows.refused, batch.ranges)
        self._refusals.must_be_allowed(read.bad, refused)
        for _ in range(_REFUSED_ROUNDS):
            written = self._with_quarantine(batch, rows, read, refused)
            began = time.monotonic()
            try:
                return self._store.commit_batch(self._constants.timeline, batch.ranges, written)
            except RowsRefusedError as error:
                self._refusals.must_be_allowed(read.bad, error.sources)
                log.warning("rows_refused", count=len(error.sources), first=next(iter(error.sources.items()), None))
                refused = refused | error.sources
            finally:
                self.longest_merge = max(self.longest_merge, timedelta(seconds=time.monotonic() - began))
        raise MillraceError(
            f"the sink still refuses rows after {_REFUSED_ROUNDS} rounds: its constraints seem to change",
            where=self._store.where,
            code=Code.WRONG_TABLE,
        )

    def _with_quarantine(self, batch: Batch, rows: TaskResults, read: Read, refused: Mapping[Source, str]) -> Written:
        """Write what is bad or refused for quarantine, unless it is kept already; return it with the rows."""
        kept = self._store.quarantine is not None and refused == self._refusals.known(batch.ranges)
        self._refusals.remember(refused)
        aside = (
            TaskResults((), read.bad + len(refused))
            if kept
            else self._refusals.write(batch.raw, batch.ids, refused, read.bad)
        )
        return Written(
            attempts=(*rows.attempts, *aside.attempts),
            rows=rows.rows,
            bad_records=aside.rows,
            refused={} if kept else refused,  # what is kept was kept with what was refused
            records=read.of_each,
            receipts=rows.receipts,
        )

    def _rows_of(self, good: Frames) -> DataFrame:
        """Return the transform's rows of these records, but for those that it raises on, as the sink takes them."""
        output = self._constants.transform(without(good, self._refusals.failing), {})
        return with_sources(output, self._constants.columns, self._store.metadata)
