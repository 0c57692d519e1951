"""Records of the batch at hand that become no row: bad ones, and those that transform or sink refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame

from millrace.domain.declaration.pipeline import OnBadRecord, Stream, Topic
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.domain.sinks.batch import TaskResults
from millrace.domain.streams.failing import FailingBound
from millrace.domain.topics.offsets import OffsetRange, Source
from millrace.errors import Code, DataLossError, SinkFailedError
from millrace.ports.sinks import SinkStore
from millrace.runtime.stream.bad_records import find_bad_records
from millrace.runtime.stream.isolation import Frames, failing_records
from millrace.runtime.stream.writing import writing, written


class Refusals:
    """Remembers what the tries of one batch found, and writes it for quarantine.

    Args:
        stream: whose batches they are.
        topics: those that it reads, by name.
        sink: where they go.
        may_fail: on how many records the transform may still raise.
    """

    def __init__(self, stream: Stream, topics: Mapping[str, Topic], sink: SinkStore, may_fail: FailingBound) -> None:
        self._stream = stream
        self._topics = topics
        self._sink = sink
        self._may_fail = may_fail
        self._refused: dict[Source, str] = {}
        self.failing: dict[Source, str] = {}
        """The records that the transform raises on, with the reason."""

    def begin_batch(self) -> None:
        """Forget the former batch."""
        self._refused, self.failing = {}, {}

    def known(self, ranges: Sequence[OffsetRange]) -> dict[Source, str]:
        """Return what former tries of the batch found in these ranges; it is kept before rows that are seen at once."""
        return _within(self._refused | self.failing, ranges)

    def of_rows(self, refused: Mapping[Source, str], ranges: Sequence[OffsetRange]) -> dict[Source, str]:
        """Return what the sink refused of these ranges, and what the transform raised on."""
        return {**refused, **_within(self.failing, ranges)}

    def remember(self, refused: Mapping[Source, str]) -> None:
        """Note what the sink refused, for the next try of the batch."""
        self._refused |= refused

    def isolate(
        self, inputs: Frames, rows_of: Callable[[Frames], DataFrame], failure: Exception, on_try: Callable[[str], None]
    ) -> None:
        """Find the records that the transform raises on; raise the failure again where no record is the cause.

        Arguments are those of `failing_records`.

        Raises:
            TooManyFailingError: they are more than are set aside within an hour.
            DataLossError: the stream declares `on_bad_record: fail`.
        """
        found = failing_records(
            inputs,
            rows_of,
            failure,
            where=f"app {self._stream.app}",
            most=self._may_fail.left,
            one=self._stream.on_bad_record is OnBadRecord.FAIL,
            on_try=on_try,
        )
        self.must_be_allowed(0, found)
        self._may_fail.spend(len(found))
        self.failing |= found

    def must_be_allowed(self, bad: int, refused: Mapping[Source, str]) -> None:
        """Refuse bad records where the stream declares so.

        Raises:
            DataLossError: there are some, and it declares `on_bad_record: fail`.
        """
        if (bad or refused) and self._stream.on_bad_record is OnBadRecord.FAIL:
            raise DataLossError(
                f"{bad + len(refused)} bad records in this batch, but the stream declares `on_bad_record: fail`. "
                f"{_named(refused)}",
                where=f"stream {self._stream.qualified_name}",
                next_step="declare `on_bad_record: quarantine` to store bad records and continue",
                code=Code.ROWS_REFUSED,
            )

    def write(self, raw: DataFrame, ids: Mapping[str, str], refused: Mapping[Source, str], bad: int) -> TaskResults:
        """Write for quarantine what is bad and what is refused: every record of it, or the batch goes no further.

        Raises:
            SinkFailedError: some of them lie nowhere.
        """
        if not bad and not refused:
            return TaskResults()
        topics = {name: (self._topics[name], ids[name]) for name in self._stream.reads}
        broken = {
            source: Broken(Rule.TRANSFORM_FAILED if source in self.failing else Rule.SINK_REFUSED, why)
            for source, why in refused.items()
        }
        aside = written(writing(raw, self._sink.bad_records_writer(), find_bad_records(topics, broken)))
        if aside.rows != bad + len(refused):
            raise SinkFailedError(
                f"{bad} bad records and {len(refused)} refused by the transform or the sink should be quarantined, "
                f"but {aside.rows} were written. {_named(aside.refused)}",
                where=f"stream {self._stream.qualified_name}",
                next_step="check whether the transform changes `_source`; the record of work does not change",
            )
        return aside


def _named(refused: Mapping[Source, str]) -> str:
    return "; ".join(f"{p}@{o}: {why}" for (_, p, o), why in list(refused.items())[:5])


def _within(found: Mapping[Source, str], ranges: Sequence[OffsetRange]) -> dict[Source, str]:
    """The sources that lie in these ranges."""
    of_each = {(entry.partition.topic_id, entry.partition.partition): entry for entry in ranges}
    return {
        source: why
        for source, why in found.items()
        if (entry := of_each.get(source[:2])) and entry.first <= source[2] < entry.next
    }
