"""What objects, manifests and their entries may be called and say; what cannot be is refused before it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry, PartitionSpan, Seen
from millrace.domain.archive.names import Incarnation, ObjectName
from millrace.domain.archive.records import (
    ArchivedRecord,
    Digest,
    Digester,
    Headers,
    TimestampType,
    content_hash,
    digest_of,
    is_sha256,
)

TOPIC = Incarnation("orders", "J8-Zq_x1T0a5mB2nC3dE4f")
SHA256 = "0123456789abcdef" * 4
KEY = f"archive/orders/J8-Zq_x1T0a5mB2nC3dE4f/7/{10:020d}-{30:020d}-{SHA256}.parquet"


def test_an_objects_key_names_partition_offsets_and_bytes() -> None:
    name = ObjectName(7, 10, 30, SHA256)
    assert TOPIC.object_key(name) == KEY
    assert TOPIC.object_name(KEY) == name
    assert KEY.startswith(TOPIC.partition(7))


@given(
    partition=st.integers(0, 2**31 - 1), first=st.integers(0, 2**63 - 2), length=st.integers(1, 2**63), number=st.data()
)
def test_names_come_back_from_their_keys(partition: int, first: int, length: int, number: st.DataObject) -> None:
    name = ObjectName(partition, first, first + length, f"{number.draw(st.integers(0, 2**256 - 1)):064x}")
    assert TOPIC.object_name(TOPIC.object_key(name)) == name
    assert TOPIC.sequence_of(TOPIC.object_key(name)) is None
    for key in (TOPIC.manifest_key(first), TOPIC.summary_key(first)):
        assert TOPIC.sequence_of(key) == first
        assert TOPIC.object_name(key) is None


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(1, 2**63)), min_size=2, max_size=5))
def test_keys_are_listed_in_the_order_of_their_numbers(spans: list[tuple[int, int]]) -> None:
    names = [ObjectName(7, first, first + length, SHA256) for first, length in spans]
    assert sorted(names) == sorted(names, key=TOPIC.object_key)
    numbers = [first for first, _ in spans]
    assert sorted(numbers) == sorted(numbers, key=TOPIC.manifest_key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "archive/",
        TOPIC.prefix,
        TOPIC.partition(7),
        KEY + " ",
        KEY + "\n",
        " " + KEY,
        "/" + KEY,
        KEY.removeprefix("archive/"),
        KEY.removesuffix(".parquet"),
        KEY.replace("/7/", "/07/"),
        KEY.replace("/7/", "/-7/"),
        KEY.replace("/7/", "/+7/"),
        KEY.replace("/7/", "/7x/"),
        KEY.replace("/7/", "//"),
        KEY.replace("/7/", "/7/7/"),
        KEY.replace("/7/", "/\u0667/"),  # a digit, but not ours
        KEY.replace("/7/", "/\u00b2/"),
        KEY.replace("/7/", "/manifest/"),
        KEY.replace(f"{10:020d}", "10"),
        KEY.replace(f"{10:020d}", f"{10:021d}"),
        KEY.replace(f"{10:020d}", f"{10:019d}\u0660"),
        KEY.replace(f"{10:020d}", f"{30:020d}"),  # no offsets
        KEY.replace(f"{10:020d}", f"{31:020d}"),
        KEY.replace(SHA256, SHA256.upper()),
        KEY.replace(SHA256, SHA256[1:]),
        KEY.replace(SHA256, SHA256 + "0"),
        KEY.replace(SHA256, "g" + SHA256[1:]),
        KEY.replace("orders", "payments"),
        KEY.replace("orders", "orders2"),
        KEY.replace("J8-", "K8-"),
        TOPIC.prefix + KEY,
    ],
)
def test_what_is_no_objects_key_of_this_topic_names_none(key: str) -> None:
    assert TOPIC.object_name(key) is None
    assert TOPIC.sequence_of(key) is None


@pytest.mark.parametrize(
    "key",
    [
        TOPIC.manifests,
        f"{TOPIC.manifests}12.json",
        f"{TOPIC.manifests}{12:021d}.json",
        f"{TOPIC.manifests}{12:020d}.json.tmp",
        f"{TOPIC.manifests}{12:020d}json",
        f"{TOPIC.manifests}{12:020d}.json\n",
        f"{TOPIC.manifests}{12:019d}\u0662.json",
        f"{TOPIC.manifests}-{12:019d}.json",
        f"{TOPIC.manifests}x/{12:020d}.json",
        f"{TOPIC.prefix}{12:020d}.json",
        f"{TOPIC.prefix}manifests/{12:020d}.json",
        Incarnation("orders2", TOPIC.topic_id).manifest_key(12),
        Incarnation("orders", "0" * 22).manifest_key(12),
    ],
)
def test_what_is_no_manifests_key_of_this_topic_has_no_sequence(key: str) -> None:
    assert TOPIC.sequence_of(key) is None


@given(st.text(max_size=30), st.integers(0, len(KEY)), st.integers(0, 5))
def test_a_key_is_read_only_as_it_is_written(piece: str, at: int, length: int) -> None:
    key = KEY[:at] + piece + KEY[at + length :]
    name = TOPIC.object_name(key)
    assert name is None or TOPIC.object_key(name) == key


@pytest.mark.parametrize(
    ("topic", "topic_id"),
    [
        ("", TOPIC.topic_id),
        (".", TOPIC.topic_id),
        ("..", TOPIC.topic_id),
        ("a/b", TOPIC.topic_id),
        ("größe", TOPIC.topic_id),
        ("a\n", TOPIC.topic_id),
        ("a" * 250, TOPIC.topic_id),
        ("orders", ""),
        ("orders", TOPIC.topic_id[1:]),
        ("orders", TOPIC.topic_id + "="),
        ("orders", TOPIC.topic_id[1:] + "/"),
        ("orders", TOPIC.topic_id + "\n"),
    ],
)
def test_a_topic_that_no_cluster_has_is_refused(topic: str, topic_id: str) -> None:
    with pytest.raises(ValueError, match="not a topic and its id"):
        Incarnation(topic, topic_id)


@pytest.mark.parametrize("topic", ["a", "...", "..a", "A.b_c-9", "a" * 249])
def test_every_topic_that_kafka_takes_has_an_archive(topic: str) -> None:
    incarnation = Incarnation(topic, TOPIC.topic_id)
    assert incarnation.object_name(incarnation.object_key(ObjectName(0, 0, 1, SHA256))) == ObjectName(0, 0, 1, SHA256)
    assert str(incarnation) == f"{topic} (J8-Zq_x1T0a5mB2nC3dE4f)"


CONTENTS = st.none() | st.binary(max_size=6)
ROWS = st.lists(
    st.builds(
        ArchivedRecord,
        offset=st.integers(0, 50),
        timestamp_ms=st.integers(-1, 5),
        timestamp_type=st.sampled_from(TimestampType),
        key=CONTENTS,
        value=CONTENTS,
        headers=st.lists(st.tuples(st.text("ab", max_size=2), CONTENTS), max_size=2).map(tuple),
    ),
    max_size=8,
)


@given(ROWS, st.integers(0, 8), st.randoms())
def test_a_digest_is_the_same_in_any_order_and_in_any_parts(rows: list[ArchivedRecord], cut: int, chance: Any) -> None:
    whole = digest_of(rows)
    assert digest_of(rows[:cut]) + digest_of(rows[cut:]) == whole
    chance.shuffle(rows)
    assert digest_of(rows) == whole
    assert whole + Digest() == whole


def test_a_sum_beyond_its_digits_begins_again() -> None:
    most = Digest("f" * 64, "f" * 64)
    assert most + Digest("0" * 63 + "2", "0" * 63 + "1") == Digest("0" * 63 + "1", "0" * 64)


@given(ROWS)
def test_content_is_the_same_at_other_offsets_and_position_is_not(rows: list[ArchivedRecord]) -> None:
    one, other = digest_of(rows), digest_of(replace(row, offset=row.offset + 1) for row in rows)
    assert one.content == other.content
    assert (one.position == other.position) == (not rows)


def test_null_empty_and_what_stands_beside_it_are_told_apart() -> None:
    parts = (None, b"", b"a", b"\xff\xff\xff\xff", b"\0\0\0\0")
    headers: list[Headers] = [(), (("", None),), (("", b""),), (("a", b""),), (("", b"a"),), (("a", None), ("b", None))]
    headers += [(("b", None), ("a", None)), (("a", None), ("a", None)), (("ab", None),)]
    headers += [(("", b"\0\0\0\0"),), (("\0\0\0\4", b""),)]  # the same bytes, but for the lengths
    hashes = {
        content_hash(at, key, value, held) for at in (-1, 0) for key in parts for value in parts for held in headers
    }
    assert len(hashes) == 2 * 5 * 5 * len(headers)


def test_a_digester_counts_what_digest_of_counts() -> None:
    digester = Digester()
    assert digester.digest() == Digest() == digest_of([])
    row = ArchivedRecord(5, -1, TimestampType.NONE, None, b"", (("a", None),))
    digester.add(5, -1, None, b"", (("a", None),))
    assert digester.digest() == digest_of([row]) != Digest()
    assert digest_of([replace(row, timestamp_type=TimestampType.LOG_APPEND_TIME)]) == digest_of([row])


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "0" * 63 + "\n", "\u0660" * 64])
def test_what_is_no_sha256_is_none(text: str) -> None:
    assert not is_sha256(text)
    assert is_sha256(SHA256)
    for content, position in ((text, SHA256), (SHA256, text)):
        with pytest.raises(ValueError, match="64 hexadecimal digits"):
            Digest(content, position)


ENTRY = ObjectEntry(
    partition=1,
    first=10,
    next=20,
    count=7,
    holes=((10, 11), (13, 15)),
    min_timestamp_ms=-1,
    max_timestamp_ms=5,
    size_bytes=100,
    sha256=SHA256,
    digest=Digest(),
)


def test_an_entry_names_its_object() -> None:
    assert ENTRY.name == ObjectName(1, 10, 20, SHA256)
    assert str(ENTRY) == "partition 1 [10, 20)"
    none = {"count": 0, "holes": ((10, 20),), "min_timestamp_ms": None, "max_timestamp_ms": None}
    assert replace(ENTRY, **none).count == 0


@pytest.mark.parametrize(
    "change",
    [
        {"partition": -1},
        {"first": -1},
        {"first": 20},
        {"next": 10},
        {"next": 21},  # an offset that is neither record nor hole
        {"count": 6},
        {"count": 8},
        {"count": -3, "holes": ((10, 23),)},
        {"holes": ((13, 15), (10, 11))},
        {"holes": ((10, 11), (11, 13))},  # not merged
        {"holes": ((10, 12), (11, 12))},
        {"holes": ((9, 10), (13, 15))},
        {"holes": ((10, 11), (19, 21))},
        {"holes": ((10, 11), (13, 13)), "count": 9},
        {"holes": ((10, 11), (15, 13)), "count": 11},
        {"min_timestamp_ms": None},
        {"max_timestamp_ms": None},
        {"min_timestamp_ms": None, "max_timestamp_ms": None},
        {"count": 0, "holes": ((10, 20),)},
        {"size_bytes": 0},
        {"sha256": SHA256[1:]},
        {"sha256": SHA256.upper()},
    ],
)
def test_an_entry_that_does_not_add_up_is_refused(change: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"partition 1 |of a partition"):
        replace(ENTRY, **change)


AT = datetime(2026, 1, 31, 10, tzinfo=UTC)
FIRST = Manifest(
    sequence=0,
    previous="",
    epoch=1,
    instance="of one process",
    kind=Kind.DATA,
    topic=TOPIC.topic,
    topic_id=TOPIC.topic_id,
    at=AT,
    partitions=3,
    seen=(Seen(0, 5, 5), Seen(1, 0, 30)),
    objects=(ENTRY,),
)
LATER = replace(FIRST, sequence=5, previous=SHA256, delete_retention_ms=0)
TAKEOVER = replace(LATER, kind=Kind.TAKEOVER, objects=(), seen=())
KNOWN = replace(TAKEOVER, kind=Kind.ACKNOWLEDGEMENT, acknowledged=(PartitionSpan(0, 3, 4),), by="ann", reason="disk")
LOOK = replace(TAKEOVER, kind=Kind.LOOK)
EXPIRY = replace(LATER, kind=Kind.EXPIRY, by="keep", seen=())


def moved(first: int, next_: int, partition: int = 1) -> ObjectEntry:
    return replace(ENTRY, partition=partition, first=first, next=next_, count=next_ - first, holes=())


def test_each_kind_of_manifest_can_be_said() -> None:
    assert [each.kind for each in (FIRST, TAKEOVER, KNOWN, LOOK, EXPIRY)] == list(Kind)
    assert LATER.incarnation == TOPIC
    assert replace(FIRST, objects=(moved(5, 7, 0), moved(10, 20), moved(20, 21), moved(30, 31))).version == 1
    assert replace(FIRST, at=AT.astimezone(timezone(timedelta(0)))).at == AT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: replace(FIRST, version=2), "a manifest of version 2"),
        (lambda: replace(FIRST, version=0), "a manifest of version 0"),
        (lambda: replace(LATER, sequence=-1), "manifest -1"),
        (lambda: replace(LATER, epoch=0), "of epoch 0"),
        (lambda: replace(LATER, instance=""), "manifest 5 of epoch 1"),
        (lambda: replace(LATER, partitions=0), "0 partitions"),
        (lambda: replace(LATER, at=AT.replace(tzinfo=None)), "not a moment in UTC"),
        (lambda: replace(LATER, at=AT.astimezone(timezone(timedelta(hours=1)))), "not a moment in UTC"),
        (lambda: replace(LATER, previous=""), "manifest 5 cannot follow ''"),
        (lambda: replace(LATER, previous=SHA256[1:]), "manifest 5 cannot follow"),
        (lambda: replace(FIRST, previous=SHA256), "manifest 0 cannot follow"),
        (lambda: replace(LATER, objects=()), "0 objects in a manifest of kind data"),
        (lambda: replace(EXPIRY, objects=()), "0 objects in a manifest of kind expiry"),
        (lambda: replace(TAKEOVER, objects=(ENTRY,)), "1 objects in a manifest of kind takeover"),
        (lambda: replace(KNOWN, objects=(ENTRY,)), "1 objects in a manifest of kind acknowledgement"),
        (lambda: replace(KNOWN, acknowledged=()), "0 acknowledged ranges"),
        (lambda: replace(LATER, acknowledged=KNOWN.acknowledged), "1 acknowledged ranges in a manifest of kind data"),
        (lambda: replace(LATER, by="ann"), "kind data by 'ann'"),
        (lambda: replace(KNOWN, by=""), "kind acknowledgement by ''"),
        (lambda: replace(EXPIRY, by=""), "kind expiry by ''"),
        (lambda: replace(LATER, seen=(Seen(0, 5, 5),)), "whose log was not looked at"),
        (lambda: replace(LATER, seen=(Seen(1, 0, 30), Seen(0, 5, 5))), "seen: not in the order"),
        (lambda: replace(LATER, seen=(Seen(1, 0, 30), Seen(1, 0, 30))), "seen: not in the order"),
        (lambda: replace(LATER, seen=(Seen(1, 0, 30), Seen(3, 0, 30))), "of one that the topic has not"),
        (lambda: replace(LATER, objects=(moved(20, 21), moved(10, 20))), r"objects: \[10, 20\) of partition 1"),
        (lambda: replace(LATER, objects=(moved(10, 20), moved(19, 25))), r"objects: \[19, 25\) of partition 1"),
        (lambda: replace(LATER, objects=(ENTRY, ENTRY)), r"objects: \[10, 20\) of partition 1"),
        (lambda: replace(LATER, objects=(ENTRY, moved(0, 1, 0))), r"objects: \[0, 1\) of partition 0"),
        (lambda: replace(EXPIRY, objects=(moved(0, 1, 3),)), r"objects: \[0, 1\) of partition 3"),
        (lambda: replace(KNOWN, acknowledged=(PartitionSpan(0, 3, 5), PartitionSpan(0, 4, 6))), r"acknowledged: \[4,"),
        (lambda: replace(KNOWN, acknowledged=(PartitionSpan(3, 3, 5),)), "of partition 3"),
        (lambda: Seen(-1, 0, 0), "not the bounds"),
        (lambda: Seen(0, -1, 0), "not the bounds"),
        (lambda: Seen(0, 2, 1), "not the bounds"),
        (lambda: PartitionSpan(-1, 0, 1), "not a range"),
        (lambda: PartitionSpan(0, -1, 1), "not a range"),
        (lambda: PartitionSpan(0, 1, 1), "not a range"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(change: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        change()
