"""A fifth sink, as the files of the package that a change would touch: it writes rows to files of a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_DECLARED = '''

@dataclass(frozen=True, slots=True)
class FilesSink:
    """Files of JSON lines in a folder of the machine on which the app runs.

    Attributes:
        folder: its absolute path.
    """

    folder: str

    kind = "files"
    connection = CONTROL
    connections = ()
    topics = ()
    appended = None
    as_table = None
    as_dataset = None

    @property
    def named(self) -> str:
        """What is written to, for people."""
        return f"folder {self.folder}"

    @property
    def capabilities(self) -> Capabilities:
        """All that can be asked of a folder."""
        return without_a_table("files", record="folder", files=no_dataset(self.named), deletes=KEEPS_EACH_ROW)

    def facts(self, kafka: str, group: str) -> SinkFacts:
        """Return the folder, and the file that is the record of work."""
        record, kept_in = "its file `record.json`", "in the same folder: in `record.json`, and in files `bad-*.jsonl`"
        return SinkFacts("Folder", (self.folder,), "beside the database of", self.connection, record, kept_in)

    def places(self, kafka: str) -> frozenset[Place]:
        """Return the folder."""
        return frozenset({("", self.folder)})
'''

_KIND = '''"""`writes: {files: ...}`: files of JSON lines in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from millrace.declarations.fields import pattern
from millrace.declarations.shapes import Document
from millrace.declarations.sink_kind import Claim, SinkKind
from millrace.domain.declaration.sinks import FilesSink

Folder = Annotated[
    str, pattern(r"(/[A-Za-z0-9._-]{1,60}){1,8}", "an absolute path of letters, digits, `.`, `_`, `-`", "/srv/lake")
]


class FilesDocument(Document):
    """Files of JSON lines in a folder."""

    folder: Folder


class FilesKind(SinkKind[FilesDocument, FilesSink]):
    """A folder: streams share none, and none lies inside another one."""

    word = "files"
    document = FilesDocument
    example = "{folder: /srv/lake}"
    service = "files"
    examples = {"folder": "/srv/lake"}  # noqa: RUF012

    def build(self, document: FilesDocument) -> FilesSink:
        """Return the value."""
        return FilesSink(document.folder)

    def show(self, sink: FilesSink) -> Iterator[tuple[str, str]]:
        """Return the folder."""
        yield "folder", sink.folder

    def claims(self, document: FilesDocument) -> Iterator[Claim]:
        """Return the folder, with all that lies inside it."""
        yield Claim("folder", "localhost", document.folder, nests=True)
'''

_ADAPTER = '''"""Rows of a stream as files of JSON lines in a folder."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.adapters.sinks.row_sources import sources_of
from millrace.adapters.sinks.value_ranges import unheld_rows
from millrace.domain.declaration.sinks import FilesSink as DeclaredSink
from millrace.domain.sinks.batch import BatchCounts, Identity, TaskResult, Written
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import Meeting, OffsetRange, Source, TopicPartition, classify
from millrace.errors import FencedError, RefusedError, SinkFailedError
from millrace.ports.sinks import Quarantine, TaskWriter

ROWS, BAD = "rows", "bad"
Record = dict[str, Any]


class FilesSink:
    """A folder that a stream writes to (`SinkStore`).

    Guarantees: exactly once by offset range, for who reads the rows by the record (`read_rows`). One file,
    `record.json`, names the files that count, the record of work and the epoch; it is replaced as a whole, under a
    lock, so an older epoch changes nothing after `take_over` has returned.
    Does not guarantee: anything to who lists the files, nor across machines: the folder is on one, and so is the lock.
    A batch whose sum does not fit the disk ends the life.

    Args:
        identity: who writes.
        sink: as declared.
    """

    metadata: tuple[str, ...] = ()

    def __init__(self, identity: Identity, sink: DeclaredSink) -> None:
        self.where = sink.named
        self.quarantine: Quarantine | None = None
        self._identity = identity
        self._folder = Path(sink.folder)

    def take_over(self) -> None:
        """Raise the epoch in the record.

        Raises:
            FencedError: a newer epoch has done so.
            RefusedError: the folder is another stream's.
        """
        with self._record(taking_over=True):
            pass

    def check_fence(self) -> None:
        """Learn whether this instance may still write."""
        with self._record():
            pass

    def read_record(self) -> WorkRecord:
        """Return the record of work on the newest timeline."""
        with self._record() as record:
            timeline = max(map(int, record["timelines"]), default=0)
            positions = record["timelines"].get(str(timeline), [])
        return WorkRecord(
            timeline,
            {TopicPartition(*partition): next_ for *partition, _, next_ in positions},
            {TopicPartition(*partition): first for *partition, first, _ in positions},
        )

    def open_positions(self, timeline: int, positions: Mapping[TopicPartition, int]) -> None:
        """Put on record where each of these partitions begins on a timeline; twice is once."""
        with self._record() as record:
            held = record["timelines"].setdefault(str(timeline), [])
            done = {TopicPartition(*partition): (first, next_) for *partition, first, next_ in held}
            for partition, at in positions.items():
                if done.get(partition, (at, at)) != (at, at):
                    raise self._failed(f"{partition} stands on timeline {timeline} already, elsewhere")
                if partition not in done:
                    held.append([partition.topic, partition.topic_id, partition.partition, at, at])

    def prepare(self, columns: pa.Schema) -> None:
        """JSON takes rows of any columns."""

    def begin_batch(self) -> None:
        """Delete what a former try of this epoch has left."""
        for path in self._folder.glob(f"staged-{self._identity.epoch}-*"):
            path.unlink(missing_ok=True)

    def rows_writer(self, timeline: int, ranges: Sequence[OffsetRange], *, in_order: bool = True) -> TaskWriter:
        """Write rows to a file for each task."""
        return LinesWriter(self._folder, self._identity.epoch, ROWS)

    def bad_records_writer(self) -> TaskWriter:
        """Write bad records to a file for each task."""
        return LinesWriter(self._folder, self._identity.epoch, BAD)

    def commit_batch(self, timeline: int, ranges: Sequence[OffsetRange], written: Written) -> BatchCounts:
        """Write the files of a batch, then the record that names them."""
        with self._record() as record:
            positions = record["timelines"].get(str(timeline), [])
            todo = [*self._to_do(positions, ranges)]
            if not todo:
                return BatchCounts()
            rows = self._staged(written, ROWS, written.rows)
            bad = self._staged(written, BAD, written.bad_records)
            covered = [[*_key(each.partition), each.first, each.next] for each in todo]
            entry: Record = {"timeline": timeline, "ranges": covered}
            number = len(record["batches"])
            for name, lines in ((ROWS, [row for row in rows if _source(row) not in written.refused]), (BAD, bad)):
                kept = [line for line in lines if _covers(covered, line)]
                _write(self._folder / f"{name}-{number:08}.jsonl", "".join(f"{json.dumps(line)}\\n" for line in kept))
                entry[name] = len(kept)
            record["batches"].append(entry)
            ends = {_key(each.partition): each.next for each in todo}
            for position in positions:
                position[-1] = ends.get((position[1], position[2]), position[-1])
        return BatchCounts(entry[ROWS], entry[BAD])

    def waits_for(self) -> str:
        """Nobody is known that a lock waits for."""
        return ""

    def discard(self) -> None:
        """Delete what is staged."""
        self.begin_batch()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _to_do(self, positions: Sequence[Sequence[Any]], ranges: Sequence[OffsetRange]) -> Iterator[OffsetRange]:
        ends = {(topic_id, number): next_ for _, topic_id, number, _, next_ in positions}
        for batch in ranges:
            stored = ends.get(_key(batch.partition), -1)
            meeting = classify(batch, stored)
            if stored < 0 or meeting is Meeting.GAP:
                raise self._failed(f"{batch} begins behind the end of the record of work")
            if meeting is not Meeting.SKIP:
                yield OffsetRange(batch.partition, stored, batch.next)

    def _staged(self, written: Written, kind: str, count: int) -> list[Record]:
        paths = [self._folder / _staged(self._identity.epoch, kind, attempt) for attempt in written.attempts]
        lines = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
        if len(lines) != count:
            raise self._failed(f"{count} {kind} were written, and {len(lines)} have arrived")
        return lines

    def _failed(self, what: str) -> SinkFailedError:
        next_step = "the next start begins where the record of work ends"
        return SinkFailedError(what, where=f"stream {self._identity.stream}, {self.where}", next_step=next_step)

    @contextmanager
    def _record(self, *, taking_over: bool = False) -> Iterator[Record]:
        """Hold the lock, give the record, and replace it where it has changed."""
        identity, path = self._identity, self._folder / "record.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                before = path.read_text() if path.exists() else ""
                record = json.loads(before) if before else _empty(identity.stream)
                if record["stream"] != identity.stream:
                    raise RefusedError(
                        f"the {self.where} is of the stream {record['stream']}",
                        where=f"stream {identity.stream}",
                        next_step="declare another `folder`",
                    )
                if record["epoch"] > identity.epoch:
                    raise FencedError(
                        f"epoch {record['epoch']} has taken over, this is epoch {identity.epoch}", where=self.where
                    )
                record["epoch"] = identity.epoch if taking_over else record["epoch"]
                yield record
                if (after := json.dumps(record)) != before:
                    _write(path, after)
        except OSError as error:
            raise self._failed(f"{error.strerror}: {error.filename or path}") from error


@dataclass(frozen=True, slots=True)
class LinesWriter:
    """Writes what one task is given as lines of one file (`TaskWriter`)."""

    folder: Path
    epoch: int
    kind: str

    def __call__(self, blocks: Iterator[pa.RecordBatch], attempt: int) -> TaskResult:
        """Write blocks; rows with a value that no sink takes are refused."""
        refused: dict[Source, str] = {}
        rows = 0
        with (self.folder / _staged(self.epoch, self.kind, attempt)).open("w") as file:
            for block in blocks:
                sources = sources_of(block)
                unheld = unheld_rows(block.schema.names, block.columns) if self.kind == ROWS else {}
                refused |= {sources[row]: why for row, why in unheld.items()}
                for source, row in zip(sources, block.to_pylist(), strict=True):
                    if source not in refused:
                        file.write(json.dumps(row, default=str) + "\\n")
                        rows += 1
        return TaskResult(rows, refused)


def read_rows(folder: Path, kind: str = ROWS) -> list[Record]:
    """Return the rows, or the bad records, that count: those that no later timeline covers."""
    path = folder / "record.json"
    batches = json.loads(path.read_text())["batches"] if path.exists() else []
    found = []
    for number, batch in enumerate(batches):
        later = [each["ranges"] for each in batches if each["timeline"] > batch["timeline"]]
        lines = (folder / f"{kind}-{number:08}.jsonl").read_text().splitlines()
        found += [row for row in map(json.loads, lines) if not any(_covers(ranges, row) for ranges in later)]
    return found


def read_epoch(folder: str, stream: str) -> int:
    """Return the newest epoch of a stream that the record names; 0 where it is another stream's, or not there."""
    path = Path(folder) / "record.json"
    record = json.loads(path.read_text()) if path.exists() else _empty(stream)
    return int(record["epoch"]) if record["stream"] == stream else 0


def _covers(ranges: Sequence[Sequence[Any]], row: Record) -> bool:
    *partition, offset = _source(row)
    return any(partition == [id_, number] and first <= offset < next_ for id_, number, first, next_ in ranges)


def _source(row: Record) -> Source:
    return row["_topic_id"], row["_partition"], row["_offset"]


def _key(partition: TopicPartition) -> tuple[str, int]:
    return partition.topic_id, partition.partition


def _staged(epoch: int, kind: str, attempt: int) -> str:
    return f"staged-{epoch}-{attempt}-{kind}.jsonl"


def _empty(stream: str) -> Record:
    return {"version": 1, "stream": stream, "epoch": 0, "timelines": {}, "batches": []}


def _write(path: Path, text: str) -> None:
    """Write a file as a whole: after a crash it is the former one, or this one."""
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
'''

_OPENER = '''def _files(instance: Instance, sink: FilesSink) -> SinkStore:
    from millrace.adapters.sinks.files import sink as files_sink

    return files_sink.FilesSink(instance.identity, sink)


def _epochs_of_files(settings: Settings, sink: FilesSink) -> Mapping[str, EpochReader]:
    """The fence is in the folder, and not in the database."""

    def newest_epoch(stream: str) -> int:
        from millrace.adapters.sinks.files.sink import read_epoch

        return read_epoch(sink.folder, stream)

    return {sink.named: newest_epoch}


OPENERS'''


def _replaced(*changes: tuple[str, str]) -> Callable[[str], str]:
    """Return an edit that replaces texts, each of which stands there once."""

    def edit(text: str) -> str:
        for old, new in changes:
            if text.count(old) != 1:
                raise AssertionError(f"{old!r} stands {text.count(old)} times")
            text = text.replace(old, new)
        return text

    return edit


FILES: Mapping[str, str | Callable[[str], str]] = {
    "include/millrace/domain/declaration/sinks.py": lambda text: text + _DECLARED,
    "include/millrace/declarations/sink_files.py": _KIND,
    "include/millrace/declarations/sinks.py": _replaced(
        (
            "from millrace.declarations.sink_kafka",
            "from millrace.declarations.sink_files import FilesKind\nfrom millrace.declarations.sink_kafka",
        ),
        ("S3Kind())", "S3Kind(), FilesKind())"),
    ),
    "include/millrace/adapters/sinks/files/__init__.py": '"""Files of JSON lines in a folder."""\n',
    "include/millrace/adapters/sinks/files/sink.py": _ADAPTER,
    "include/millrace/wiring/sinks.py": _replaced(
        (
            "from millrace.domain.topics.offsets",
            "from millrace.domain.declaration.sinks import FilesSink\nfrom millrace.domain.topics.offsets",
        ),
        ("OPENERS: ", f"{_OPENER}: "),
        (
            "epochs=_epochs_of_dataset),\n",
            'epochs=_epochs_of_dataset),\n    "files": Opener(_files, epochs=_epochs_of_files),\n',
        ),
    ),
}
"""By their paths in the checkout: a new text, or an edit of the present one."""
