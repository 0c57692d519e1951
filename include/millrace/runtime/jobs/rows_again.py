"""Rows made again by the app of a stream, as its batches make them, but for the reading.

Decoding and transform in Spark, the copy with its halving of blocks of which the database refuses a row.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from millrace import declarations
from millrace.adapters.sinks.postgres.copy import as_text, copy_block
from millrace.adapters.sinks.postgres.tables import TargetColumn
from millrace.adapters.sinks.postgres.types import target_columns
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.quarantine.rules import Broken, Rule
from millrace.domain.streams.failing import MOST_FAILING
from millrace.domain.topics.offsets import Source, SourceAt
from millrace.errors import Code, DeclarationError
from millrace.runtime.formats.decoded import DecoderFactory
from millrace.runtime.formats.registry import decoder_of
from millrace.runtime.life.session import open_session
from millrace.runtime.stream.inputs import good_records
from millrace.runtime.stream.isolation import TooManyFailingError, failing_records, without
from millrace.runtime.stream.source import RAW_TYPE, decoded
from millrace.runtime.stream.transform import Transform, load_transform, output_columns, output_type
from millrace.runtime.stream.writing import Blocks, with_sources
from millrace.settings import Settings, open_settings, project_root


@dataclass(frozen=True, slots=True)
class OpenedApp:
    """A stream's app as it is now, with a Spark session to run it in.

    Attributes:
        columns: what its transform gives, as the sink's table has them.
    """

    session: SparkSession
    settings: Settings
    pipeline: Pipeline
    stream: Stream
    transform: Transform
    columns: tuple[TargetColumn, ...]


@contextmanager
def opened_app(name: str, scratch: Path) -> Iterator[OpenedApp]:
    """The app of a stream, in this process.

    Args:
        name: PIPELINE.STREAM.
        scratch: for what is temporary.

    Raises:
        DeclarationError: the app is not one.
    """
    root = project_root()
    sys.path[0] = str(root / "spark_apps")  # where the entry of an app's driver lies, and what apps share
    pipeline = declarations.load_pipeline(root, name.partition(".")[0], os.environ.get("MILLRACE_ENVIRONMENT"))
    stream = pipeline.stream(name.partition(".")[2])
    session = open_session(stream, 0, (), scratch)
    try:
        transform = load_transform(root, stream.app)
        given = output_columns(output_type(session, pipeline, stream, transform), stream.app)
        columns = target_columns(given, f"spark_apps/{stream.app}/transform.py")
        yield OpenedApp(session, open_settings(root), pipeline, stream, transform, columns)
    finally:
        session.stop()


class RowMaker:
    """Makes rows of records that were read somehow, and says which of the records are bad.

    Args:
        app: makes the rows.
        columns: which of its columns are wanted.
        folder: for rows on their way; is made.
        make_decoder: makes what decodes the records of a topic.
        on_try: called before each try of a search for records that the transform raises on, with the step in words.
    """

    def __init__(
        self,
        app: OpenedApp,
        columns: Sequence[str],
        folder: Path,
        make_decoder: DecoderFactory = decoder_of,
        on_try: Callable[[str], object] = lambda step: None,
    ) -> None:
        folder.mkdir(parents=True, mode=0o700)
        self._app = app
        self._folder = folder
        self._columns = tuple(columns)
        self._topics = app.pipeline.topics_of(app.stream)
        self._make_decoder = make_decoder
        self._on_try = on_try
        self._decoders = {
            name: make_decoder(topic.value, topic.key)
            for name, topic in self._topics.items()
            if topic.value is not None
        }

    def copy(
        self, records: pa.Table, ids: Mapping[str, str], connection: psycopg.Connection[Any], table: sql.Identifier
    ) -> tuple[int, dict[Source, Broken]]:
        """Make rows and copy them: how many, and the sources that the transform or the database refuses.

        Spark's tasks leave rows in files, block by block: a transform may make many of one record.

        Args:
            records: with the columns of `runtime.stream.source.RAW_TYPE`.
            ids: the id of each topic.
            connection: where to copy to, in autocommit.
            table: a table with the source columns and the wanted ones.
        """
        try:
            return self._copy(records, ids, connection, table)
        except TooManyFailingError:  # nothing was copied
            rows, refused = 0, dict[Source, Broken]()
        for first in range(0, len(records), MOST_FAILING):
            more, found = self._copy(records.slice(first, MOST_FAILING), ids, connection, table)
            rows, refused = rows + more, refused | found
        return rows, refused

    def _copy(
        self, records: pa.Table, ids: Mapping[str, str], connection: psycopg.Connection[Any], table: sql.Identifier
    ) -> tuple[int, dict[Source, Broken]]:
        raw = self._app.session.createDataFrame(records, schema=RAW_TYPE)
        inputs = {
            name: decoded(raw, topic, ids.get(name, ""), self._make_decoder) for name, topic in self._topics.items()
        }
        columns = self._rows_of(good_records(inputs)).columns
        fields = sql.SQL(", ").join(map(sql.Identifier, columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(table, fields)
        refused: list[tuple[Any, ...]] = []
        rows = 0
        files, failing = self._files(inputs)
        for path in files:
            with pa.OSFile(path) as file, pa.ipc.open_stream(file) as blocks:
                for block in blocks:
                    text = pa.table([as_text(column) for column in block.columns], names=columns)
                    rows += copy_block(connection, statement, text, refused)
            Path(path).unlink()
        by_sink = {(id_, number, offset): Broken(Rule.SINK_REFUSED, why) for id_, number, offset, why in refused}
        return rows, by_sink | {source: Broken(Rule.TRANSFORM_FAILED, why) for source, why in failing.items()}

    def _rows_of(self, good: Mapping[str, DataFrame]) -> DataFrame:
        return with_sources(self._app.transform(good, {}), self._columns)

    def _files(self, inputs: Mapping[str, DataFrame]) -> tuple[list[str], dict[Source, str]]:
        """Make the rows: the files that hold them, and the records that the transform raises on."""
        failing: dict[Source, str] = {}
        while True:
            try:
                found = self._rows_but_for(failing, good_records(inputs))
                return [one.path for one in found.mapInArrow(_writer(self._folder), "path string").collect()], failing
            except Exception as failure:
                failing = failing | failing_records(
                    inputs,
                    partial(self._rows_but_for, failing),
                    failure,
                    where=f"app {self._app.stream.app}",
                    all_may_fail=True,
                    on_try=self._on_try,
                )

    def _rows_but_for(self, known: Mapping[Source, str], good: Mapping[str, DataFrame]) -> DataFrame:
        return self._rows_of(without(good, known))

    def bad(self, records: pa.Table) -> dict[SourceAt, Broken]:
        """The records that are bad, each with the rule it breaks and why."""
        found: dict[SourceAt, Broken] = {}
        for name, decoder in self._decoders.items():
            own = records.filter(pc.equal(records.column("topic"), name))
            values, keys, times = (own.column(column).to_pylist() for column in ("value", "key", "timestamp_ms"))
            block = decoder.decode(values, keys, times)
            for source, rule, error in zip(sources_of(own), block.rules, block.errors, strict=True):
                if rule is not None:
                    found[source] = Broken(rule, error or "")
        return found

    def strange(self, source: SourceAt) -> DeclarationError:
        """The transform gives a row of a record that it was not given."""
        return DeclarationError(
            f"the transform returns a row of {source}, which was not in its input",
            where=f"app {self._app.stream.app}",
            next_step="keep the column `_source` unchanged",
            code=Code.WRONG_TRANSFORM,
        )


def sources_of(records: pa.Table) -> list[SourceAt]:
    """Where records lie that have the columns of `runtime.stream.source.RAW_TYPE`."""
    places = (records.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return [SourceAt(*place) for place in zip(*places, strict=True)]


def _writer(folder: Path) -> Callable[[Blocks], Blocks]:
    """A task that writes its blocks to a file and reports where; one that is tried again writes another."""

    def write(blocks: Blocks) -> Blocks:
        path, writer = folder / uuid.uuid4().hex, None
        for block in blocks:
            writer = writer or pa.ipc.new_stream(str(path), block.schema)
            writer.write_batch(block)
        if writer is not None:
            writer.close()
            yield pa.RecordBatch.from_pydict({"path": [str(path)]})

    return write
