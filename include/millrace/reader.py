"""For consumers of topics that streams write: a stream writes at least once, and this tells first from further times.

It needs the standard library and `millrace.domain` only, and no client: what it looks at are the headers of
`millrace.domain.sinks.origin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from millrace.domain.sinks.origin import ORDER, Header, Origin

STATE_VERSION = 1
_BLOCKS = 16  # parts of a window that are forgotten as a whole: at most a sixteenth more than the window is held


class Message(Protocol):
    """What `Deduplicator.unique` asks of a record, as `confluent_kafka.Message` has it."""

    def topic(self) -> Any: ...  # noqa: D102
    def partition(self) -> Any: ...  # noqa: D102
    def headers(self) -> Any: ...  # noqa: D102
    def error(self) -> Any: ...  # noqa: D102


AnyMessage = TypeVar("AnyMessage", bound=Message)


class Deduplicator:
    """Says of each record of a topic whether it is the first of its row, by what came before it in its partition.

    A row is stream, timeline, source and ordinal. Without `window` it keeps, for each output partition and source
    partition, how far that one is: the last (offset, ordinal) that was new; what is not behind it is a duplicate.
    With `window` it keeps which rows it saw of the last so many source offsets; what is before these is a duplicate.

    A newer timeline, as a rewind opens it, begins anew. Timelines are kept by output partition and stream: once a row
    of a newer one came, all of older ones are duplicates, of whichever source partition. For a timeline is opened for
    all source partitions at once, and when that is done no commit of an older one succeeds any more. Rows lie in the
    log before their batch is committed; so what comes behind the newer one's first row was either there before, or
    is of a batch that never counted, which the newer timeline writes itself.

    Guarantees: no row twice and none left out of those whose first copy is fed to it, where
        - it is fed every record of an output partition, in order of offsets, from where it began. How many partitions
          and topics that are, and in which order among each other, is all the same;
        - the topic has had the same number of partitions since;
        - transform, declaration and what they look up make the same rows of a record each time, bad records included;
        - without `window`: rows of a source partition come in the order of offset and ordinal, and no try of a batch
          leaves one out that a further try writes behind later ones, as it may where the topic's `max.message.bytes`
          is raised in between; nothing was compacted away that was not read yet;
        - with `window`: it is as large as the largest `max_records_per_batch` that any stream had that writes there.
        A window is right for streams that keep the order as well. It costs memory. Streams mark the records of a
        transform that does not keep it (`millrace.order`), and without a window these are refused: no row is lost.

    Does not guarantee
        - anything about two timelines: what a rewind has written again passes, and so does what the former timeline
          had written of a batch that it did not finish. Rows of the newer timeline take the place of the older's;
        - that a compacted topic can be read late. Of two copies compaction removes the first, and the other may come
          behind later rows: it would count as a duplicate, and its key would be missing. Whoever reads by key, the last
          value each, needs none of this where rows keep their order: tries end with them in it. There only a zombie's
          late write puts an older value in the place of a newer one, which compaction then removes: it stays until the
          key comes again;
        - a stream whose control database was lost, or restored as it was earlier: it may use the number of a timeline
          a second time, and its rows would count as duplicates. Begin anew with it (`forget`);
        - records that another program copied with these headers: they are taken for the stream's own.

    Memory: one entry for each (output partition, source partition); with `window` about 200 bytes more for each row of
    the last `window` offsets of every source partition. Old timelines are forgotten. Not for several threads at once.

    Args:
        window: None, or source offsets, at least 1.
        state: what `state` gave, to go on there.

    Raises:
        ValueError: the window is below 1, or the state is none of ours (see `restore`).
    """

    def __init__(self, *, window: int | None = None, state: Mapping[str, Any] | None = None) -> None:
        if window is not None and window < 1:
            raise ValueError(f"a window has at least one source offset, not {window}")
        self._window = window
        self._partitions: dict[tuple[str, int], dict[str, _Stream]] = {}
        if state is not None:
            self.restore(state)

    def is_new(self, topic: str, partition: int, headers: Iterable[Header] | None) -> bool:
        """Whether the next record of an output partition is the first of its row; from then on it was there.

        Args:
            topic: the output topic.
            partition: the output partition.
            headers: the record's, in their order. Without all of Millrace's it is of no stream, and always new.

        Raises:
            ValueError: the record is of a stream whose rows keep no order, and there is no window. Nothing was changed:
                `state` is right for a reader with a window to go on from this record.
        """
        origin = Origin.of(headers)
        if origin is None:
            return True
        if self._window is None and not origin.in_order:
            raise ValueError(
                f"the rows of the stream {origin.stream} in topic {topic}, partition {partition}, keep no order "
                f"(header {ORDER}), and without a window some would be lost: give Deduplicator(window=N), N the "
                "largest max_records_per_batch that the stream has had"
            )
        streams = self._partitions.setdefault((topic, partition), {})
        stream = streams.get(origin.stream)
        if stream is None or origin.timeline > stream.timeline:
            stream = streams[origin.stream] = _Stream(origin.timeline)
        if origin.timeline < stream.timeline:
            return False
        topic_id, source_partition, offset = origin.source
        source = stream.sources.get((topic_id, source_partition))
        if source is None:
            source = stream.sources[topic_id, source_partition] = _Source()
        return source.is_new((offset, origin.ordinal), self._window)

    def unique(self, messages: Iterable[AnyMessage]) -> Iterator[AnyMessage]:
        """Those that are new, and those that are errors, which the caller is to look at; lazily, one by one.

        Raises:
            ValueError: a record needs a window, and there is none (see `is_new`).
        """
        for message in messages:
            if message.error() or self.is_new(message.topic(), message.partition(), message.headers()):
                yield message

    def state(self, partitions: Iterable[tuple[str, int]] | None = None) -> dict[str, Any]:
        """What is known, as JSON takes it.

        Save it in one transaction with the consumer's own positions and with what it made of the records, and go on
        from what was saved, also after an error: both have to be of one moment. Marks that are ahead of the positions
        would have what is read again taken for duplicates: rows are lost. Marks behind them let rows pass twice. Who
        reads anew from an older position takes the state of that time, or none.

        Args:
            partitions: (topic, partition) of those that are asked for, to save each with its position where partitions
                move between the members of a group; None: all.
        """
        chosen = sorted(self._partitions if partitions is None else set(partitions))
        return {
            "version": STATE_VERSION,
            "partitions": [
                {
                    "topic": topic,
                    "partition": partition,
                    "streams": [
                        stream.document(name) for name, stream in self._partitions.get((topic, partition), {}).items()
                    ],
                }
                for topic, partition in chosen
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put what was saved in the place of what is known of its partitions. The window may be another than then.

        Raises:
            ValueError: it is none of ours, or of a newer version, or has a window's rows and this has no window: those
                of them that did not come yet would be lost. Nothing was changed.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"a state of version {state.get('version')!r}, not {STATE_VERSION}")
        try:
            found = {
                (str(entry["topic"]), int(entry["partition"])): {
                    str(stream["stream"]): _Stream.of(stream, self._window) for stream in entry["streams"]
                }
                for entry in state["partitions"]
            }
        except (KeyError, TypeError) as error:
            raise ValueError(f"no state of a deduplicator: {error!r}") from error
        self._partitions |= found

    def forget(self, topic: str, partition: int) -> None:
        """Know nothing of an output partition any more, as when another member of the group has it now."""
        self._partitions.pop((topic, partition), None)


_Row = tuple[int, int]  # offset and ordinal: of one source partition


@dataclass(slots=True)
class _Source:
    """What was seen of one source partition, in one output partition, on one timeline.

    Attributes:
        first_open: rows before it are duplicates.
        blocks: rows from there on that were seen, by parts of the window.
    """

    first_open: _Row = (0, 0)
    blocks: dict[int, set[_Row]] = field(default_factory=dict)

    def is_new(self, row: _Row, window: int | None) -> bool:
        if row < self.first_open:
            return False
        offset, ordinal = row
        if window is None:
            self.first_open = (offset, ordinal + 1)
            return True
        length = -(-window // _BLOCKS)
        block = self.blocks.setdefault(offset // length, set())
        if row in block:
            return False
        block.add(row)
        self._move(offset - window + 1, length)
        return True

    def _move(self, first: int, length: int) -> None:
        """Have the window begin at an offset, if it does not begin later. Looks at blocks only where one is left."""
        before = self.first_open[0] // length
        self.first_open = max(self.first_open, (first, 0))
        oldest = self.first_open[0] // length
        if oldest > before:
            for number in [number for number in self.blocks if number < oldest]:
                del self.blocks[number]

    def document(self) -> dict[str, Any]:
        seen = sorted(row for block in self.blocks.values() for row in block if row >= self.first_open)
        return {"first_open": list(self.first_open), "seen": [list(row) for row in seen]}

    @classmethod
    def of(cls, document: Mapping[str, Any], window: int | None) -> _Source:
        first_open, *seen = ((int(offset), int(ordinal)) for offset, ordinal in _rows(document))
        if seen and window is None:
            raise ValueError("this state was kept with a window: give one")
        source = cls(first_open)
        for row in seen:
            source.is_new(row, window)
        return source


@dataclass(slots=True)
class _Stream:
    """What was seen of one stream in one output partition: its newest timeline, and that one's source partitions."""

    timeline: int
    sources: dict[tuple[str, int], _Source] = field(default_factory=dict)

    def document(self, name: str) -> dict[str, Any]:
        sources = [
            {"topic_id": topic_id, "partition": partition, **source.document()}
            for (topic_id, partition), source in self.sources.items()
        ]
        return {"stream": name, "timeline": self.timeline, "sources": sources}

    @classmethod
    def of(cls, document: Mapping[str, Any], window: int | None) -> _Stream:
        sources = {
            (str(entry["topic_id"]), int(entry["partition"])): _Source.of(entry, window)
            for entry in document["sources"]
        }
        return cls(int(document["timeline"]), sources)


def _rows(document: Mapping[str, Any]) -> Iterator[list[int]]:
    yield document["first_open"]
    yield from document["seen"]
