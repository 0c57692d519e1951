"""The ends of a batch, as the query's own offset log has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from millrace.domain.topics.offsets import OffsetRange
from millrace.errors import MillraceError


def is_full(ranges: Sequence[OffsetRange], bound: int) -> bool:
    """Return true where a batch is as large as it may be: more records probably wait behind it.

    Spark shares the bound out among the partitions and rounds down, so a full batch may be a little smaller.
    """
    return sum(entry.next - entry.first for entry in ranges) >= bound - 2 * len(ranges)


def read_offset_log(entry: Path) -> dict[tuple[str, int], int]:
    """The end offsets of one batch: a version line, the batch's metadata, then one line of JSON a source.

    Source: Spark's OffsetSeqLog and KafkaSourceOffset; pinned by tests/spark/streams/test_offset_log.py.
    """
    lines = entry.read_text(encoding="utf-8").splitlines()
    if lines[0] != "v1" or len(lines) != 3:
        raise MillraceError(f"not an offset log entry of version 1 with one source: {lines[0]!r}", where=str(entry))
    topics: dict[str, dict[str, int]] = json.loads(lines[2])
    return {(topic, int(partition)): end for topic, ends in topics.items() for partition, end in ends.items()}


def of_next_query(former: Path) -> Path:
    """Return the offset log of the next query of a life, which has a checkpoint of its own.

    Args:
        former: the offset log of the query before it.
    """
    checkpoint = former.parent
    name, _, number = checkpoint.name.partition("-")
    return checkpoint.with_name(f"{name}-{int(number or 1) + 1}") / former.name
