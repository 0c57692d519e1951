"""Faults put into an archive by hand, and what a look at it then has to name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from millrace.adapters.chain.documents import encode, sha256_of
from support.archive.small_archive import OFFSETS, ROUNDS, Archive, records


@dataclass(frozen=True)
class Told:
    """What an inspection has to name: the key (or its end), and the offsets; by the deep one alone where bytes tell."""

    key: str
    about: str
    deep_only: bool = False
    stray: bool = False
    end: int = 0  # of the log, where a manifest speaks of more than was archived
    also: str = ""
    other: str = "\0"  # a second object that may be named


def dropped(archive: Archive) -> Told:
    left = [record for record in records(0, OFFSETS) if record.offset != 13]
    archive.overwrite(archive.key(1, 0), archive.written(left, 0, OFFSETS).data)
    return Told(archive.key(1, 0), "[13, 14) of partition 0", deep_only=True)


def doubled(archive: Archive) -> Told:
    """A record comes once more, in the place of the one after it."""
    twice = [replace(r, key=b"0/0") if r.offset == 13 else r for r in records(0, OFFSETS)]
    twice = [replace(twice[3], offset=r.offset) if r.offset == 14 else r for r in twice]
    archive.overwrite(archive.key(1, 0), archive.written(twice, 0, OFFSETS).data)
    return Told(archive.key(1, 0), "[10, 20) of partition 0", deep_only=True)


def swapped(archive: Archive) -> Told:
    """Two objects change places; that one says so of the other is enough."""
    one, other = archive.bytes_of(archive.key(0, 0)), archive.bytes_of(archive.key(2, 0))
    archive.overwrite(archive.key(0, 0), other)
    archive.overwrite(archive.key(2, 0), one)
    return Told(archive.key(2, 0), "[20, 30) of partition 0", deep_only=True, other=archive.key(0, 0))


def exchanged(archive: Archive) -> Told:
    """Two records of an object change places: the object is as large as before, and holds the same records."""
    given = records(1, 0)
    given[2], given[3] = replace(given[3], offset=2), replace(given[2], offset=3)
    archive.overwrite(archive.key(0, 1), archive.written(given, 1, 0).data)
    return Told(archive.key(0, 1), "[0, 10) of partition 1", deep_only=True)


def truncated(archive: Archive) -> Told:
    archive.overwrite(archive.key(1, 1), archive.bytes_of(archive.key(1, 1))[:-20])
    return Told(archive.key(1, 1), "[10, 20) of partition 1")


def flipped(archive: Archive) -> Told:
    data = bytearray(archive.bytes_of(archive.key(3, 1)))
    data[len(data) // 3] ^= 4
    archive.overwrite(archive.key(3, 1), bytes(data))
    return Told(archive.key(3, 1), "[30, 40) of partition 1", deep_only=True)


def overlapping(archive: Archive) -> Told:
    entry = archive.put(records(0, 25), 0, 25)
    sequence = archive.append(objects=(entry,))
    return Told(f"manifest {sequence}", "[25, 35) of partition 0")


def stale(archive: Archive) -> Told:
    """The chain's second half is of another history: a copy from before, with another object in it."""
    third = archive.manifests[2]
    other = archive.put(records(1, 2 * OFFSETS)[:-1], 1, 2 * OFFSETS, 3 * OFFSETS - 1)
    key = archive.incarnation.manifest_key(third.sequence)
    archive.overwrite(key, encode(replace(third, objects=(third.objects[0], other))))
    return Told(f"manifest {third.sequence + 1}", "", also="partition 1 [29, 30) is lost")


def missing_manifest(archive: Archive) -> Told:
    third = archive.manifests[2]
    archive.delete(archive.incarnation.manifest_key(third.sequence))
    return Told(f"manifest {third.sequence}: it is missing", "", also="partition 1 [20, 30) is lost")


def foreign(archive: Archive) -> Told:
    key = archive.key(1, 0).replace(archive.entry(1, 0).sha256, sha256_of(b"something else"))
    archive.overwrite(key, b"something else")
    return Told(key, "[10, 20) of partition 0", stray=True)


def of_another_topic(archive: Archive) -> Told:
    """A manifest that follows, and is of the topic as it was before it was made again."""
    sequence = archive.append(topic_id="A" * 22)
    return Told(f"manifest {sequence}", f"it belongs to {archive.incarnation.topic} ({'A' * 22})")


def shifted(archive: Archive) -> Told:
    """A manifest that says of an object what it holds, an offset too far: nothing but the object can tell."""
    written = archive.written(records(0, ROUNDS * OFFSETS + 1), 0, ROUNDS * OFFSETS + 1)
    first = ROUNDS * OFFSETS
    holes = tuple((begin - 1, end - 1) for begin, end in written.entry.holes)
    entry = replace(written.entry, first=first, next=first + OFFSETS, holes=holes)
    archive.overwrite(archive.incarnation.object_key(entry.name), written.data)
    seen = tuple(replace(look, end=first + OFFSETS + 1) for look in archive.manifests[-1].seen)
    archive.append(objects=(entry,), seen=seen)
    about = "[40, 41) of partition 0"
    return Told(archive.incarnation.object_key(entry.name), about, deep_only=True, end=first + OFFSETS + 1)


def deleted(archive: Archive) -> Told:
    key = archive.key(2, 1)
    archive.delete(key)
    return Told(key, "[20, 30) of partition 1")


FAULTS = [
    dropped,
    doubled,
    swapped,
    exchanged,
    truncated,
    flipped,
    overlapping,
    stale,
    missing_manifest,
    foreign,
    of_another_topic,
    shifted,
    deleted,
]
