"""What the objects of an archive are called.

    archive/TOPIC/TOPIC_ID/PARTITION/FIRST-NEXT-SHA256.parquet
    archive/TOPIC/TOPIC_ID/manifest/SEQUENCE.json
    archive/TOPIC/TOPIC_ID/summary/SEQUENCE.json

Offsets and sequences have 20 digits, so that a listing of a partition or a chain is in their order. An object's name
ends with the SHA-256 of its bytes: the same name means the same bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from millrace.domain.archive.records import is_sha256

ROOT = "archive/"
_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_OBJECT = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{64})\.parquet")
_NUMBERED = re.compile(r"([0-9]{20})\.json")


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """The partition, the offsets `first <= offset < next` and the SHA-256 that an object's key names."""

    partition: int
    first: int
    next: int
    sha256: str


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """One topic from its creation to its deletion: its name, and Kafka's id in its 22-character text form.

    Raises:
        ValueError: no Kafka cluster has a topic of this name or id.
    """

    topic: str
    topic_id: str

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.topic) or not _TOPIC_ID.fullmatch(self.topic_id):
            raise ValueError(f"not a topic and its id: {self.topic!r}, {self.topic_id!r}")

    def __str__(self) -> str:
        return f"{self.topic} ({self.topic_id})"

    @property
    def prefix(self) -> str:
        """What every key of this incarnation begins with."""
        return f"{ROOT}{self.topic}/{self.topic_id}/"

    @property
    def manifests(self) -> str:
        """What every manifest's key begins with."""
        return f"{self.prefix}manifest/"

    @property
    def summaries(self) -> str:
        """What every summary's key begins with."""
        return f"{self.prefix}summary/"

    def partition(self, number: int) -> str:
        """What the key of every object of a partition begins with."""
        return f"{self.prefix}{number}/"

    def manifest_key(self, sequence: int) -> str:
        """The key of a manifest."""
        return f"{self.manifests}{sequence:020d}.json"

    def summary_key(self, sequence: int) -> str:
        """The key of the summary of the chain up to a manifest."""
        return f"{self.summaries}{sequence:020d}.json"

    def object_key(self, name: ObjectName) -> str:
        """The key of an object."""
        return f"{self.partition(name.partition)}{name.first:020d}-{name.next:020d}-{name.sha256}.parquet"

    def sequence_of(self, key: str) -> int | None:
        """The sequence that the key of a manifest or summary names; None where it is the key of neither."""
        for prefix in (self.manifests, self.summaries):
            if key.startswith(prefix) and (found := _NUMBERED.fullmatch(key[len(prefix) :])):
                return int(found[1])
        return None

    def object_name(self, key: str) -> ObjectName | None:
        """What the key of an object says; None where it is no object's key of this incarnation."""
        number, _, rest = key.removeprefix(self.prefix).partition("/")
        found = _OBJECT.fullmatch(rest)
        if not (key.startswith(self.prefix) and number.isascii() and number.isdigit() and found):
            return None
        name = ObjectName(int(number), int(found[1]), int(found[2]), found[3])
        return name if self.object_key(name) == key and name.first < name.next and is_sha256(name.sha256) else None
