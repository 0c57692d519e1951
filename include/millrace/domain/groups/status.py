"""How the readers of a cluster are: one status a group, without a threshold that anybody would have to set.

Everything is measured against the group's own rhythm (`domain.groups.rhythm`) and the snapshots' own times. `judge`
looks at one group; what it says of a partition is why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from millrace.domain.formats.durations import roughly
from millrace.domain.groups import trend
from millrace.domain.groups.rhythm import Track, after_hole, commit_rhythm, commits_of_nobody, spacing, track
from millrace.domain.groups.snapshots import GroupSeen, GroupType, History, Member, Partition, Snapshot
from millrace.domain.groups.time_lag import NOTHING_UNREAD, TimeLag, furthest, time_lag

PATIENCE = timedelta(minutes=15)
"""How long a reader whose rhythm is not known may stand still: three times Kafka's default of `max.poll.interval.ms`,
after which a member that does not poll is put out of its group."""

_INTERVALS = 3
_COMMITS_OF_NOBODY = 2  # one may be a person's reset
_COMMITS_AFTER_MEMBERS = 5  # of a group that had members: a person may reset it more than once
_STABLE = "Stable"


class Status(StrEnum):
    """How a group is, the worst first."""

    STUCK = "stuck"  # it has members and something to read, and has not committed for three of its intervals
    SLOW = "slow"  # it reads, and falls behind
    REWOUND = "rewound"  # its offsets were moved back, and it is not where it was yet
    STOPPED = "stopped"  # something is unread, and nobody is in it or commits
    UNKNOWN = "unknown"  # what would tell is not known
    MANUAL = "manual"  # nobody is in it, and its commits move on: the reader assigns its partitions itself
    OK = "ok"
    IDLE = "idle"  # there was nothing to read


_ORDER = list(Status)


@dataclass(frozen=True, slots=True)
class PartitionReading:
    """How a group reads one partition.

    Attributes:
        partition: which.
        committed: its commit; None where there is none, or nobody knows.
        start, end: of the log; None where its leader did not answer or it is gone.
        lag: offsets from the commit to the end, as the stock tools count: below zero where the commit lies beyond it.
        time_lag: how long what is unread has been there.
        status: how it is by itself; never slow.
        why: what shows that.
        changed_at: when its commit was last seen to change; None: not in the history that was looked at.
        member: who has it now.
    """

    partition: Partition
    committed: int | None
    start: int | None
    end: int | None
    lag: int | None
    time_lag: TimeLag | None
    status: Status
    why: str = ""
    changed_at: datetime | None = None
    member: Member | None = None


@dataclass(frozen=True, slots=True)
class GroupReading:
    """How a group is.

    Attributes:
        group: as its coordinator described it.
        status: the worst of its partitions, or that it falls behind as a whole.
        why: one line for people.
        partitions: in order.
        lag: offsets behind on all partitions together; None where none is known.
        time_lag: the greatest of its partitions.
        rate_in: offsets a second that were appended to what it reads, over the last minutes; None: not known.
        rate_out: offsets a second that it committed.
        interval: how long it usually takes for a commit while it has something to read; None where that was not seen.
        allowed: how long it may stand still before it is called stuck.
        undecided: neither its commits nor the logs moved in the history looked at, though something is left: a longer
            history may tell whether it is markers.
    """

    group: GroupSeen
    status: Status
    why: str
    partitions: tuple[PartitionReading, ...] = ()
    lag: int | None = None
    time_lag: TimeLag | None = None
    rate_in: float | None = None
    rate_out: float | None = None
    interval: timedelta | None = None
    allowed: timedelta = PATIENCE
    undecided: bool = False

    @property
    def changed_at(self) -> datetime | None:
        """When any of its commits was last seen to change."""
        return max((one.changed_at for one in self.partitions if one.changed_at), default=None)

    @property
    def topics(self) -> tuple[str, ...]:
        """What it reads, or has committed."""
        return tuple(sorted({one.partition[0] for one in self.partitions}))


@dataclass(frozen=True, slots=True)
class _Group:
    """What judging its partitions needs of a group."""

    name: str
    seen: GroupSeen
    history: History
    snapshot: Snapshot
    owners: Mapping[Partition, Member]
    members_since: int | None  # the snapshot since which it has had members; None: it has none, or nobody knows
    tracks: Mapping[Partition, Track]
    left: frozenset[Partition]  # committed once, and none of its members has them now
    allowed: timedelta
    manual: bool  # its commits moved on while it had no members

    @property
    def now(self) -> datetime:
        return self.history.times[-1]

    @property
    def usual(self) -> timedelta:
        return spacing(self.history.times)


def judge(
    seen: GroupSeen,
    snapshot: Snapshot,
    history: History,
    *,
    at_least: timedelta = timedelta(0),
    commits_markers: bool = False,
    by_commits: bool = True,
) -> GroupReading:
    """How one group is.

    Args:
        seen: the group as the newest snapshot has it.
        snapshot: the newest snapshot.
        history: up to and with it.
        at_least: how long it may stand still whatever its rhythm, as one that waits for more before it commits.
        commits_markers: whether it commits up to the end of what it may read, markers of transactions included.
        by_commits: whether commits without a member show a reader that assigns its partitions itself. Commits of an app
            of ours from outside do not.
    """
    if seen.type in (GroupType.SHARE, GroupType.STREAMS):
        return GroupReading(
            seen, Status.UNKNOWN, f"the brokers report only type and state of a {seen.type.value} group"
        )
    if seen.commits is None:
        return GroupReading(seen, Status.UNKNOWN, seen.fault or "its commits are unknown")
    owners = {partition: member for member in seen.members or () for partition in member.partitions or ()}
    asked = sorted({*seen.commits, *owners})
    if not asked:
        if seen.members:
            return GroupReading(seen, Status.UNKNOWN, "it commits no offsets, so its lag is unknown")
        return GroupReading(seen, Status.IDLE, "it has neither members nor commits")
    tracks = {partition: _track(seen, history, partition, commits_markers) for partition in asked}
    left = _left_behind(seen, owners)
    read = [one for partition, one in tracks.items() if partition not in left]
    rhythm = commit_rhythm(history.times, read)
    allowed = max(at_least, PATIENCE if rhythm is None else max(rhythm.usual * _INTERVALS, rhythm.longest))
    manual = by_commits and _is_manual(seen, history, read)
    since = _members_since(seen, history)
    group = _Group(seen.name, seen, history, snapshot, owners, since, tracks, left, allowed, manual)
    partitions = tuple(_partition(group, partition) for partition in asked)
    counted = [one for one in partitions if one.partition not in left]
    usual = rhythm.usual if rhythm else None
    status, why = _with_trend(group, counted, read, usual)
    rates = trend.rates(history.times, read)
    lags = [max(0, one.lag) for one in counted if one.lag is not None]
    return GroupReading(
        group=seen,
        status=status,
        why=why,
        partitions=partitions,
        lag=sum(lags) if lags else None,
        time_lag=_furthest(counted),
        rate_in=rates[0],
        rate_out=rates[1],
        interval=usual,
        allowed=allowed,
        undecided=any(one.undecided for one in read),
    )


def _is_manual(seen: GroupSeen, history: History, read: Sequence[Track]) -> bool:
    members = history.members.get(seen.name, ())
    least = _COMMITS_AFTER_MEMBERS if any(members) else _COMMITS_OF_NOBODY
    return not seen.members and commits_of_nobody(history.times, read, members) >= least


def _with_trend(
    group: _Group,
    partitions: Sequence[PartitionReading],
    tracks: Sequence[Track],
    interval: timedelta | None,
) -> tuple[Status, str]:
    """The worst of its partitions, or that it falls behind."""
    status, why = _worst(partitions)
    calm = status in (Status.REWOUND, Status.OK, Status.IDLE, Status.MANUAL)
    if not calm or not (group.seen.members or group.manual):
        return status, why
    slope = trend.slope(group.history.times, tracks, interval)
    if slope is not None and slope > 0:
        return Status.SLOW, f"it falls behind by {slope:,.1f} records a second"
    if status in (Status.OK, Status.MANUAL) and slope is not None and slope < 0 and (unread := _unread(partitions)):
        return status, f"catching up by {-slope:,.1f} records a second, {unread:,} left"
    return status, why


def _left_behind(seen: GroupSeen, owners: Mapping[Partition, Member]) -> frozenset[Partition]:
    """What it has committed and reads no more: none of its members has it, all of whom tell, and nothing rebalances."""
    told = bool(owners) and all(member.partitions is not None for member in seen.members or ())
    if not told or seen.state != _STABLE:
        return frozenset()
    return frozenset(partition for partition in seen.commits or {} if partition not in owners)


def _track(seen: GroupSeen, history: History, partition: Partition, commits_markers: bool) -> Track:
    nothing = (None,) * len(history.times)
    logs = history.logs.get(partition)
    commits = history.commits.get(seen.name, {}).get(partition, nothing)
    return track(commits, logs.stables if logs else nothing, commits_markers=commits_markers)


def _members_since(seen: GroupSeen, history: History) -> int | None:
    """Since which snapshot it was seen to have members, without one in between that does not know."""
    if not seen.members:
        return None
    times, counts = history.times, history.members.get(seen.name, ())
    usual, since = spacing(times), len(times) - 1
    while 0 < since <= len(counts) and counts[since - 1] and not after_hole(times, since, usual):
        since -= 1
    return since


def _partition(group: _Group, partition: Partition) -> PartitionReading:
    one = group.tracks[partition]
    log = group.snapshot.log(partition)
    commits = group.seen.commits or {}
    commit = commits[partition].offset if partition in commits else None
    status, why = _of_partition(group, partition, commit)
    behind = None
    if commit is not None and log is not None:
        position = max(commit, log.start)
        behind = time_lag(group.history.times, one.ends, position) if one.unread[-1] else NOTHING_UNREAD
        behind = None if one.undecided else behind
    end = max(log.end, log.stable) if log else None  # two requests: records may come between them
    return PartitionReading(
        partition=partition,
        committed=commit,
        start=log.start if log else None,
        end=end,
        lag=end - commit if end is not None and commit is not None else None,
        time_lag=behind,
        status=status,
        why=why,
        changed_at=group.history.times[one.changed] if one.changed is not None else None,
        member=group.owners.get(partition),
    )


def _of_partition(group: _Group, partition: Partition, commit: int | None) -> tuple[Status, str]:
    one, log = group.tracks[partition], group.snapshot.log(partition)
    if log is None:
        there = partition[0] in group.snapshot.topics
        return Status.UNKNOWN, "its leader did not answer" if there else "the topic does not exist any more"
    if commit is None:
        return _uncommitted(group, partition)
    if group.seen.members is None:
        return Status.UNKNOWN, "its members are unknown"
    if group.manual:
        return _by_commits(group, one, log.stable - commit)
    if group.members_since is None:
        return _without_members(one)
    if partition in group.left:
        return Status.UNKNOWN, "assigned to no member now"
    if one.undecided:
        return _undecided(group, log.stable - commit)
    if not one.unread[-1]:
        if log.end > log.stable:
            return Status.OK, "read up to an open transaction"
        return (Status.OK if trend.grew(group.history.times, one) else Status.IDLE), ""
    return _reading_on(group, one, log.stable - commit)


def _without_members(one: Track) -> tuple[Status, str]:
    if back := _moved_back(one):
        return Status.REWOUND, f"moved back by {back:,} offsets; the group has no members"
    if one.unread[-1] or one.undecided:
        return Status.STOPPED, "the group has no members"
    return Status.IDLE, ""


def _by_commits(group: _Group, one: Track, left: int) -> tuple[Status, str]:
    """Judge a reader that is no member by its commits. A commit is due only while something is left to read."""
    if one.undecided:
        return _undecided(group, left)
    if one.unread[-1] and (waited := _overdue(group, one)):
        return Status.STOPPED, f"the group has no members, and no commit for {roughly(waited)}"
    if back := _moved_back(one):
        return Status.REWOUND, f"moved back, {back:,} offsets from where it was"
    return Status.MANUAL, "commits without a member"


def _overdue(group: _Group, one: Track) -> timedelta | None:
    """Return how long a commit has been due, where that is longer than the group ever may take; else None."""
    if not one.unread[-1]:
        return None
    waited = group.now - group.history.times[_waiting_since(group, one)]
    own = commit_rhythm(group.history.times, [one])  # a quiet partition may have a rhythm of its own
    return waited if waited >= max(group.allowed, own.usual * _INTERVALS if own else group.allowed) else None


def _reading_on(group: _Group, one: Track, left: int) -> tuple[Status, str]:
    if waited := _overdue(group, one):
        return Status.STUCK, f"no commit for {roughly(waited)}, with {left:,} unread offsets"
    if back := _moved_back(one):
        return Status.REWOUND, f"moved back, {back:,} offsets from where it was"
    return Status.OK, ""


def _undecided(group: _Group, left: int) -> tuple[Status, str]:
    looked = group.now - group.history.times[0]
    if looked < group.allowed:
        return Status.UNKNOWN, f"{left:,} offsets are left, and the history is too short"
    why = "transaction markers, or a reader that stands still"
    return Status.IDLE, f"{left:,} offsets are left, and nothing moved for {roughly(looked)}: {why}"


def _uncommitted(group: _Group, partition: Partition) -> tuple[Status, str]:
    """A partition that a member has and nobody has committed.

    A reader that begins at the end commits nothing before something comes. Where it has committed another partition of
    the topic and this one has grown since, it should have.
    """
    one = group.tracks[partition]
    if group.members_since is None or not any(topic == partition[0] for topic, _ in group.seen.commits or {}):
        return Status.UNKNOWN, "never committed"
    first = next((end for end in one.ends[group.members_since :] if end is not None), None)
    grown = next((i for i, end in enumerate(one.ends) if i >= group.members_since and _above(end, first)), None)
    if grown is not None and group.now - group.history.times[grown] >= group.allowed:
        waited = group.now - group.history.times[grown]
        return Status.STUCK, f"never committed, though records came {roughly(waited)} ago"
    return Status.UNKNOWN, "never committed"


def _above(end: int | None, first: int | None) -> bool:
    return end is not None and first is not None and end > first


def _waiting_since(group: _Group, one: Track) -> int:
    """The snapshot since which something was seen to be unread, a member there to read it, and no commit to come.

    Time in which nobody looked, or nobody could tell, is no evidence: the reader may have been away with the cluster.
    """
    times, usual, since = group.history.times, group.usual, len(one.unread) - 1
    least = max(one.changed or 0, group.members_since or 0)
    while since > least and one.unread[since - 1] and _knew(one, since - 1) and not after_hole(times, since, usual):
        since -= 1
    return since


def _knew(one: Track, index: int) -> bool:
    return one.commits[index] is not None and one.ends[index] is not None


def _moved_back(one: Track) -> int:
    """How far a commit is from the furthest it was before it was moved back; 0 where it was not, or has been since.

    One beyond the log's end is of another topic that had the name.
    """
    both = zip(one.commits, one.ends, strict=True)
    known = [commit for commit, end in both if commit is not None and end is not None and commit <= end]
    return max(known) - known[-1] if known else 0


def _worst(partitions: Sequence[PartitionReading]) -> tuple[Status, str]:
    status = min((one.status for one in partitions), key=_ORDER.index)
    if status is Status.UNKNOWN and any(one.status in (Status.OK, Status.IDLE) for one in partitions):
        known = [one.status for one in partitions if one.status is not Status.UNKNOWN and one.lag is not None]
        unasked = [one for one in partitions if one.status is Status.UNKNOWN and one.committed is not None]
        if known and not unasked:  # partitions that were never committed say nothing against the others
            status = min(known, key=_ORDER.index)
    alike = [one for one in partitions if one.status is status]
    where = f"{alike[0].partition[0]}/{alike[0].partition[1]}: " if alike and alike[0].why else ""
    more = f" (and {len(alike) - 1} more)" if where and len(alike) > 1 else ""
    return status, f"{where}{alike[0].why}{more}" if alike else ""


def _furthest(partitions: Sequence[PartitionReading]) -> TimeLag | None:
    """The greatest time lag; at least that where one with unread offsets cannot be told."""
    found = furthest([one.time_lag for one in partitions])
    untold = any(one.time_lag is None and one.lag is not None and one.lag > 0 for one in partitions)
    return replace(found, at_least=True) if found is not None and untold else found


def _unread(partitions: Sequence[PartitionReading]) -> int:
    return sum(max(0, one.lag) for one in partitions if one.lag is not None)
