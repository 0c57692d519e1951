"""The rhythm of a reader: when it has something to read, when it commits, and how long it usually takes to.

All from what snapshots saw, so nothing is known more finely than they were taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

_OF_TEN = 9
_HOLE = 3  # times the usual distance of two snapshots


@dataclass(frozen=True, slots=True)
class Track:
    """One partition as its reader went along it; the sequences have an entry a snapshot.

    Attributes:
        commits: the committed offset; None where there was none, or nobody knew.
        ends: up to where a reader of committed data may read; None where nobody knew.
        unread: whether something was there to be read.
        changed: the last snapshot that saw another commit than the one before it; None: none did.
    """

    commits: Sequence[int | None]
    ends: Sequence[int | None]
    unread: Sequence[bool]
    changed: int | None

    @property
    def undecided(self) -> bool:
        """Whether something is left of which nobody can tell whether it is records."""
        commit, end = self.commits[-1], self.ends[-1]
        left = commit is not None and end is not None and end > commit
        return left and self.changed is None and not self.unread[-1]


def track(commits: Sequence[int | None], ends: Sequence[int | None], *, commits_markers: bool = False) -> Track:
    """What a reader left unread at each snapshot.

    Args:
        commits: what it had committed at each.
        ends: up to where it could have read.
        commits_markers: it commits up to the very end, as our own apps do: whatever is left is unread.

    Markers of transactions, and what compaction took, are offsets without a record. A reader that stands before them
    has read everything, and its commit may stay there. So what was left when it last committed counts for nothing once
    it stood longer than it ever took for a commit, if it is no more than that commit had moved by, until the log grows.

    Where neither log nor commit moved in all that is looked at, nobody can tell the two apart: nothing counts as unread
    then, and the track is undecided.
    """
    unread: list[bool] = []
    commit: int | None = None  # as last known
    changed: int | None = None
    grown: int | None = None  # the first snapshot since the change at which the log had grown
    base: int | None = None  # its end at the change, else the first that is known
    left = step = longest = 0  # at the change: offsets to the end, by how many the commit had moved; snapshots it took
    for index, (now, end) in enumerate(zip(commits, ends, strict=True)):
        base = end if base is None else base
        if grown is None and end is not None and base is not None and end > base:
            grown = index
        if now is not None and now != commit:
            if index:
                begun = changed if grown is None else grown
                longest = longest if begun is None else max(longest, index - begun)
                step = max(0, now - commit) if commit is not None else 0
                changed, grown, left, base = index, None, 0 if end is None else end - now, end
            commit = now
        behind = commit is not None and end is not None and end > commit
        stands = changed is not None and (left > step or index - changed <= longest)
        unread.append(behind and (commits_markers or grown is not None or stands))
    return Track(commits, ends, tuple(unread), changed)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How long a reader takes for a commit: `usual` is as long as nine of ten times were or longer, `longest` all."""

    usual: timedelta
    longest: timedelta


def spacing(times: Sequence[datetime]) -> timedelta:
    """The usual distance of two snapshots; zero where there is no second."""
    gaps = [(after - before).total_seconds() for before, after in pairwise(times)]
    return timedelta(seconds=median(gaps)) if gaps else timedelta(0)


def after_hole(times: Sequence[datetime], index: int, usual: timedelta) -> bool:
    """Whether snapshots are missing before one: nobody knows what happened meanwhile."""
    return index > 0 and times[index] - times[index - 1] > usual * _HOLE


def commit_rhythm(times: Sequence[datetime], tracks: Sequence[Track]) -> Rhythm | None:
    """How long a reader with something to read takes for a commit: since the last one, or since it came.

    Times in which there was nothing to read do not count, nor those in
    which snapshots are missing. Never less than the distance of two snapshots. None: it was never seen to commit.
    """
    usual = spacing(times)
    found: list[timedelta] = []
    since: int | None = None  # the snapshot since which it has had something to read without a commit
    for index in range(1, len(times)):
        if after_hole(times, index, usual):
            since = None
            continue
        busy = any(_busy(one, index) for one in tracks)
        if busy and since is None:
            since = index - 1
        if any(_moved(one.commits, index) for one in tracks):
            if since is not None:
                found.append(times[index] - times[since])
            since = index if any(one.unread[index] for one in tracks) else None
        elif not busy:
            since = None
    if not found:
        return None
    rank = -(-len(found) * _OF_TEN // 10)  # the nearest rank, from one
    return Rhythm(max(sorted(found)[rank - 1], usual), max(*found, usual))


def commits_of_nobody(times: Sequence[datetime], tracks: Sequence[Track], members: Sequence[int | None]) -> int:
    """Return how many snapshots saw commits move on while they and the ones before them saw no member.

    The last commit of a member that leaves is none of these, nor what happens while snapshots are missing.

    Args:
        times: of the snapshots.
        tracks: the partitions of one group.
        members: how many members the group had at each snapshot; None where nobody knows.
    """
    usual = spacing(times)
    return sum(
        list(members[index - 1 : index + 1]) == [0, 0]
        and not after_hole(times, index, usual)
        and any(_moved_on(one.commits, index) for one in tracks)
        for index in range(1, min(len(times), len(members)))
    )


def _busy(one: Track, index: int) -> bool:
    """Whether something was unread before a snapshot, or came since the one before it."""
    before, now = one.ends[index - 1], one.ends[index]
    return one.unread[index - 1] or (before is not None and now is not None and now > before)


def _moved(values: Sequence[int | None], index: int) -> bool:
    before, now = values[index - 1], values[index]
    return now is not None and before is not None and now != before


def _moved_on(values: Sequence[int | None], index: int) -> bool:
    before, now = values[index - 1], values[index]
    return now is not None and before is not None and now > before
