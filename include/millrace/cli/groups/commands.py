"""`millrace groups`: who reads what, how far behind they are, and whether it gets better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from millrace.cli.groups import active
from millrace.cli.groups.text import print_group, print_groups, print_lag
from millrace.cli.terminal.output import emit
from millrace.domain.groups.snapshots import Member
from millrace.domain.groups.status import GroupReading, PartitionReading
from millrace.domain.groups.time_lag import TimeLag
from millrace.settings import KAFKA, open_settings
from millrace.usecases.groups import listing as groups
from millrace.usecases.groups.listing import GroupList, GroupRow
from millrace.wiring import open_platform

app = typer.Typer(help="List and show consumer groups, their lag and their commits.", no_args_is_help=True)
active.register(app)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name the group.")]
Kafka = Annotated[str, typer.Option("--kafka", metavar="NAME", help="Use this Connection of the cluster.")]
Directly = Annotated[
    bool,
    typer.Option("--now", help="Ask the cluster now; needs no control database, and has no history."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback()
def _noun() -> None:
    """List and show consumer groups, their lag and their commits."""


@app.command("list")
def list_command(kafka: Kafka = KAFKA, now: Directly = False, as_json: Json = False) -> None:
    """List every group of the cluster: status, members, lag in records and in time, rates, kind."""
    found = groups.list_groups(open_platform(open_settings()), kafka, directly=now)
    document = {"schema": "millrace.groups.list/1", **_seen(found), "groups": [_document(row) for row in found.groups]}
    emit(document, as_json=as_json, text=lambda console: print_groups(console, found))


@app.command()
def show(group: Name, kafka: Kafka = KAFKA, now: Directly = False, as_json: Json = False) -> None:
    """Show one group: its members with host and partitions, its offsets, and its risks."""
    found = groups.show_group(open_platform(open_settings()), kafka, group, directly=now)
    row = found.groups[0]
    document = {"schema": "millrace.groups.show/1", **_seen(found), **_document(row), **_details(row)}
    emit(document, as_json=as_json, text=lambda console: print_group(console, found))


@app.command()
def lag(
    group: Annotated[str | None, typer.Argument(metavar="GROUP", help="Select this group; default: all.")] = None,
    kafka: Kafka = KAFKA,
    now: Directly = False,
    limit: Annotated[
        int, typer.Option(min=1, help="Print at most this number of partitions, the largest lag first.")
    ] = 200,
    as_json: Json = False,
) -> None:
    """List the unread records of each partition's reader, in records and in time; the largest lag first."""
    platform = open_platform(open_settings())
    if group is None:
        found = groups.list_groups(platform, kafka, directly=now)
    else:
        found = groups.show_group(platform, kafka, group, directly=now)
    ordered = groups.furthest_first(found.groups)
    document = {
        "schema": "millrace.groups.lag/1",
        **_seen(found),
        "partitions": [{"group": row.name, **_partition(one)} for row, one in ordered[:limit]],
        "left_out": max(0, len(ordered) - limit),
    }

    def text(console: Console) -> None:
        print_lag(console, found, ordered[:limit], max(0, len(ordered) - limit))

    emit(document, as_json=as_json, text=text)


def _seen(found: GroupList) -> dict[str, object]:
    return {
        "kafka": found.kafka,
        "cluster_id": found.snapshot.cluster_id,
        "at": found.snapshot.at,
        "age_seconds": round(found.age.total_seconds(), 3),
        "looked_since": found.since,
        "not_known": list(found.snapshot.faults),
    }


def _document(row: GroupRow) -> dict[str, object]:
    reading, group = row.reading, row.reading.group
    return {
        "group": row.name,
        "type": group.type,
        "state": group.state,
        "members": None if group.members is None else len(group.members),
        "status": reading.status,
        "why": reading.why,
        "lag": reading.lag,
        "time_lag": _time_lag(reading.time_lag),
        "rate_in_per_second": reading.rate_in,
        "rate_out_per_second": reading.rate_out,
        "last_change_at": reading.changed_at,
        "commit_interval_seconds": reading.interval,
        "topics": reading.topics,
        "what": row.what,
        "declared": row.declared,
        "risks": row.risks,
    }


def _details(row: GroupRow) -> dict[str, object]:
    return {
        "protocol": row.reading.group.protocol,
        "member_list": _members(row.reading),
        "partitions": [_partition(one) for one in row.reading.partitions],
    }


def _members(reading: GroupReading) -> list[dict[str, object]] | None:
    members: Sequence[Member] | None = reading.group.members
    if members is None:
        return None
    return [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.host,
            "instance": member.instance,
            "partitions": None if member.partitions is None else [_name(*each) for each in member.partitions],
        }
        for member in members
    ]


def _partition(one: PartitionReading) -> dict[str, object]:
    return {
        "topic": one.partition[0],
        "partition": one.partition[1],
        "committed": one.committed,
        "log_start": one.start,
        "log_end": one.end,
        "lag": one.lag,
        "time_lag": _time_lag(one.time_lag),
        "status": one.status,
        "why": one.why,
        "last_change_at": one.changed_at,
        "client_id": one.member.client_id if one.member else None,
        "host": one.member.host if one.member else None,
    }


def _time_lag(lag: TimeLag | None) -> dict[str, object] | None:
    """An estimate, and said so: `at_least` where the record is older than the snapshots."""
    if lag is None:
        return None
    return {"estimate_seconds": round(lag.behind.total_seconds(), 3), "at_least": lag.at_least}


def _name(topic: str, number: int) -> str:
    return f"{topic}/{number}"
