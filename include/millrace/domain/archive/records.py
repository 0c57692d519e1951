"""A record as the archive keeps it, and digests that tell whether two sets of records are the same.

A digest is a sum of one hash a record, so the digest of two objects together is the sum of theirs, in any order: a
merge or a restore is compared without reading both sides in the same order.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

_MODULUS = 1 << 256
_HEX_DIGITS = 64

Headers = tuple[tuple[str, bytes | None], ...]


class TimestampType(IntEnum):
    """What a record's timestamp means; Kafka's own numbers (`org.apache.kafka.common.record.TimestampType`)."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class ArchivedRecord:
    """One record, bit for bit: null and empty are told apart, headers keep their order and may come twice.

    `timestamp_ms` is the number that lies in the log, in milliseconds since 1970 if its producer meant it so; -1: none.
    """

    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Digest:
    """Sums modulo 2**256 of SHA-256 hashes, a record each, as 64 hexadecimal digits.

    `content` is of timestamp, key, value and headers: the same wherever the records lie. `position` is of the content's
    hash with the offset: two records that have changed places change it.

    Does not guarantee: anything against who may choose the records and looks for a set with the same sum. What holds
    against that is the object's own SHA-256.
    """

    content: str = "0" * _HEX_DIGITS
    position: str = "0" * _HEX_DIGITS

    def __post_init__(self) -> None:
        if not (is_sha256(self.content) and is_sha256(self.position)):
            raise ValueError(f"not sums of 64 hexadecimal digits: {self.content}, {self.position}")

    def __add__(self, other: Digest) -> Digest:
        """The digest of both sets of records together."""
        return Digest(_sum(self.content, other.content), _sum(self.position, other.position))


class Digester:
    """Adds records up to their digest."""

    def __init__(self) -> None:
        self._content = 0
        self._position = 0

    def add(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """Count one record."""
        content = content_hash(timestamp_ms, key, value, headers)
        self._content += int.from_bytes(content, "big")
        self._position += int.from_bytes(hashlib.sha256(content + struct.pack(">q", offset)).digest(), "big")

    def digest(self) -> Digest:
        """The digest of what was counted."""
        return Digest(_text(self._content), _text(self._position))


def content_hash(timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """SHA-256 over timestamp, key, value and headers, each with its length before it (-1: null) as Kafka writes them.

    The type of the timestamp is left out: it is a setting of the topic, and another one where records are restored.
    """
    found = hashlib.sha256(struct.pack(">q", timestamp_ms))
    for part in (key, value):
        _add(found, part)
    found.update(struct.pack(">i", len(headers)))
    for name, content in headers:
        _add(found, name.encode("utf-8"))
        _add(found, content)
    return found.digest()


def digest_of(records: Iterable[ArchivedRecord]) -> Digest:
    """The digest of these records."""
    digester = Digester()
    for record in records:
        digester.add(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
    return digester.digest()


def is_sha256(text: str) -> bool:
    """Whether a text is 64 hexadecimal digits in lower case."""
    return len(text) == _HEX_DIGITS and set(text) <= set("0123456789abcdef")


def _add(found: hashlib._Hash, part: bytes | None) -> None:
    if part is None:
        found.update(b"\xff\xff\xff\xff")
    else:
        found.update(struct.pack(">i", len(part)))
        found.update(part)


def _sum(one: str, other: str) -> str:
    return _text(int(one, 16) + int(other, 16))


def _text(number: int) -> str:
    return f"{number % _MODULUS:0{_HEX_DIGITS}x}"
