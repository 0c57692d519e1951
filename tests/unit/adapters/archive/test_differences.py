"""What is wrong with an object is found and its offsets are named, whatever the bytes are; of a whole one nothing."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.archive.objects import differences, read_object, to_batch, write_object
from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import ArchivedRecord, TimestampType, digest_of
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import CorruptArchiveError
from support.checks.tiers import examples

TOPIC = Incarnation("orders", "J8-Zq_x1T0a5mB2nC3dE4f")
OTHER_ID = "0000000000000000000000"
FIRST, NEXT = 10, 30
HOLES = {13, 14, 20}


def record(offset: int, value: bytes | None = None) -> ArchivedRecord:
    body = b"value of %d" % offset if value is None else value
    headers = (("trace", b"%d" % offset), ("trace", None))[: offset % 3]
    return ArchivedRecord(offset, 10**12 + offset, TimestampType.CREATE_TIME, b"k%d" % offset, body, headers)


RECORDS = [record(offset) for offset in range(FIRST, NEXT) if offset not in HOLES]
MADE = write_object(OffsetRange(TopicPartition(TOPIC.topic, TOPIC.topic_id, 7), FIRST, NEXT), [to_batch(RECORDS)])


def forged(records: Iterable[ArchivedRecord], table: pa.Table | None = None, **said: str | None) -> bytes:
    """A well-made Parquet file that `write_object` would not have written."""
    names = {"format": "1", "topic": TOPIC.topic, "topic_id": TOPIC.topic_id, "partition": "7"}
    names |= {"first": str(FIRST), "next": str(NEXT)} | said
    held = pa.Table.from_batches([to_batch(records)]) if table is None else table
    sink = io.BytesIO()
    metadata = {f"millrace.{name}": value for name, value in names.items() if value is not None}
    pq.write_table(held.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    return sink.getvalue()


def vouched(data: bytes) -> ObjectEntry:
    """The entry, with the SHA-256 of other bytes: of a writer that was wrong."""
    return replace(MADE.entry, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def found(data: bytes, entry: ObjectEntry | None = None) -> list[tuple[int, int, str]]:
    """What differs from an entry that has these bytes' own SHA-256, each by its first word or two."""
    entry = entry or vouched(data)
    return [(each.first, each.next, each.what.split(":")[0]) for each in differences(entry, TOPIC, data)]


def test_a_whole_object_differs_in_nothing() -> None:
    assert differences(MADE.entry, TOPIC, MADE.data) == []
    assert found(forged(RECORDS)) == []  # so that what the others find is what was forged


def test_other_bytes_with_the_same_records_are_a_difference() -> None:
    [difference] = differences(MADE.entry, TOPIC, forged(RECORDS))
    assert (difference.first, difference.next) == (FIRST, NEXT)
    assert MADE.entry.sha256 in difference.what
    assert str(difference).startswith("[10, 30): ")
    assert len(differences(replace(MADE.entry, size_bytes=1), TOPIC, MADE.data)) == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({15: []}, [(15, 16, "missing")]),
        ({10: [], 11: [], 29: []}, [(10, 12, "missing"), (29, 30, "missing")]),
        ({12: [], 15: []}, [(12, 13, "missing"), (15, 16, "missing")]),
        ({12: [12, 13, 14]}, [(13, 15, "extra")]),
        ({10: [8, 9, 10], 29: [29, 30]}, [(8, 10, "extra"), (30, 31, "extra")]),
        ({16: [16, 16], 17: [17, 17, 17]}, [(16, 18, "doubled")]),
        ({16: [17], 17: [16]}, [(16, 17, "out of order")]),
        ({10: [], 29: [29, 10]}, [(10, 11, "out of order")]),
        ({15: [], 21: [20, 21], 22: [22, 22]}, [(15, 16, "missing"), (20, 21, "extra"), (22, 23, "doubled")]),
        ({10: [-(2**63), 10], 29: [29, 2**63 - 1]}, [(-(2**63), 1 - 2**63, "extra"), (2**63 - 1, 2**63, "extra")]),
    ],
)
def test_offsets_that_are_not_those_of_the_entry_are_named(
    change: dict[int, list[int]], expected: list[tuple[int, int, str]]
) -> None:
    offsets = [offset for each in RECORDS for offset in change.get(each.offset, [each.offset])]
    by_offset = {each.offset: each for each in RECORDS}
    data = forged(replace(by_offset.get(offset, RECORDS[0]), offset=offset) for offset in offsets)
    assert found(data) == expected
    if any(before >= after for before, after in pairwise(offsets)) or not FIRST <= offsets[0] <= offsets[-1] < NEXT:
        with pytest.raises(CorruptArchiveError, match=r"comes after offset|outside"):
            read_object(data)


@given(st.lists(st.integers(FIRST - 3, NEXT + 3), max_size=40))
def test_any_offsets_are_held_against_the_entry(offsets: list[int]) -> None:
    named: dict[str, set[int]] = {}
    for first, next_, what in found(forged(record(offset) for offset in offsets)):
        named.setdefault(what, set()).update(range(first, next_))
    meant, twice = {each.offset for each in RECORDS}, {offset for offset in offsets if offsets.count(offset) > 1}
    late = {after for before, after in pairwise(offsets) if after < before}
    expected = {"missing": meant - set(offsets), "extra": set(offsets) - meant, "doubled": twice, "out of order": late}
    assert named == {what: those for what, those in expected.items() if those}


def test_a_record_that_was_changed_is_found_by_the_digest() -> None:
    for changed in (
        replace(RECORDS[3], value=b"other"),
        replace(RECORDS[3], key=None),
        replace(RECORDS[3], headers=(("trace", b""),)),
    ):
        records = [changed if each.offset == changed.offset else each for each in RECORDS]
        assert found(forged(records)) == [(FIRST, NEXT, "other records")]
    later = [replace(each, timestamp_ms=each.timestamp_ms + 1) for each in RECORDS]
    assert found(forged(later)) == [
        (FIRST, NEXT, "other records"),
        (FIRST, NEXT, "timestamps from 1000000000011 to 1000000000030 ms, not from 1000000000010 to 1000000000029 ms"),
    ]


def test_two_records_that_exchanged_their_offsets_are_found() -> None:
    one, other = RECORDS[3], RECORDS[5]
    places = {one.offset: other, other.offset: one}
    records = [replace(places.get(each.offset, each), offset=each.offset) for each in RECORDS]
    assert found(forged(records)) == [
        (FIRST, NEXT, "the same records, but at other offsets"),
    ]


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"topic_id": OTHER_ID}, f"orders/7[10, 30) of topic id {OTHER_ID}"),
        ({"topic": "payments"}, "payments/7[10, 30)"),
        ({"partition": "8"}, "orders/8[10, 30)"),
        ({"next": "31"}, "orders/7[10, 31)"),
        ({"first": "9"}, "orders/7[9, 30)"),
        ({"first": "12", "next": "20"}, "orders/7[12, 20)"),
        ({"first": "1000", "next": "1001"}, "orders/7[1000, 1001)"),
    ],
)
def test_an_object_of_another_range_is_found_though_its_sha256_is_that_of_the_manifest(
    said: dict[str, str], named: str
) -> None:
    data = forged(RECORDS, **said)
    [difference] = differences(vouched(data), TOPIC, data)
    assert (difference.first, difference.next) == (FIRST, NEXT)
    assert f"the object says it is of {named}" in difference.what


def test_an_object_that_was_copied_to_a_shifted_range_misses_every_offset_of_it() -> None:
    entry = replace(MADE.entry, first=FIRST + 100, next=NEXT + 100, holes=((113, 115), (120, 121)))
    what = found(MADE.data, entry)
    assert what[0] == (110, 130, "the object says it is of orders/7[10, 30) of topic id J8-Zq_x1T0a5mB2nC3dE4f, not of "
                       "orders/7[110, 130) of topic id J8-Zq_x1T0a5mB2nC3dE4f")  # fmt: skip
    assert what[1:4] == [(110, 113, "missing"), (115, 120, "missing"), (121, 130, "missing")]
    assert what[4:] == [(10, 13, "extra"), (15, 20, "extra"), (21, 30, "extra")]


NO_OBJECTS = [
    (b"", "damaged"),
    (b"PAR1", "damaged"),
    (b"PAR1" * 100, "damaged"),
    (bytes(5000), "damaged"),
    (forged(RECORDS, format=None), "does not say the format"),
    (forged(RECORDS, format="2"), "an object of format '2'; this Millrace reads format 1"),
    (forged(RECORDS, topic_id=None), "not a topic and its id"),
    (forged(RECORDS, topic="a/b"), "not a topic and its id"),
    (forged(RECORDS, next=None), "invalid literal"),
    (forged(RECORDS, next="9" * 5000), "damaged"),
    (forged(RECORDS, first="010"), "not written as Millrace writes them"),
    (forged(RECORDS, first="1_0"), "not written as Millrace writes them"),
    (forged(RECORDS, partition="-1"), "not of a partition"),
    (forged(RECORDS, first="30"), "not of a partition"),
    (forged(RECORDS, first="31"), "not a half-open offset range"),
    (forged([], pa.table({"offset": [1]})), "the columns are offset int64"),
    (forged([], pa.Table.from_batches([to_batch(RECORDS)]).drop_columns(["key"])), "the columns are"),
    (
        forged([], pa.Table.from_batches([to_batch(RECORDS)]).cast(
            pa.schema([field.with_nullable(True) for field in to_batch([]).schema])
        )),
        "the columns are",
    ),
    (forged([replace(RECORDS[0], timestamp_type=9)]), "offset 10 has a timestamp of type 9"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("data", "said"), NO_OBJECTS, ids=range(len(NO_OBJECTS)))
def test_what_is_no_such_object_is_refused_and_is_a_difference(data: bytes, said: str) -> None:
    with pytest.raises(CorruptArchiveError) as error:
        read_object(data)
    assert said in error.value.what
    assert "\n" not in error.value.what
    [difference] = differences(vouched(data) if data else MADE.entry, TOPIC, data)[-1:]
    assert (difference.first, difference.next, difference.what) == (FIRST, NEXT, error.value.what)


def test_of_a_later_format_it_says_to_upgrade() -> None:
    with pytest.raises(CorruptArchiveError) as error:
        read_object(forged(RECORDS, format="2"))
    assert "upgrade" in error.value.next_step


def test_a_header_name_that_is_not_utf8_is_refused() -> None:
    """`forged` cannot make one: the name is changed in the file of a writer without compression and checksums."""
    sink = io.BytesIO()
    metadata = pq.ParquetFile(pa.BufferReader(MADE.data)).metadata.metadata
    table = pa.Table.from_batches([to_batch(RECORDS)]).replace_schema_metadata(metadata)
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=False, store_schema=True)
    data = sink.getvalue()
    assert list(read_object(data).records()) == RECORDS
    with pytest.raises(CorruptArchiveError, match="UTF8"):
        read_object(data.replace(b"trace", b"tr\xffce"))


def answered(data: bytes) -> None:
    """Damage is a difference, never an exception, and `read_object` raises its one error or reads."""
    found = differences(MADE.entry, TOPIC, data)
    assert found
    assert not any("\n" in str(each) for each in found)
    try:
        read_object(data)
    except CorruptArchiveError:
        return


def test_every_byte_that_is_changed_is_a_difference() -> None:
    for at in range(len(MADE.data)):
        for bits in (1 << at % 8, 0xFF)[: examples(2)]:
            answered(MADE.data[:at] + bytes([MADE.data[at] ^ bits]) + MADE.data[at + 1 :])


def test_a_flipped_bit_in_a_page_makes_the_object_unreadable() -> None:
    """By the page's own checksum: whoever has no manifest at hand does not read a wrong value."""
    [chunk] = [c for c in map(pq.ParquetFile(pa.BufferReader(MADE.data)).metadata.row_group(0).column, range(7))
               if c.path_in_schema == "value"]  # fmt: skip
    end = chunk.data_page_offset + chunk.total_compressed_size
    for at in range(end - 60, end):
        with pytest.raises(CorruptArchiveError, match="page integrity"):
            read_object(MADE.data[:at] + bytes([MADE.data[at] ^ 4]) + MADE.data[at + 1 :])


def test_every_end_that_is_cut_off_is_a_difference() -> None:
    for length in range(len(MADE.data)):
        answered(MADE.data[:length])
        with pytest.raises(CorruptArchiveError):
            read_object(MADE.data[:length])


@given(st.integers(0, len(MADE.data)), st.integers(0, 200), st.binary(max_size=200))
def test_a_piece_that_is_replaced_is_a_difference(at: int, length: int, piece: bytes) -> None:
    data = MADE.data[:at] + piece + MADE.data[at + length :]
    if data != MADE.data:
        answered(data)


@given(st.binary(max_size=300))
def test_garbage_is_a_difference(garbage: bytes) -> None:
    answered(garbage)
    answered(b"PAR1" + garbage + len(garbage).to_bytes(4, "little") + b"PAR1")


# As `write_object` of Arrow 26.0.1 wrote it: objects live longer than the library, so these bytes stay readable.
VERSION_1 = """
UEFSMRUAFTAVOhXmmKrDBBwVBhUAFQYVBhwYCAcAAAAAAAAAGAgDAAAAAAAAABYAKAgHAAAAAAAAABgIAwAAAAAAAAAREQAAACi1L/0gGKUAAGADAAQA
BwAAAAAAAAACAGDgAWABFQAVMBVCFdeNtrgHHBUGFQAVBhUGHBgI/////////38YCP//////////FgAoCP////////9/GAj//////////xERAAAAKLUv
/SAYwQAA////////////2x/Sd+YAAP////////9/FQQVGBUqFeeHiJ4BPBUGFQASAAAotS/9IAxhAAD/////AAAAAAEAAAAVABUIFRoV2ejauwYcFQYV
EBUGFQYcAAAAKLUv/SAEIQAAAgMkABUAFSIVNBWJ98T0AhwVBhUAFQYVBhwAAAAotS/9IBGJAAACAAAAAwYAAAAAAwAAAGtleRUAFSoVPBXzkJaEARwV
BhUAFQYVBhwAAAAotS/9IBWpAAACAAAAAwYAAAAABwAAAHZhbHVlAP8VBBUoFToVj4C50wc8FQYVABIAACi1L/0gFKEAAAAAAAABAAAAYQcAAABncsO2
w59lFQAVIBUyFc7Oj54DHBUKFRAVBhUGHAAAACi1L/0gEIEAAAIAAAADDAIAAAADHgIDhAAVABUsFT4VoJXdgwQcFQoVABUGFQYcAAAAKLUv/SAWsQAA
AgAAAAMMAwAAAANkAgAAAAABAAAAMRUEGbw1ABgGc2NoZW1hFQwAFQQlABgGb2Zmc2V0ABUEJQAYDHRpbWVzdGFtcF9tcwAVAiUAGA50aW1lc3RhbXBf
dHlwZQAVDCUCGANrZXkAFQwlAhgFdmFsdWUANQAYB2hlYWRlcnMVAhUGTDwAAAA1BBgEbGlzdBUCADUAGAdlbGVtZW50FQQAFQwlABgEbmFtZSUATBwA
AAAVDCUCGAV2YWx1ZQAWBhkcGXwmABwVBBklBgAZGAZvZmZzZXQVDBYGFroBFsQBJgg8GAgHAAAAAAAAABgIAwAAAAAAAAAWACgIBwAAAAAAAAAYCAMA
AAAAAAAAEREAGRwVABUAFQIAAAAmABwVBBklBgAZGAx0aW1lc3RhbXBfbXMVDBYGFroBFswBJswBPBgI/////////38YCP//////////FgAoCP//////
//9/GAj//////////xERABkcFQAVABUCAAAAJgAcFQIZNQAGEBkYDnRpbWVzdGFtcF90eXBlFQwWBhZ6Fp4BJuoDJpgDKSwVBBUAFQIAFQAVEBUCAAAA
JgAcFQwZJQYAGRgDa2V5FQwWBhZUFmYmtgRJHBUAFQAVAgA8FgYZBhkmAgQAAAAmABwVDBklBgAZGAV2YWx1ZRUMFgYWXBZuJpwFSRwVABUAFQIAPBYO
GQYZJgIEAAAAJgAcFQwZNQAGEBlIB2hlYWRlcnMEbGlzdAdlbGVtZW50BG5hbWUVDBYKFqIBFsYBJuwGJooGKSwVBBUAFQIAFQAVEBUCADwWEBkmBgQZ
JgIIAAAAJgAcFQwZJQYAGUgHaGVhZGVycwRsaXN0B2VsZW1lbnQFdmFsdWUVDBYKFl4WcCbQB0kcFQAVABUCADwWAhkmBgQZNgIEBAAAABaeBxYGJggW
uAgAGWwYD21pbGxyYWNlLmZvcm1hdBgBMQAYDm1pbGxyYWNlLnRvcGljGAZvcmRlcnMAGBFtaWxscmFjZS50b3BpY19pZBgWSjgtWnFfeDFUMGE1bUIy
bkMzZEU0ZgAYEm1pbGxyYWNlLnBhcnRpdGlvbhgBMAAYDm1pbGxyYWNlLmZpcnN0GAEyABgNbWlsbHJhY2UubmV4dBgBOQAYIHBhcnF1ZXQtY3BwLWFy
cm93IHZlcnNpb24gMjYuMC4xGXwcAAAcAAAcAAAcAAAcAAAcAAAcAAAAegMAAFBBUjE=
"""
VERSION_1_RECORDS = [
    ArchivedRecord(3, -1, TimestampType.NONE, None, None),
    ArchivedRecord(4, 253_402_300_799_999, TimestampType.CREATE_TIME, b"", b"", (("", None), ("a", b""), ("", None))),
    ArchivedRecord(7, 2**63 - 1, TimestampType.LOG_APPEND_TIME, b"key", b"value\0\xff", (("größe", b"1"),)),
]


def test_an_object_of_format_1_stays_readable() -> None:
    data = base64.b64decode(VERSION_1)
    read = read_object(data)
    assert list(read.records()) == VERSION_1_RECORDS
    assert read.range == OffsetRange(TopicPartition("orders", "J8-Zq_x1T0a5mB2nC3dE4f", 0), 2, 9)
    entry = read.described()
    assert (entry.count, entry.holes, entry.digest) == (3, ((2, 3), (5, 7), (8, 9)), digest_of(VERSION_1_RECORDS))
    assert differences(entry, TOPIC, data) == []
