"""Records of `__consumer_offsets` by their bytes: known layouts, and whatever else may come."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.formats.coordinator_log import (
    OTHER_RECORDS,
    ClassicGroup,
    Commit,
    ConsumerAssignment,
    ConsumerMember,
    Other,
    Unreadable,
    commit_key_prefixes,
    decode,
)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def compact(value: str) -> bytes:
    return bytes([len(value.encode()) + 1]) + value.encode()


COMMIT_KEY = struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 3)
COMMIT_4 = struct.pack(">hqi", 4, 42, 7) + compact("m") + struct.pack(">q", 1_000)
MEMBER_KEY = struct.pack(">h", 5) + text("g") + text("one")
GROUP_KEY = struct.pack(">h", 2) + text("g")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (struct.pack(">hq", 0, 42) + text("m") + struct.pack(">q", 1_000), None),
        (struct.pack(">hq", 1, 42) + text("m") + struct.pack(">qq", 1_000, 9), None),
        (struct.pack(">hqi", 3, 42, 7) + text("m") + struct.pack(">q", 1_000), None),
        (COMMIT_4 + b"\x00", None),
        (COMMIT_4 + b"\x01\x00\x10" + b"\x00" * 16, None),
        (COMMIT_4 + b"\x02\x00\x10" + b"\xff" * 16 + b"\x05\x01\x00", "_" * 21 + "w"),
    ],
    ids=["version 0", "version 1", "version 3", "version 4", "no topic id", "topic id and a tag of the future"],
)
def test_commits_of_every_version(value: bytes, expected: str | None) -> None:
    assert decode(COMMIT_KEY, value) == Commit("g", "t", 3, 42, "m", 1_000, expected)


def test_a_tombstone_is_no_commit_and_no_member() -> None:
    assert decode(COMMIT_KEY, None) == Commit("g", "t", 3)
    assert decode(GROUP_KEY, None) == ClassicGroup("g")
    assert decode(MEMBER_KEY, None) == ConsumerMember("g", "one")
    assert decode(struct.pack(">h", 8) + text("g") + text("one"), None) == ConsumerAssignment("g", "one")


def test_a_group_that_is_not_of_consumers_hides_what_its_members_have() -> None:
    member = text("one") + text("c") + text("/h") + struct.pack(">i", 1) + struct.pack(">ii", 0, 3) + b"abc"
    value = struct.pack(">h", 0) + text("connect") + struct.pack(">i", 1) + text("p") + text("one")
    found = decode(GROUP_KEY, value + struct.pack(">i", 1) + member)
    assert isinstance(found, ClassicGroup)
    assert [(one.host, one.assigned) for one in found.members] == [("h", None)]


@pytest.mark.parametrize("version", OTHER_RECORDS)
def test_other_records_are_known_by_name(version: int) -> None:
    assert decode(struct.pack(">h", version) + b"anything", b"\xff") == Other(version, OTHER_RECORDS[version])


@pytest.mark.parametrize(
    ("key", "value", "version", "why"),
    [
        (None, b"", None, "no key"),
        (b"\x00", b"", None, "too short"),
        (struct.pack(">h", 42) + b"x", b"", 42, "key version 42"),
        (struct.pack(">h", -1), b"", -1, "key version -1"),
        (COMMIT_KEY + b"!", b"", 1, "1 bytes too many"),
        (COMMIT_KEY, struct.pack(">h", 5), 1, "value version 5"),
        (COMMIT_KEY, struct.pack(">hqih", 3, 1, 1, 32_767), 1, "32767 bytes are announced where 0 are left"),
        (COMMIT_KEY, COMMIT_4 + b"\xff\xff\xff\xff\x0f", 1, "tagged fields are announced"),
        (COMMIT_KEY, COMMIT_4 + b"\xff" * 9, 1, "does not end"),
        (COMMIT_KEY, COMMIT_4 + b"\x01\x00\x02ab", 1, "16 bytes"),
        (struct.pack(">hh", 1, 1) + b"\xff" + text("t") + bytes(4), None, 1, "not UTF-8"),
        (GROUP_KEY, struct.pack(">hhihhi", 0, 0, 1, -1, -1, 2**31 - 1), 2, "2147483647 items are announced"),
    ],
)
def test_what_cannot_be_read_says_why(key: bytes | None, value: bytes, version: int | None, why: str) -> None:
    found = decode(key, value)
    assert isinstance(found, Unreadable)
    assert (found.version, why in found.error) == (version, True), found.error


@given(st.binary(max_size=200), st.none() | st.binary(max_size=400))
def test_garbage_is_read_to_an_end(key: bytes, value: bytes | None) -> None:
    decode(key, value)


@given(st.sampled_from([COMMIT_KEY, GROUP_KEY, MEMBER_KEY, b"\x00\x08" + MEMBER_KEY[2:]]), st.binary(max_size=400))
def test_garbage_under_a_right_key_is_of_its_group_or_says_why(key: bytes, value: bytes) -> None:
    found = decode(key, b"\x00\x00" + value)
    assert isinstance(found, Unreadable) or getattr(found, "group", None) == "g"


@given(st.text(max_size=20), st.text(max_size=20), st.sampled_from([0, 1]))
def test_the_prefix_of_a_group_is_of_no_other_one(group: str, other: str, version: int) -> None:
    def key(name: str) -> bytes:
        return struct.pack(">h", version) + text(name) + text("t") + bytes(4)

    assert key(group).startswith(commit_key_prefixes(group))
    assert key(other).startswith(commit_key_prefixes(group)) == (group == other)
