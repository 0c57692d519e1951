"""What must hold of a stream at any moment: group, rows and quarantine against the record of work."""

from __future__ import annotations

from millrace.adapters.sinks.postgres.books import SinkBooks
from millrace.domain.quality.books import doubts_of, judged, skipped
from millrace.domain.topics.offsets import OffsetRange
from support.streams.project import StreamProject, committed


def group_ahead(project: StreamProject) -> list[str]:
    """Partitions whose group commit is ahead of the record of work: those records would be lost to a rewind."""
    group = committed(project)  # first the group: the record may only grow meanwhile
    record = project.record_of_work()
    return [
        f"partition {number}: the group is at {offset}, the record of work at {record.get(number)}"
        for number, offset in sorted(group.items())
        if offset > record.get(number, 0)
    ]


def rows_against_record(project: StreamProject) -> list[str]:
    """Partitions whose sources are not exactly those on record, each once; seen in one snapshot.

    For a stream that began at offset 0. After a rewind, what the newest timeline has done must be its own.
    """
    name, stream = project.name, project.stream
    if project.query("SELECT to_regclass(%s)", f"{name}.rows") == [(None,)]:
        done = {number: next_ for number, next_ in project.record_of_work().items() if next_}
        return [f"there is no table, and on record is {done}"] if done else []
    found = project.query(
        f"""WITH record AS (
            SELECT topic_id, partition, max(next_offset) AS next_offset, max(timeline) AS newest,
                (array_agg(next_offset - first_offset ORDER BY timeline DESC))[1] AS newest_done
            FROM millrace.progress WHERE stream = %s GROUP BY 1, 2
        ), sources AS (
            SELECT _topic_id AS topic_id, _partition AS partition, _offset AS at, _timeline AS timeline FROM {name}.rows
            UNION ALL SELECT topic_id, partition, "offset", timeline FROM millrace.quarantine WHERE stream = %s
        )
        SELECT partition, next_offset, count(at), count(DISTINCT at), coalesce(max(at) + 1, 0),
            newest_done, count(at) FILTER (WHERE timeline = newest)
        FROM record LEFT JOIN sources USING (topic_id, partition) GROUP BY 1, 2, newest_done ORDER BY 1""",
        stream,
        stream,
    )
    return [
        f"partition {partition}: {rows} rows of {distinct} sources below {top}, the record of work says {next_}; "
        f"{newest} of the newest timeline, the record says {newest_done}"
        for partition, next_, rows, distinct, top, newest_done, newest in found
        if not (rows == distinct == top == next_ and newest == newest_done)
    ]


def books_against_sink(project: StreamProject) -> list[str]:
    """What the product's own books say is wrong with what every timeline has done; none of it can be in doubt.

    For a stream whose topic holds a record at each offset.
    """
    books = SinkBooks(project.sink)
    work, _ = books.work(project.stream)
    table = f"{project.name}.rows"
    if not any(row.first < row.next for row in work) or project.query("SELECT to_regclass(%s)", table) == [(None,)]:
        return []
    wrong = []
    with books.opened(project.stream, table) as opened:
        wrong += list(map(str, opened.about_the_table()))
        for partition in {row.partition for row in work}:
            of_it = [row for row in work if row.partition == partition]
            whole = OffsetRange(partition, min(row.first for row in of_it), max(row.next for row in of_it))
            for first, next_ in skipped(work, whole).outside(whole.first, whole.next):
                while first < next_:
                    part = opened.part(OffsetRange(partition, first, next_))
                    wrong += [f"books: {one}" for one in (*judged(part), *doubts_of(part))]
                    first = part.range.next
    return wrong
