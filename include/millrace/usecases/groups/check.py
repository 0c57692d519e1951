"""Whether the readers that declarations name get on. Everybody else's groups are information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.formats.durations import roughly
from millrace.domain.formats.printable import printable
from millrace.domain.groups.risks import Risk
from millrace.domain.groups.status import Status
from millrace.domain.streams.supervision import DesiredState
from millrace.usecases.declaration.lookup import declared_groups
from millrace.usecases.groups.listing import GroupList, GroupRow, clusters, list_groups

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

TOO_OLD = timedelta(minutes=10)
AHEAD = timedelta(minutes=1)  # of two machines' clocks
MOST_JUDGED = 1_000  # groups; where there are more, only those of declared apps
FAULTS = 3
# What a stopped stream shows as any reader would, and what loses nothing: where it goes on is on record in its sink.
_NOT_OURS = frozenset({Risk.STALE, Risk.READS_NOTHING})


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at the groups of all clusters found.

    Attributes:
        wrong: a line for each declared reader that is stuck and each new risk.
        unseen: a line for each cluster whose last snapshot is too old, and for each app that should run and shows in
            none, or of which nobody can tell: the next one may come in a moment.
        known: risks that were found before, and clusters of which there is no snapshot yet.
        told: a line a group, for the log.
    """

    wrong: Sequence[str] = ()
    unseen: Sequence[str] = ()
    known: Sequence[str] = ()
    told: Sequence[str] = ()


def check(platform: Platform, *, now: datetime | None = None) -> Checked:
    """Look at every group of every cluster; open an alarm for each breach of a declared one, and close those over.

    Raises:
        UnreachableError: the control database does not answer.
    """
    began = now or datetime.now(UTC)
    wrong: list[str] = []
    unseen: list[str] = []
    known: list[str] = []
    told: list[str] = []
    expected = _expected(platform, began)
    for kafka in clusters(platform.settings.root):
        apps = declared_groups(platform.settings.root, kafka)
        missed = sorted(group for group, app in apps.items() if app.qualified_name in expected)
        newest = platform.control.snapshots.newest(kafka)
        if newest is None:
            line = f"{kafka}: no snapshot yet; see DAG millrace.snapshots"
            (unseen if missed else known).append(line)
        elif not -AHEAD < began - newest.at < TOO_OLD:
            unseen.append(f"{kafka}: {_age(began - newest.at)}; see DAG millrace.snapshots")
        else:
            found = list_groups(platform, kafka, most=MOST_JUDGED, now=began)
            told += [_in_a_line(row) for row in found.groups]
            told += _left_out(found)
            unseen += _not_seen(found, missed)
            _hold_against(platform, found, began, wrong, known)
    return Checked(*([printable(line) for line in each] for each in (wrong, unseen, known, told)))


def _expected(platform: Platform, now: datetime) -> set[str]:
    """The apps that should be in their groups by now: wanted to run, and not only since a moment ago."""
    wanted = platform.control.streams.all_desired()
    return {one.stream for one in wanted if one.state is DesiredState.RUNNING and now - one.changed_at > TOO_OLD}


def _age(age: timedelta) -> str:
    if age < timedelta(0):
        return f"the newest snapshot is {roughly(-age)} ahead of this clock"
    return f"no snapshot for {roughly(age)}"


def _not_seen(found: GroupList, expected: Sequence[str]) -> list[str]:
    """What keeps anybody from judging an app that should run. It may be over in a moment."""
    rows = {row.name: row for row in found.groups}
    lines = []
    for group in expected:
        row = rows.get(group)
        if row is None:
            why = "; ".join(found.snapshot.faults[:FAULTS]) or "no broker lists it"
            lines.append(f"group {group} is not seen: {why}")
        elif row.reading.status is Status.UNKNOWN:
            lines.append(f"{row.what} cannot be judged: {row.reading.why}")
    return lines


def _left_out(found: GroupList) -> list[str]:
    more = len(found.snapshot.groups) - len(found.groups)
    return [f"{more:,} more groups; see `millrace groups list`"] if more else []


def _hold_against(platform: Platform, found: GroupList, began: datetime, wrong: list[str], known: list[str]) -> None:
    alarms = platform.control.alarms
    now_open = {
        (alarm.kind, alarm.subject)
        for alarm in alarms.list(limit=10_000)
        if alarm.kind in (AlarmKind.GROUP_STUCK, AlarmKind.GROUP_RISK)
    }
    still: set[tuple[str, str]] = set()
    for row in found.groups:
        if not row.declared:
            continue
        if row.reading.status is Status.STUCK:
            subject = _subject(found, row)
            still.add((AlarmKind.GROUP_STUCK, subject))
            alarms.open(AlarmKind.GROUP_STUCK, subject, row.reading.why, Extent(row.reading.lag))
            wrong.append(f"{row.what} is stuck: {row.reading.why}")
        for risk in row.risks:
            if risk.risk in _NOT_OURS:
                continue
            subject = f"{_subject(found, row)} {risk.risk.value}"
            still.add((AlarmKind.GROUP_RISK, subject))
            text = f"{row.what}: {risk.risk.value}: {risk.detail}"
            (wrong if alarms.open(AlarmKind.GROUP_RISK, subject, risk.detail, Extent(risk.measure)) else known).append(
                text
            )
    for kind, subject in now_open - still:
        if _is_over(found, kind, subject):
            alarms.close(kind, subject, opened_before=began)


def _is_over(found: GroupList, kind: str, subject: str) -> bool:
    """Whether a breach that does not show any more is over: not where what would show it is not known."""
    kafka, _, name = subject.partition("/")
    if kafka != found.kafka:
        return False
    group = name if kind == AlarmKind.GROUP_STUCK else name.rpartition(" ")[0]
    row = next((row for row in found.groups if row.name == group), None)
    if row is None:
        return not found.snapshot.faults
    known = row.reading.status is not Status.UNKNOWN and row.reading.group.members is not None
    return known and not row.reading.undecided


def _subject(found: GroupList, row: GroupRow) -> str:
    return f"{found.kafka}/{row.name}"


def _in_a_line(row: GroupRow) -> str:
    reading = row.reading
    lag = "lag not known" if reading.lag is None else f"lag {reading.lag:,}"
    what = f" ({row.what})" if row.what else ""
    return f"{row.name}{what}: {reading.status.value}, {lag}{'. ' if reading.why else ''}{reading.why}"
