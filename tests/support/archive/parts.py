"""What the model of an archive is made of: a partition's log, a store that is unreliable, objects of JSON."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum

from millrace.adapters.chain.documents import decode
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation, ObjectName
from millrace.domain.archive.records import Digest
from millrace.errors import UnreachableError
from millrace.ports.objects import Creation, ObjectInfo
from support.fakes.objects import MemoryStore

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
RETENTION = timedelta(hours=5)  # delete.retention.ms of a compacted topic


class Fate(Enum):
    """What an offset of a log is to a reader of committed records."""

    RECORD = "record"
    OPEN = "open"  # of a transaction that has not ended
    ABORTED = "aborted"
    MARKER = "marker"
    REPLACED = "replaced"  # taken out by the cleaner: its key has a later record
    BURIED = "buried"  # a tombstone that the cleaner took out: nothing says any more that its key was deleted


@dataclass
class Slot:
    """One offset; `text` is key and value and no other record's."""

    fate: Fate
    key: int = 0
    tombstone: bool = False
    text: str = ""
    horizon: datetime | None = None  # of a tombstone that the cleaner has met: until then it stays (KIP-534)


@dataclass
class ModelPartition:
    """One partition's log, and what once lay at offsets that an unclean election cut off."""

    slots: list[Slot] = field(default_factory=list)
    start: int = 0
    most_start: int = 0  # of any leader
    cut: set[int] = field(default_factory=set)
    once: dict[int, set[str]] = field(default_factory=dict)  # every record that a reader could ever have got

    def stable(self) -> int:
        """The last stable offset: no reader of committed records gets beyond it."""
        return next((at for at, slot in enumerate(self.slots) if slot.fate is Fate.OPEN), len(self.slots))

    def read(self, first: int, next_: int) -> dict[int, str]:
        """What a reader of committed records gets of a range."""
        return {
            at: self.slots[at].text
            for at in range(max(first, self.start), min(next_, self.stable()))
            if self.slots[at].fate is Fate.RECORD
        }


class FlakyStore(MemoryStore):
    """Loses some requests, and some answers."""

    def __init__(self, dice: random.Random, counts: Counter[str]) -> None:
        super().__init__()
        self._dice = dice
        self._counts = counts
        self.calm = False

    def create(self, key: str, data: bytes) -> Creation:
        luck = 1.0 if self.calm else self._dice.random()
        if luck < 0.03:
            self._counts["lost request"] += 1
            raise UnreachableError("the request was lost")
        done = super().create(key, data)
        if luck < 0.08:
            self._counts["lost answer"] += 1
            raise UnreachableError("the answer was lost")
        return done

    def get(self, key: str) -> bytes | None:
        if not self.calm and self._dice.random() < 0.02:
            self._counts["lost read"] += 1
            raise UnreachableError("the request was lost")
        return super().get(key)

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        """Leaves out what others are writing beside, as s3proxy over a folder does."""
        for info in super().list(prefix, after=after, page_size=page_size):
            if self.calm or self._dice.random() > 0.1:
                yield info


def model_object(partition: int, first: int, next_: int, records: dict[int, str]) -> tuple[bytes, ObjectEntry]:
    """An object of the model: its records as JSON, which says as much as the real one's columns."""
    data = json.dumps({"partition": partition, "range": [first, next_], "records": records}).encode()
    holes: list[tuple[int, int]] = []
    for at in range(first, next_):
        if at not in records:
            begun = holes.pop()[0] if holes and holes[-1][1] == at else at
            holes.append((begun, at + 1))
    stamps = (0, 0) if records else (None, None)
    sha256 = hashlib.sha256(data).hexdigest()
    return data, ObjectEntry(
        partition,
        first,
        next_,
        len(records),
        tuple(holes),
        *stamps,
        size_bytes=len(data),
        sha256=sha256,
        digest=Digest(),
    )


def manifests_of(store: MemoryStore, incarnation: Incarnation) -> list[Manifest]:
    """Every manifest of a chain, in order."""
    keys = sorted(key for key in store.objects if key.startswith(incarnation.manifests))
    return [decode(store.objects[key], Manifest, key) for key in keys]


def kept_entries(store: MemoryStore, incarnation: Incarnation) -> list[ObjectEntry]:
    """The objects that the chain names and has not let expire."""
    kept: dict[ObjectName, ObjectEntry] = {}
    for manifest in manifests_of(store, incarnation):
        for entry in manifest.objects:
            if manifest.kind is Kind.EXPIRY:
                del kept[entry.name]
            else:
                kept[entry.name] = entry
    return list(kept.values())
