"""Load a declared source into its topic, once, however often it runs, is killed or runs twice at once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Protocol

from millrace.domain.declaration.pipeline import Pipeline, SourceProgram
from millrace.domain.topics.sources import SourceRecord, TopicRecord, loaded, sequence_of
from millrace.errors import Code, DataLossError, DeclarationError, MillraceError, UsageError
from millrace.settings import KafkaSettings, Settings

TRANSACTION_RECORDS = 10_000
TRANSACTION_BYTES = 32 * 1024**2
SOURCES_FOLDER = "sources"


class LoadPhase(StrEnum):
    """What a load is doing."""

    FENCING = "fencing"
    SCANNING = "scanning"
    PRODUCING = "producing"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is: records of the topic read (scanning), or records of the source done (producing)."""

    phase: LoadPhase
    records: int = 0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did: records written now, records committed by earlier runs, and both together."""

    source: str
    topic: str
    produced: int
    already_there: int
    total: int


class SourceTopic(Protocol):
    """One topic, open for one source's loader. Opening it fences every older loader of that source."""

    def committed(self, progress: Callable[[int], None]) -> Iterator[TopicRecord]:
        """Every committed record in the topic when this was called."""
        ...

    def write(self, records: Iterable[SourceRecord], first_sequence: int) -> None:
        """Write the records in one transaction: all of them, or none.

        Raises:
            FencedError: a newer loader of the source has taken over.
        """
        ...


OpenSourceTopic = Callable[[KafkaSettings, str, str], AbstractContextManager[SourceTopic]]
"""Opens (connection, topic, PIPELINE.NAME of the source)."""


def find_source(pipeline: Pipeline, name: str) -> SourceProgram:
    """The pipeline's source of this name.

    Raises:
        UsageError: the pipeline declares no such source.
    """
    for source in pipeline.sources:
        if source.name == name:
            return source
    declared = ", ".join(source.name for source in pipeline.sources) or "none"
    raise UsageError(
        f"pipeline {pipeline.name} has no source {name}",
        where=f"include/pipelines/{pipeline.name}.yaml",
        next_step=f"choose one of: {declared}",
        code=Code.UNKNOWN_NAME,
    )


def load_source(
    settings: Settings,
    pipeline: Pipeline,
    name: str,
    progress: Callable[[LoadProgress], None],
    *,
    open_topic: OpenSourceTopic,
) -> LoadReport:
    """Write the records of a source that its topic does not hold yet.

    Args:
        settings: the project's root and connections.
        pipeline: the pipeline that declares the source.
        name: the source's name in that pipeline.
        progress: called now and then, from this thread.
        open_topic: opens the topic for loading (`millrace.adapters.kafka.producers.source.open_source_topic`).

    Guarantees:
        Each record of the source is committed to the topic once, over any number of runs, kills and runs at the
        same time: opening fences older loaders and ends their transaction, what is committed is read after
        that, and only what is missing is written, in transactions, in order.

    Does not guarantee:
        That records which the topic's retention deleted are written again: they are not.

    Raises:
        FencedError: a newer loader of the same source has taken over; it does the rest.
        DeclarationError: the topic does not exist, or the program is not usable.
        DataLossError: the topic holds a record of the source twice, or more than the program yields.
    """
    source = find_source(pipeline, name)
    qualified = f"{source.pipeline}.{source.name}"
    program = load_program(settings.root, source.program)
    progress(LoadProgress(LoadPhase.FENCING))
    with open_topic(settings.kafka(pipeline.kafka), source.writes, qualified) as topic:
        found = topic.committed(lambda count: progress(LoadProgress(LoadPhase.SCANNING, count)))
        there = loaded(sequence for record in found if (sequence := sequence_of(qualified, record.headers)) is not None)
        if there.doubled:
            raise DataLossError(
                f"records of source {qualified} are in the topic more than once: sequences "
                + ", ".join(map(str, there.doubled[:10])),
                where=source.writes,
                next_step="delete the topic and load it again: a copy of records kept their headers",
            )
        total = _write_missing(program(), there.next_sequence, topic, progress)
    if total < there.next_sequence:
        raise DataLossError(
            f"the topic holds {there.next_sequence} records of source {qualified}, but its program yields only {total}",
            where=source.writes,
            next_step=f"restore the former {SOURCES_FOLDER}/{source.program}.py, or delete the topic and load it again",
            code=Code.WRONG_SOURCE,
        )
    return LoadReport(qualified, source.writes, total - there.next_sequence, there.next_sequence, total)


def _write_missing(
    records: Iterator[SourceRecord],
    next_sequence: int,
    topic: SourceTopic,
    progress: Callable[[LoadProgress], None],
) -> int:
    """Write everything from `next_sequence` on; returns how many records the source has."""
    done = sum(1 for _ in islice(records, next_sequence))
    progress(LoadProgress(LoadPhase.PRODUCING, done))
    for batch in _transactions(records):
        topic.write(batch, done)
        done += len(batch)
        progress(LoadProgress(LoadPhase.PRODUCING, done))
    return done


def _transactions(records: Iterable[SourceRecord]) -> Iterator[list[SourceRecord]]:
    """The records in groups of one transaction each, bounded in number and bytes."""
    batch: list[SourceRecord] = []
    size = 0
    for record in records:
        batch.append(record)
        size += record.size_bytes
        if len(batch) >= TRANSACTION_RECORDS or size >= TRANSACTION_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def load_program(root: Path, program: str) -> Callable[[], Iterator[SourceRecord]]:
    """The function `records` of `sources/PROGRAM.py`.

    Raises:
        DeclarationError: there is no such file, it cannot be imported, or it has no function `records`.
    """
    records = load_module(root, program).get("records")
    if not callable(records):
        raise DeclarationError(
            "the source program has no function `records`",
            where=f"{SOURCES_FOLDER}/{program}.py",
            next_step="define `def records() -> Iterator[SourceRecord]`, yielding in an order that never changes",
            code=Code.WRONG_SOURCE,
        )
    return records


def load_module(root: Path, program: str) -> Mapping[str, object]:
    """The names that `sources/PROGRAM.py` defines, imported under a name of its own."""
    path = root / SOURCES_FOLDER / f"{program}.py"
    where = f"{SOURCES_FOLDER}/{program}.py"
    if not path.is_file():
        raise DeclarationError(
            "the source program does not exist", where=where, next_step=f"write {path}", code=Code.WRONG_SOURCE
        )
    module_name = f"millrace_source_{program}"
    specification = importlib.util.spec_from_file_location(module_name, path)
    if specification is None or specification.loader is None:
        raise DeclarationError(
            "the source program cannot be imported",
            where=where,
            next_step="make it a Python file",
            code=Code.WRONG_SOURCE,
        )
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module  # dataclasses in the program look themselves up here
    try:
        specification.loader.exec_module(module)
    except MillraceError:
        raise
    except Exception as error:
        raise DeclarationError(
            f"the source program cannot be imported: {type(error).__name__}: {error}",
            where=where,
            next_step="run it alone with `./millrace run -- python " + where + "` and repair its error",
            code=Code.WRONG_SOURCE,
        ) from error
    return vars(module)
