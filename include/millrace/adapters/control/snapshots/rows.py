"""Snapshots as rows of the control database, and back. A row says how something was from its time on.

A topic or a group that is gone has a row that says so; commits that are gone have an empty one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from millrace.domain.groups.commits import Committed
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Partition, Snapshot, TopicSeen

Values = dict[str, Any]
_LOGS = ("starts", "ends", "stables", "first_ms", "sizes")
_KEYS = frozenset({"connection", "at", "topic", "group_id"})
_LONGEST_METADATA = 4_096  # what brokers take by default
_LONGEST_NAME_BYTES = 1_800  # an index takes 2,704 bytes an entry; brokers take group ids of 32,767

GONE_TOPIC: Values = {"topic_id": None, **{name: [] for name in _LOGS}}
GONE_GROUP: Values = {
    "state": None,
    "type": GroupType.UNKNOWN.value,
    "protocol": "",
    "members": None,
    "commits_known": True,
    "fault": "",
}
NO_COMMITS: Values = {"offsets": [], "metadata": {}}


@dataclass(frozen=True, slots=True)
class State:
    """What rows say of one moment: by topic, by group, and by group and topic."""

    topics: dict[str, Values] = field(default_factory=dict)
    groups: dict[str, Values] = field(default_factory=dict)
    commits: dict[tuple[str, str], Values] = field(default_factory=dict)

    def changes(self, before: State) -> State:
        """The rows that differ from those before, and one for each thing that is gone.

        Commits that nobody could ask for stay as they were: the group's row says that they are not known.
        """
        unknown = {name for name, row in self.groups.items() if not row["commits_known"]}
        gone = {key: NO_COMMITS for key, row in before.commits.items() if row["offsets"] and key[0] not in unknown}
        return State(
            _changed(self.topics, before.topics, dict.fromkeys(before.topics, GONE_TOPIC)),
            _changed(self.groups, before.groups, dict.fromkeys(before.groups, GONE_GROUP)),
            _changed(self.commits, before.commits, gone),
        )


def _changed(now: Mapping[Any, Values], before: Mapping[Any, Values], gone: Mapping[Any, Values]) -> dict[Any, Values]:
    return {key: row for key, row in {**gone, **now}.items() if before.get(key) != row}


def state_of(snapshot: Snapshot) -> State:
    """What a snapshot says, as rows. Texts that PostgreSQL does not take are made such that it does."""
    groups = {storable_name(name): group for name, group in snapshot.groups.items()}
    commits: dict[tuple[str, str], Values] = {}
    for name, group in groups.items():
        for topic, found in _by_topic(group.commits or {}).items():
            commits[name, storable(topic)] = _commit_values(found)
    return State(
        {storable(name): _topic_values(topic) for name, topic in snapshot.topics.items()},
        {name: _group_values(group) for name, group in groups.items()},
        commits,
    )


def values_of(row: Any) -> Values:
    """A stored row's values, without its key."""
    return {name: value for name, value in row._mapping.items() if name not in _KEYS}


def topics_of(rows: Mapping[str, Values]) -> dict[str, TopicSeen]:
    """The topics that are there."""
    return {name: _topic(row) for name, row in rows.items() if row["topic_id"] is not None}


def groups_of(state: State) -> dict[str, GroupSeen]:
    """The groups that are there, with their commits."""
    commits: dict[str, dict[Partition, Committed]] = defaultdict(dict)
    for (name, topic), row in state.commits.items():
        for number, offset in enumerate(row["offsets"]):
            if offset is not None:
                commits[name][topic, number] = Committed(offset, row["metadata"].get(str(number), ""))
    found = {}
    for name, row in state.groups.items():
        if row["state"] is None:
            continue
        known = commits.get(name, {}) if row["commits_known"] else None
        members = None if row["members"] is None else tuple(map(_member, row["members"]))
        kind = GroupType(row["type"])
        found[name] = GroupSeen(name, kind, row["state"], row["protocol"], members, known, row["fault"])
    return found


def storable(text: str) -> str:
    """A text that PostgreSQL takes: clients choose names and metadata, and may put anything there."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def storable_name(text: str) -> str:
    """The same for what is part of a key: one that is too long for an index is cut, and known by its digest."""
    name = storable(text)
    data = name.encode()
    if len(data) <= _LONGEST_NAME_BYTES:
        return name
    kept = data[: _LONGEST_NAME_BYTES - 20].decode("utf-8", "ignore")  # so that what was cut is not cut again
    return f"{kept}... {sha256(data).hexdigest()[:16]}"


def _topic_values(topic: TopicSeen) -> Values:
    logs = topic.logs
    return {
        "topic_id": topic.topic_id,
        "starts": [log.start if log else None for log in logs],
        "ends": [log.end if log else None for log in logs],
        "stables": [log.stable if log else None for log in logs],
        "first_ms": [log.first_ms if log else None for log in logs],
        "sizes": [log.size_bytes if log else None for log in logs],
    }


def _topic(row: Values) -> TopicSeen:
    return TopicSeen(row["topic_id"], tuple(map(_log, *(row[name] for name in _LOGS))))


def _log(start: int | None, end: int | None, stable: int | None, first: int | None, size: int | None) -> LogSeen | None:
    if start is None or end is None or stable is None:
        return None
    return LogSeen(start, end, stable, first, size)


def _group_values(group: GroupSeen) -> Values:
    return {
        "state": storable(group.state),
        "type": group.type.value,
        "protocol": storable(group.protocol),
        "members": None if group.members is None else [_member_values(member) for member in group.members],
        "commits_known": group.commits is not None,
        "fault": storable(group.fault),
    }


def _member_values(member: Member) -> Values:
    return {
        "member_id": storable(member.member_id),
        "client_id": storable(member.client_id),
        "host": storable(member.host),
        "instance": None if member.instance is None else storable(member.instance),
        "partitions": None if member.partitions is None else [[storable(t), n] for t, n in member.partitions],
    }


def _member(values: Values) -> Member:
    own = values["partitions"]
    partitions = None if own is None else tuple((topic, number) for topic, number in own)
    return Member(values["member_id"], values["client_id"], values["host"], values["instance"], partitions)


def _by_topic(commits: Mapping[Partition, Committed]) -> dict[str, dict[int, Committed]]:
    found: dict[str, dict[int, Committed]] = defaultdict(dict)
    for (topic, number), commit in commits.items():
        found[topic][number] = commit
    return found


def _commit_values(found: Mapping[int, Committed]) -> Values:
    offsets = [found[number].offset if number in found else None for number in range(max(found) + 1)]
    texts: Iterable[tuple[int, str]] = ((number, found[number].metadata) for number in sorted(found))
    metadata = {str(number): storable(text[:_LONGEST_METADATA]) for number, text in texts if text}
    return {"offsets": offsets, "metadata": metadata}
