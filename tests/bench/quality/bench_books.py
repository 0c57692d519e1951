"""What books cost: a million offsets at once, a run that goes on, and the entry that a batch writes.

Called as `./millrace test tests/bench/quality/bench_books.py -s`.
MILLRACE_BENCH_ROWS says how many offsets (10,000,000) the
larger table has. A run that goes on looks at the same 10,000 offsets in a table of a tenth of them and in that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.domain.quality.books import Part, judged
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from support.quality.books_made import STREAM, TABLE, TOPIC, TOPIC_ID, Made
from support.quality.sinks import open_sink
from support.stack import control_databases

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

OFFSETS = int(os.environ.get("MILLRACE_BENCH_ROWS", "10000000"))
P0 = TopicPartition(TOPIC, TOPIC_ID, 0)
GAINED = 10_000
LARGE_BATCH = 200_000


def test_books_by_the_size_of_the_table(postgres: Stack) -> None:
    with open_sink(control_databases.on(postgres)) as sink:
        made = Made(sink)
        at = 0
        for size in (OFFSETS // 10, OFFSETS):
            made.batches(at, size, each=100_000)
            if not at:
                print(f"\n  {size:,} offsets at once: {fastest(lambda: looked(made, 0, size)):.2f} s")  # noqa: B023
            made.batches(size, size + GAINED, each=GAINED)
            first, at = size, size + GAINED
            seconds = fastest(lambda: looked(made, first, at))  # noqa: B023
            print(f"  {GAINED:,} more in a table of {size:,}: {seconds * 1000:.0f} ms")
        made.epoch += 1
        began = time.perf_counter()
        made.batch(at, at + LARGE_BATCH)
        whole = time.perf_counter() - began
        booked = fastest(lambda: book(made, at, at + LARGE_BATCH))
        print(
            f"  a batch of {LARGE_BATCH:,} with a tenth dropped: {whole:.2f} s, {booked * 1000:.0f} ms of it its entry"
        )


def looked(made: Made, first: int, next_: int) -> None:
    """A run over these offsets, which balance."""
    with made.books.opened(STREAM, TABLE) as books:
        assert books.about_the_table() == ()
        assert books.outside(P0) is None
        while first < next_:
            part: Part = books.part(OffsetRange(P0, first, next_))
            assert judged(part) == ()
            first = part.range.next


def book(made: Made, first: int, next_: int) -> None:
    """The entry of a batch, written anew."""
    from millrace.adapters.sinks.postgres.ledger import Ledger
    from millrace.adapters.sinks.postgres.tables import BY_THE_KEY, TargetTable

    made.epoch += 1
    with made.sink.connection.transaction(), made.sink.connection.cursor() as cursor:
        cursor.execute(BY_THE_KEY)
        Ledger(STREAM, TargetTable.parse(TABLE)).book(
            cursor, [OffsetRange(P0, first, next_)], timeline=1, epoch=made.epoch, records=[next_ - first]
        )


def fastest(act: Callable[[], None]) -> float:
    """Of three times, in seconds."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        act()
        found.append(time.perf_counter() - began)
    return min(found)
