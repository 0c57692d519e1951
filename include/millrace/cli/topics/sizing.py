"""`millrace topics sizing`: how large topics get, how old their records, when the disk is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.bars import share_bar
from millrace.cli.terminal.output import Text, emit, moment
from millrace.cli.terminal.sizes import duration_option
from millrace.domain.formats.durations import roughly
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.groups.snapshots import DiskSeen
from millrace.domain.retention.bounds import Bound
from millrace.domain.retention.flow import Flow
from millrace.domain.retention.forecasts.estimates import Keeping
from millrace.domain.retention.forecasts.history import MadeForecast
from millrace.errors import Code, UsageError
from millrace.settings import KAFKA, open_settings
from millrace.usecases.declaration.lookup import cluster_of
from millrace.usecases.retention.growth import in_words, keeping, known_forecasts, size_for_days
from millrace.usecases.retention.sizing import PartitionSizing, Sizing, TopicSizing, size
from millrace.wiring import open_platform

_SHOWN = 40


def register(app: typer.Typer) -> None:
    """Add the command to its noun."""
    app.command()(sizing)


def sizing(
    topic: Annotated[str | None, typer.Argument(help="Name one topic, to show its partitions; default: all.")] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            "--kafka", metavar="NAME", help="Use this Connection of the cluster; default: the one of the topic."
        ),
    ] = None,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="TIME", help="Check that no record gets older than this, as 10y.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the size of topics and the age of their oldest record, with their upper bounds and the broken bounds.

    For one topic it also shows partitions, forecast, and the days that retention by size keeps. Exit 1 if a bound is
    broken, or if a record may get older than --max-age.
    """
    age = None if max_age is None else duration_option("--max-age", max_age)
    settings = open_settings()
    connection = kafka or (KAFKA if topic is None else cluster_of(settings.root, topic))
    platform = open_platform(settings)
    found = size(platform, connection, None if topic is None else [topic], read=topic is not None)
    if topic is not None and not found.topics:
        step = "list the topics with `millrace topics sizing`"
        raise UsageError(
            f"topic `{topic}` does not exist", where=f"cluster of {connection}", next_step=step, code=Code.UNKNOWN_NAME
        )
    made, unknown = known_forecasts(platform, connection, [one.name for one in found.topics])
    found = replace(found, not_known=[*found.not_known, *unknown])
    kept = {} if age is None else {one.name: keeping(one, made.get(one.name), age) for one in found.topics}
    seen = _Seen(found, made, kept)
    emit(_document(seen), as_json=as_json, text=lambda console: _print(console, seen, each=topic is not None))
    wrong = any(breach.wrong for one in found.topics for breach in one.breaches)
    if wrong or not all(each.kept for own in kept.values() for each in own):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """All that is printed: sizes, forecasts by topic, and whether what may not get too old does not."""

    sizing: Sizing
    made: Mapping[str, MadeForecast]
    kept: Mapping[str, Sequence[Keeping]]


def _document(seen: _Seen) -> dict[str, object]:
    found = seen.sizing
    return {
        "schema": "millrace.topics.sizing/1",
        "kafka": found.kafka,
        "cluster_id": found.snapshot.cluster_id,
        "at": found.snapshot.at,
        "not_known": list(found.not_known),
        "topics": [_topic(one) | _to_come(one, seen) for one in found.topics],
        "disks": [
            {
                "broker": disk.broker,
                "folder": disk.folder,
                "total_bytes": disk.total_bytes,
                "usable_bytes": disk.usable_bytes,
            }
            for disk in found.disks
        ],
    }


def _topic(one: TopicSizing) -> dict[str, object]:
    return {
        "topic": one.name,
        "replication": one.seen.replication,
        "settings": one.settings,
        "size_bytes": one.size_bytes,
        "bound_bytes": one.bound_bytes,
        "disk_bound_bytes": one.disk_bytes,
        "oldest_seconds": one.age,
        "oldest_bound_seconds": one.age_bound,
        "bytes_per_second": one.bytes_per_second,
        "offset_bytes": one.offset_bytes,
        "rate_is": "declared" if one.assumed else "measured" if one.bytes_per_second is not None else "not known",
        "not_as_expected": list(one.differs),
        "breaches": one.breaches,
        "advice": list(one.advice),
        "partitions": [_partition(each) for each in one.partitions],
    }


def _to_come(one: TopicSizing, seen: _Seen) -> dict[str, object]:
    made = seen.made.get(one.name)
    held = size_for_days(made, one) if made else ()
    return {
        "forecast": None if made is None else {**asdict(made.forecast), "past": made.past},
        "retention_bytes_for_days": {str(days): band for days, band in held},
        "max_age": list(seen.kept.get(one.name, ())),
    }


def _partition(one: PartitionSizing) -> dict[str, object]:
    log = one.log
    return {
        "partition": one.number,
        "log_start": log.start if log else None,
        "log_end": log.end if log else None,
        "size_bytes": log.size_bytes if log else None,
        "oldest_seconds": one.age,
        "flow": _flow(one.flow),
        "bound": one.bound,
    }


def _flow(flow: Flow | None) -> dict[str, object] | None:
    if flow is None:
        return None
    return {
        "bytes_per_second": flow.mean,
        "most_bytes_per_second": flow.burst,
        "measured_over_seconds": flow.over,
    }


def _print(console: Console, seen: _Seen, *, each: bool) -> None:
    found = seen.sizing
    console.print(Text(f"cluster of {found.kafka} at {moment(found.snapshot.at)}"), soft_wrap=True)
    for line in found.not_known:
        console.print(Text(f"not known: {line}"), soft_wrap=True)
    if not found.topics:
        console.print(Text("there is no topic"))
        return
    console.print(sizing_table(found))
    for one in found.topics:
        _print_lines(console, one, seen, each=each)
    for disk in found.disks:
        if line := disk_line(disk):
            console.print(Text(line), soft_wrap=True)
    if each:
        console.print(_partitions(found.topics[0]))


def _print_lines(console: Console, one: TopicSizing, seen: _Seen, *, each: bool) -> None:
    """What is to be said of a topic beside its numbers."""
    for line in (*topic_lines(one), *to_come_lines(one, seen.made.get(one.name), each=each)):
        console.print(Text(f"{one.name}: {line}"), soft_wrap=True)
    for kept in seen.kept.get(one.name, ()):
        told = f"{'kept' if kept.kept else 'not kept'}: {kept.text}"
        console.print(Text(f"{one.name}: {told}", style="" if kept.kept else "red"), soft_wrap=True)
    for line in advice_lines(one):
        console.print(Text(f"{one.name}: advice: {line}", style="dim"), soft_wrap=True)


def sizing_table(found: Sizing) -> Table:
    """A line a topic; the bar is what it takes of what it takes at most."""
    table = Table()
    headings = ("topic", "partitions", "size", "", "at most", "by", "on disks at most", "oldest", "at most", "comes in")
    for heading in headings:
        right = heading in ("partitions", "size", "at most", "on disks at most", "oldest", "comes in")
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for one in found.topics:
        share = one.size_bytes / one.bound_bytes if one.bound_bytes and one.size_bytes is not None else None
        wrong = any(breach.wrong for breach in one.breaches)
        table.add_row(
            Text(one.name),
            Text(str(len(one.partitions))),
            Text(_size(one.size_bytes)),
            share_bar(share, style="red" if wrong else "green"),
            Text(_size(one.bound_bytes)),
            Text(_rule(one)),
            Text(_size(one.disk_bytes)),
            Text("" if one.age is None else roughly(one.age)),
            Text("" if one.age_bound is None else roughly(one.age_bound)),
            Text("?" if one.bytes_per_second is None else f"{roughly_bytes(one.bytes_per_second)}/s"),
        )
    return table


def topic_lines(one: TopicSizing) -> list[str]:
    """What is to be said of one topic beside its numbers."""
    whys = sorted({each.bound.why for each in one.partitions if each.bound.why})
    breaches = (f"partition {breach.partition}: {breach.kind}: {breach.text}" for breach in one.breaches)
    return [*whys, *breaches, *one.differs]


def to_come_lines(one: TopicSizing, made: MadeForecast | None, *, each: bool) -> list[str]:
    """What a topic will be; of one that is asked for also what retention by size holds how many days."""
    if made is None:
        return ["not forecast yet: DAG PIPELINE.retention does it once a day"] if each else []
    lines = [in_words(made)]
    if each and (held := size_for_days(made, one)):
        sizes = ", ".join(f"{days} days by {roughly_bytes(band.high)}" for days, band in held)
        lines.append(f"retention.bytes that holds the fullest partition: {sizes} (with what the band allows)")
    return lines


def advice_lines(one: TopicSizing) -> list[str]:
    """What of its settings is probably not meant, and what would be better."""
    return [f"{each.setting}: {each.what}; {each.next_step}" for each in one.advice]


def disk_line(disk: DiskSeen) -> str:
    """How full a broker's disk is; empty where it does not tell."""
    if disk.total_bytes is None or disk.usable_bytes is None:
        return ""
    taken = roughly_bytes(sum(disk.topics.values()))
    where = f"broker {disk.broker}, {disk.folder}"
    free, total = roughly_bytes(disk.usable_bytes), roughly_bytes(disk.total_bytes)
    return f"{where}: {free} of {total} are free; topics take {taken}"


def _partitions(one: TopicSizing) -> Table:
    table = Table(title=one.name, title_justify="left")
    for heading in ("partition", "offsets", "size", "", "at most", "oldest", "at most", "segments", "comes in"):
        table.add_column(heading, overflow="fold", justify="left" if not heading else "right")
    for each in one.partitions[:_SHOWN]:
        bound, log = each.bound, each.log
        share = log.size_bytes / bound.log_bytes if log and log.size_bytes is not None and bound.log_bytes else None
        table.add_row(
            Text(str(each.number)),
            Text(f"{log.start:,} to {log.end:,}" if log else "?"),
            Text(_size(log.size_bytes if log else None)),
            share_bar(share, style="green"),
            Text(_size(bound.log_bytes)),
            Text("" if each.age is None else roughly(each.age)),
            Text("" if bound.age is None else roughly(bound.age)),
            Text("" if bound.segments is None else f"{bound.segments:,}"),
            Text("?" if each.flow is None else f"{roughly_bytes(each.flow.mean)}/s"),
        )
    if (more := len(one.partitions) - _SHOWN) > 0:
        table.add_row(Text(f"{more:,} more: --json"))
    return table


def _size(size_bytes: float | None) -> str:
    return "?" if size_bytes is None else roughly_bytes(size_bytes)


def _rule(one: TopicSizing) -> str:
    rules = {bound.by.value for bound in _bounds(one) if bound.by is not None}
    return ", ".join(sorted(rules))


def _bounds(one: TopicSizing) -> list[Bound]:
    return [each.bound for each in one.partitions]
