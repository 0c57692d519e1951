"""Consumer groups for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from millrace.cli.terminal.output import Text, moment
from millrace.domain.formats.durations import roughly
from millrace.domain.groups.status import GroupReading, PartitionReading, Status
from millrace.domain.groups.time_lag import TimeLag
from millrace.usecases.groups.listing import GroupList, GroupRow

_SHOWN_FAULTS = 10
_COLOURS = {Status.STUCK: "red", Status.SLOW: "yellow", Status.STOPPED: "yellow", Status.REWOUND: "yellow"}


def print_groups(console: Console, found: GroupList) -> None:
    """All groups, a line each, then what may go wrong with them."""
    _print_seen(console, found)
    if not found.groups:
        console.print(Text("no consumer group"))
        return
    table = Table()
    headings = ("group", "type", "members", "status", "lag", "behind", "in/s", "out/s", "reads", "what it is")
    for heading in headings:
        right = heading in ("members", "lag", "behind", "in/s", "out/s")
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for row in found.groups:
        reading = row.reading
        members = "?" if reading.group.members is None else str(len(reading.group.members))
        table.add_row(
            Text(row.name),
            Text(reading.group.type.value),
            Text(members),
            _status(reading.status),
            Text(_number(reading.lag)),
            Text(behind(reading.time_lag)),
            Text(_rate(reading.rate_in)),
            Text(_rate(reading.rate_out)),
            Text(", ".join(reading.topics)),
            Text(row.what),
        )
    console.print(table)
    for row in found.groups:
        if row.reading.why and row.reading.status not in (Status.IDLE, Status.UNKNOWN):
            console.print(Text(f"{row.name} is {row.reading.status.value}: {row.reading.why}"), soft_wrap=True)
    risky = [row for row in found.groups if row.risks]
    if risky:
        console.print()
        console.print(Text("what may go wrong", style="bold"))
    for row in risky:
        _print_risks(console, row, f"{row.name}: ")


def print_group(console: Console, found: GroupList) -> None:
    """One group in sections."""
    _print_seen(console, found)
    row = found.groups[0]
    console.print(Text(row.name, style="bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in _facts(row):
        if text:
            grid.add_row(Text(f"  {name}"), Text(text))
    console.print(grid)
    if row.risks:
        console.print()
        console.print(Text("what may go wrong", style="bold"))
        _print_risks(console, row, "")
    if row.reading.group.members:
        console.print()
        console.print(_members(row.reading))
    if row.reading.partitions:
        console.print()
        console.print(_partitions([(row, one) for one in row.reading.partitions], with_group=False))


def print_lag(
    console: Console, found: GroupList, partitions: Sequence[tuple[GroupRow, PartitionReading]], left_out: int
) -> None:
    """Partitions as they are given, one a line."""
    _print_seen(console, found)
    if not partitions:
        console.print(Text("no offset is committed"))
        return
    console.print(_partitions(partitions, with_group=True))
    if left_out:
        console.print(Text(f"{left_out:,} more: --limit"))


def behind(lag: TimeLag | None) -> str:
    """A time lag for people: always an estimate, but for none."""
    if lag is None:
        return "?"
    if not lag.behind and not lag.at_least:
        return "0"
    return f"{'>' if lag.at_least else '~'}{roughly(lag.behind)}"


def _print_seen(console: Console, found: GroupList) -> None:
    at = f"as of {roughly(found.age)} ago ({moment(found.snapshot.at)})"
    console.print(Text(f"cluster of {found.kafka} {at}"), soft_wrap=True)
    for fault in found.snapshot.faults[:_SHOWN_FAULTS]:
        console.print(Text(f"not known: {fault}"), soft_wrap=True)
    if (more := len(found.snapshot.faults) - _SHOWN_FAULTS) > 0:
        console.print(Text(f"not known: {more} more; --json has them all"))


def _print_risks(console: Console, row: GroupRow, before: str) -> None:
    for each in row.risks:
        console.print(Text(f"  {before}{each.risk.value}: {each.detail}"), soft_wrap=True)


def _facts(row: GroupRow) -> Iterable[tuple[str, str]]:
    reading, group = row.reading, row.reading.group
    yield "is", row.what
    yield "status", f"{reading.status.value}{': ' if reading.why else ''}{reading.why}"
    yield "type", " ".join(filter(None, (group.type.value, group.protocol)))
    yield "state", group.state
    yield "members", "not known" if group.members is None else str(len(group.members))
    yield "lag", f"{reading.lag:,} records" if reading.lag is not None else "not known"
    yield "behind", f"{behind(reading.time_lag)} (estimate)" if reading.time_lag else "not known"
    yield "in, out", f"{_rate(reading.rate_in)} and {_rate(reading.rate_out)} a second"
    yield "last change", moment(reading.changed_at) if reading.changed_at else "not in the snapshots that are kept"
    yield "commits every", f"{roughly(reading.interval)} while it has something to read" if reading.interval else ""
    yield "fault", group.fault


def _members(reading: GroupReading) -> Table:
    table = Table(title="members", title_justify="left")
    for heading in ("client id", "host", "static id", "member id", "has"):
        table.add_column(heading, overflow="fold")
    for member in reading.group.members or ():
        own = "?" if member.partitions is None else ", ".join(f"{t}/{n}" for t, n in member.partitions) or "nothing"
        cells = (member.client_id, member.host, member.instance or "", member.member_id, own)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _partitions(rows: Sequence[tuple[GroupRow, PartitionReading]], *, with_group: bool) -> Table:
    table = Table(title="offsets", title_justify="left")
    headings = ("partition", "committed", "log end", "lag", "behind", "status", "changed (UTC)", "read by", "why")
    for heading in ("group", *headings) if with_group else headings:
        right = heading in ("committed", "log end", "lag", "behind")
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for row, one in rows:
        changed = moment(one.changed_at).removesuffix(" UTC") if one.changed_at else ""
        member = f"{one.member.client_id} {one.member.host}" if one.member else ""
        cells = [
            Text(f"{one.partition[0]}/{one.partition[1]}"),
            Text(_number(one.committed)),
            Text(_number(one.end)),
            Text(_number(one.lag)),
            Text(behind(one.time_lag)),
            _status(one.status),
            Text(changed),
            Text(member),
            Text(one.why),
        ]
        table.add_row(*([Text(row.name), *cells] if with_group else cells))
    return table


def _status(status: Status) -> Text:
    return Text(status.value, style=_COLOURS.get(status, ""))


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:,.1f}"
