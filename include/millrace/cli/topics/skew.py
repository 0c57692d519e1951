"""`millrace topics skew`: how unevenly a topic's records lie in its partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.terminal.output import Text, emit, moment
from millrace.domain.formats.printable import printable
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.retention.skew import SAMPLED, KeyCount, Load, PartitionLoad, Sample
from millrace.settings import open_settings
from millrace.usecases.declaration.lookup import cluster_of
from millrace.usecases.retention.skew import Skew, find_skew
from millrace.wiring import open_platform

_SHOWN_PARTITIONS = 50
_BAR = 40
_MOST_RECORDS = 1_000_000


def register(app: typer.Typer) -> None:
    """Add the command `skew` to the commands of `topics`."""
    app.command("skew")(skew)


def skew(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name the topic.")],
    records: Annotated[
        int, typer.Option(min=1, max=_MOST_RECORDS, help="Read the keys of this number of newest records.")
    ] = SAMPLED,
    kafka: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Use this Connection of the cluster; default: that of the declaring pipeline."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show the content of each partition, the fullest one, and its most frequent keys. Needs no control database."""
    settings = open_settings()
    connection = kafka or cluster_of(settings.root, topic)
    found = find_skew(open_platform(settings), connection, topic, records)
    emit(_document(found), as_json=as_json, text=lambda console: _print(console, found))


def _document(found: Skew) -> dict[str, object]:
    load, hottest = found.load, found.load.hottest
    return {
        "schema": "millrace.topics.skew/1",
        "topic": found.topic,
        "kafka": found.kafka,
        "cluster_id": found.cluster_id,
        "at": found.at,
        "records": load.records,
        "size_bytes": load.size_bytes,
        "partitions": [{**asdict(each), "share": load.share(each)} for each in load.partitions],
        "hottest": None
        if hottest is None
        else {**asdict(hottest), "share": load.share(hottest), "against_mean": load.against_mean(hottest)},
        "sample": None if found.sample is None else _sample(found.sample),
    }


def _sample(sample: Sample) -> dict[str, object]:
    top = [{**asdict(each), "share": each.records / sample.records} for each in sample.top]
    return {**asdict(sample), "top": top, "by_murmur2": sample.by_murmur2}


def _print(console: Console, found: Skew) -> None:
    load, hottest = found.load, found.load.hottest
    size = "" if load.size_bytes is None else f", {roughly_bytes(load.size_bytes)}"
    count = len(load.partitions)
    head = f"{found.topic} on {found.kafka} at {moment(found.at)}: {load.records:,} records{size} in "
    console.print(Text(head + f"{count:,} partition{'' if count == 1 else 's'}"), soft_wrap=True)
    fullest = sorted(load.partitions, key=lambda each: (-(each.records or 0), each.partition))
    for each in sorted(fullest[:_SHOWN_PARTITIONS], key=lambda each: each.partition):
        console.print(_line(console, load, each), soft_wrap=True)
    if left := fullest[_SHOWN_PARTITIONS:]:
        most = left[0].records or 0
        console.print(Text(f"  and {len(left):,} more partitions with {most:,} records at most: `--json` has them"))
    if load.unknown:
        console.print(Text(f"not known: {len(load.unknown):,} partitions, whose leaders did not answer"))
    if hottest is None:
        return
    times, share = load.against_mean(hottest) or 0.0, load.share(hottest) or 0.0
    line = f"hottest: partition {hottest.partition} with {share:.1%} of the records, {times:.2f} times the mean"
    console.print(Text(line, style="bold"), soft_wrap=True)
    if found.sample is not None:
        for line in _keys(found.sample):
            console.print(Text(line), soft_wrap=True)


def _line(console: Console, load: Load, each: PartitionLoad) -> Text:
    glyph = "█" if console.encoding.lower().startswith("utf") else "="
    most = max((one.records or 0 for one in load.partitions), default=0)
    cells = -(-_BAR * (each.records or 0) // most) if most else 0  # what holds anything has a cell
    line = Text(f"  {each.partition:>6} ")
    line.append(glyph * cells, "red" if each == load.hottest else "green")
    line.append(" " * (_BAR - cells))
    share = load.share(each)
    records = "not known" if each.records is None else f"{each.records:,} records"
    line.append(f" {records:>22} {'' if share is None else f'{share:.1%}':>6}")
    return line.append("" if each.size_bytes is None else f" {roughly_bytes(each.size_bytes):>10}")


def _keys(sample: Sample) -> Iterator[str]:
    of = f"its newest {sample.records:,} committed records (offsets {sample.first} to {sample.next})"
    if not sample.records:
        yield f"no record is committed among its newest ones (offsets {sample.first} to {sample.next})"
        return
    yield f"{of} have {sample.keys:,} different key{'' if sample.keys == 1 else 's'}"
    for each in sample.top:
        yield f"  {_shown(each):<40} {each.records:>12,} records {each.records / sample.records:>6.1%}"
    if (more := sample.keys - len(sample.top)) > 0:
        rest = sample.records - sample.without_key - sum(each.records for each in sample.top)
        yield f"  {f'and {more:,} more keys':<40} {rest:>12,} records {rest / sample.records:>6.1%}"
    if sample.without_key:
        yield f"  {'without a key':<40} {sample.without_key:>12,} records {sample.without_key / sample.records:>6.1%}"
    if sample.by_murmur2 is False:
        yield (
            f"keys are not partitioned by murmur2: of {sample.hashed:,} keys, {sample.elsewhere:,} belong elsewhere; "
            "either producers choose otherwise, or partitions were added since"
        )
    elif sample.by_murmur2:
        yield f"keys are partitioned by murmur2: all of {sample.hashed:,} belong here"


def _shown(each: KeyCount) -> str:
    shown = f"`{printable(each.key)}`" if each.is_text else f"0x{each.key}"
    return f"{shown} and more" if each.is_cut else shown
