"""Judges the labels of an archive, offset by offset, by what was ever written to the topic and what lies in the store.

It reads manifests and objects as JSON, without the code that it judges, and knows labels as words only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from support.archive.model import Life, World
from support.archive.parts import Fate

Place = tuple[int, int]


@dataclass
class Stored:
    """What the store holds of one incarnation."""

    copies: dict[Place, list[str]] = field(default_factory=dict)  # in objects that are named and kept
    expired: set[Place] = field(default_factory=set)
    began: dict[int, int] = field(default_factory=dict)
    said_end: dict[int, int] = field(default_factory=dict)
    ranges: dict[int, int] = field(default_factory=dict)  # how far objects go
    absent: dict[Place, str] = field(default_factory=dict)  # read and not there: hole or lost, by the log starts seen
    cut_off: set[Place] = field(default_factory=set)  # archived, and the chain has seen the log end below
    cut_unread: set[Place] = field(default_factory=set)  # seen, and the log then ended below; nobody has said they know
    log_start: dict[int, int] = field(default_factory=dict)
    known: set[Place] = field(default_factory=set)  # what somebody acknowledged, and was not read after that
    first_count: int = 0  # how many partitions there were when the chain began
    wrong: list[str] = field(default_factory=list)


def read_store(world: World, life: Life) -> Stored:
    """Go through all manifests and all objects that they name."""
    found = Stored()
    prefix = life.incarnation.prefix
    objects = world.store.objects
    named: dict[str, Any] = {}
    for key in sorted(key for key in objects if key.startswith(prefix + "manifest/")):
        manifest = json.loads(objects[key])
        found.first_count = found.first_count or manifest["partitions"]
        for entry in manifest["objects"]:
            range_ = f"{entry['first']:020d}-{entry['next']:020d}"
            name = f"{prefix}{entry['partition']}/{range_}-{entry['sha256']}.parquet"
            if manifest["kind"] == "expiry":
                found.expired |= {(entry["partition"], at) for at in range(entry["first"], entry["next"])}
                named.pop(name)
                continue
            if name in named:
                found.wrong.append(f"{name} is named twice")
            named[name] = entry
            _read_entry(found, entry, manifest["seen"])
        _read_looks(found, manifest)
        found.known |= life.told.get(manifest["reason"], set())
    for name, entry in named.items():
        for at, text in json.loads(objects[name])["records"].items():
            found.copies.setdefault((entry["partition"], int(at)), []).append(text)
    return found


def _read_entry(found: Stored, entry: dict[str, Any], seen: list[dict[str, int]]) -> None:
    number = entry["partition"]
    found.ranges[number] = entry["next"]
    found.known -= {(number, at) for at in range(entry["first"], entry["next"])}
    after = next(look["start"] for look in seen if look["partition"] == number)
    found.began.setdefault(number, min(entry["first"], after) if number < found.first_count else 0)
    start = max(found.log_start.get(number, 0), after)
    for first, next_ in entry["holes"]:
        found.absent |= {(number, at): "lost" if at < start else "hole" for at in range(first, next_)}


def _read_looks(found: Stored, manifest: dict[str, Any]) -> None:
    for seen in manifest["seen"]:
        number, end = seen["partition"], seen["end"]
        found.began.setdefault(number, seen["start"] if number < found.first_count else 0)
        archived, former = found.ranges.get(number, found.began[number]), found.said_end.get(number, 0)
        found.cut_off |= {(number, at) for at in range(max(end, found.began[number]), archived)}
        found.cut_unread |= {(number, at) for at in range(max(end, archived), former)}
        found.said_end[number] = end
        found.log_start[number] = max(found.log_start.get(number, 0), seen["start"])
    for span in manifest["acknowledged"]:
        found.cut_unread -= {(span["partition"], at) for at in range(span["first"], min(span["next"], 10_000))}


def judge(
    world: World,
    life: Life,
    labels: dict[Place, str],
    late: set[Place],
    broken: bool,
    pending: bool,
    counts: Counter[str],
) -> list[str]:
    """What is wrong with the labels; nothing, where the proof is one.

    Args:
        world: as it is now.
        life: the incarnation that was audited.
        labels: the word for each offset.
        late: the holes of which it is said that they may hide a tombstone.
        broken: whether the verdict is that.
        pending: the same.
        counts: how often each label was right, added to.
    """
    stored = read_store(world, life)
    wrong = list(stored.wrong)
    expected: set[Place] = set()
    for number, log in enumerate(life.partitions):
        if life.gone and number not in stored.began:
            continue
        came_later = stored.first_count and number >= stored.first_count
        begin = stored.began.get(number, 0 if came_later else log.start)
        reached = max(stored.ranges.get(number, 0), stored.said_end.get(number, 0))
        end = reached if life.gone else max(log.stable(), log.start, reached)
        expected |= {(number, at) for at in range(begin, end)}
    wrong += [f"{place} has a label, and should have none" for place in labels.keys() - expected]
    wrong += [f"{place} has no label" for place in expected - labels.keys()]
    for place in sorted(expected & labels.keys()):
        right = _RIGHT[labels[place]](life, stored, place, place in late)
        counts[labels[place] + (" (late)" if place in late else "")] += 1
        if not right:
            wrong.append(f"{place} is called {labels[place]}: {_told(life, stored, place)}")
    for place, label in labels.items():
        log = life.partitions[place[0]]
        ends_below = not life.gone and log.stable() <= place[1] < stored.ranges.get(place[0], 0)
        if (ends_below or place in stored.cut_off) and label not in ("diverged", "lost"):
            wrong.append(f"{place} is called {label}, and the log has ended below it")
        if stored.absent.get(place) not in (None, label) and label not in ("diverged", "expired"):
            wrong.append(f"{place} is called {label}, and was absent as {stored.absent[place]}")
    unknown = {place for place, label in labels.items() if label in ("lost", "diverged")} - stored.known
    unknown |= stored.cut_unread
    if broken != bool(unknown):
        wrong.append(f"broken is {broken}, and nobody knows of {sorted(unknown)}")
    if not broken and pending != ("pending" in labels.values()):
        wrong.append(f"pending is {pending}")
    return wrong


def _data(life: Life, stored: Stored, place: Place, late: bool) -> bool:
    copies = stored.copies.get(place, [])
    return len(copies) == 1 and copies[0] in life.partitions[place[0]].once.get(place[1], ())


def _hole(life: Life, stored: Stored, place: Place, late: bool) -> bool:
    log = life.partitions[place[0]]
    if place in stored.copies or stored.absent.get(place) != "hole":
        return False
    if place[1] in log.cut:
        return True  # what was there when it was read, nobody knows any more
    fate = log.slots[place[1]].fate
    return fate in (Fate.MARKER, Fate.ABORTED, Fate.REPLACED) or (fate is Fate.BURIED and late)


def _lost(life: Life, stored: Stored, place: Place, late: bool) -> bool:
    log = life.partitions[place[0]]
    return place not in stored.copies and (life.gone or place[1] < log.most_start)


def _expired(life: Life, stored: Stored, place: Place, late: bool) -> bool:
    return place in stored.expired and place not in stored.copies


def _pending(life: Life, stored: Stored, place: Place, late: bool) -> bool:
    log = life.partitions[place[0]]
    return not life.gone and place not in stored.copies and log.start <= place[1] < log.stable()


def _diverged(life: Life, stored: Stored, place: Place, late: bool) -> bool:
    return place[1] in life.partitions[place[0]].cut


_RIGHT = {
    "data": _data,
    "hole": _hole,
    "lost": _lost,
    "expired": _expired,
    "pending": _pending,
    "diverged": _diverged,
}


def _told(life: Life, stored: Stored, place: Place) -> str:
    log = life.partitions[place[0]]
    fate = log.slots[place[1]].fate.value if place[1] < len(log.slots) else "beyond the log"
    copies = stored.copies.get(place, [])
    said = f"{fate}, log {log.start} to {log.stable()}, copies {copies}, once {log.once.get(place[1])}"
    return said + (", cut off once" if place[1] in log.cut else "") + (", topic gone" if life.gone else "")


def flatten(pieces: Iterable[tuple[int, int, int, str]]) -> dict[Place, str]:
    """One label an offset, from ranges of which a later one replaces an earlier one."""
    labels: dict[Place, str] = {}
    for partition, first, next_, label in pieces:
        labels |= {(partition, at): label for at in range(first, next_)}
    return labels
