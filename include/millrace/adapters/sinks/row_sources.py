"""The sources of output rows, as the columns of a block."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from millrace.domain.topics.offsets import Source

SOURCE_COLUMNS = ("_topic_id", "_partition", "_offset", "_ordinal")
"""Columns that tell one row from every other of its timeline."""


def sources_of(block: pa.RecordBatch | pa.Table, rows: Sequence[int] | None = None) -> list[Source]:
    """Return the sources of these rows, in their order; None: of all rows."""
    named = block.select(list(SOURCE_COLUMNS[:3]))
    if rows is not None:
        named = named.take(pa.array(rows, pa.int64()))
    return list(zip(*(column.to_pylist() for column in named.columns), strict=True))
