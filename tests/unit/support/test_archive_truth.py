"""The plain judge of an archive finds what is put wrong, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from millrace.adapters.chain.documents import encode
from support.archive import truth as archive_truth
from support.archive.read_back import HERE, CountingStore, MemoryArchive, made
from support.archive.small_archive import OFFSETS, PARTITIONS, ROUNDS, records
from support.archive.truth import compare
from support.topics import plain_consumer
from support.topics.plain_consumer import Bounds, PlainRecord

END = ROUNDS * OFFSETS


def consumed() -> list[PlainRecord]:
    """What a consumer would have got."""
    return [
        PlainRecord(p, r.offset, int(r.timestamp_type), r.timestamp_ms, r.key, r.value, r.headers)
        for p in range(PARTITIONS)
        for n in range(ROUNDS)
        for r in records(p, n * OFFSETS)
    ]


@dataclass
class Judged:
    """An archive and a consumer's records; a test spoils one of them."""

    archive: MemoryArchive = field(default_factory=lambda: made(CountingStore(), HERE))
    records: list[PlainRecord] = field(default_factory=consumed)
    bounds: dict[int, Bounds] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), Bounds(0, END)))

    def get(self, key: str) -> bytes | None:
        return self.archive.store.get(key)

    def keys(self, prefix: str) -> Iterable[str]:
        return [info.key for info in self.archive.store.list(prefix)]

    def judge(self) -> list[str]:
        return compare(self, HERE.topic, HERE.topic_id, self.records, self.bounds)


def test_an_archive_as_it_should_be_is_found_so() -> None:
    judged = Judged()
    assert judged.judge() == []
    judged.bounds = dict.fromkeys(range(PARTITIONS), Bounds(13, 27))  # the log of which older records are gone
    judged.records = [record for record in judged.records if 13 <= record.offset < 27]
    assert judged.judge() == []
    judged.archive.expire(judged.archive.entry(1, 0))
    judged.archive.delete(judged.archive.key(1, 0))
    assert judged.judge() == []


def missing_at_the_consumer(judged: Judged) -> str:
    del judged.records[5]
    return "offset 5 is a record, and the consumer has none"


def missing_in_the_archive(judged: Judged) -> str:
    judged.records.append(judged.records[7]._replace(offset=8))
    return "offset 8 is a hole, and the consumer has a record"


def twice_at_the_consumer(judged: Judged) -> str:
    judged.records.append(judged.records[5]._replace())
    return "has offset 5 of partition 0 twice"


def not_archived_yet(judged: Judged) -> str:
    judged.bounds[1] = Bounds(0, END + 2)
    judged.records.append(judged.records[-1]._replace(offset=END))
    return "[40, 42) lie in no object; the consumer has 1 records"


def another_partition(judged: Judged) -> str:
    del judged.bounds[1]
    judged.records = [record for record in judged.records if record.partition == 0]
    return "partition 1: archived, and the log has no such partition"


def object_gone(judged: Judged) -> str:
    judged.archive.delete(judged.archive.key(1, 0))
    return "not there"


def object_spoilt(judged: Judged) -> str:
    judged.archive.overwrite(judged.archive.key(1, 0), judged.archive.bytes_of(judged.archive.key(1, 1)))
    return "other bytes"


def overlap(judged: Judged) -> str:
    archive = judged.archive
    archive.append(objects=(archive.put(records(0, 25), 0, 25),), seen=archive.manifests[-1].seen)
    return "offsets [25, 30) lie in more than one object"


def manifest_gone(judged: Judged) -> str:
    judged.archive.delete(HERE.manifest_key(2))
    return "manifest 2 is missing, and there is"


def link_broken(judged: Judged) -> str:
    judged.archive.overwrite(HERE.manifest_key(2), encode(replace(judged.archive.manifests[1], partitions=7)))
    return "manifest 3: previous is"


def no_takeover(judged: Judged) -> str:
    judged.archive.append(objects=(), kind="look", epoch=9)
    return "look of epoch 9 after epoch 1"


def another_count(judged: Judged) -> str:
    archive = judged.archive
    entry = archive.put(records(0, END), 0, END)
    wrong = replace(entry, count=entry.count - 1, holes=((END + 7, END + 9),))
    archive.append(objects=(wrong,), seen=(replace(archive.manifests[-1].seen[0], end=END + OFFSETS),))
    return "count, timestamps and holes are (9,"


def hole_not_witnessed(judged: Judged) -> str:
    archive = judged.archive
    archive.append(
        objects=(archive.put(records(0, END), 0, END),),
        seen=(replace(archive.manifests[-1].seen[0], start=END + 9, end=END + OFFSETS),),
    )
    more = [PlainRecord(0, r.offset, 0, r.timestamp_ms, r.key, r.value, r.headers) for r in records(0, END)]
    judged.records += more
    judged.bounds[0] = Bounds(0, END + OFFSETS)
    return "the hole [48, 49) was not seen in the log [49, 50)"


FAULTS = [
    missing_at_the_consumer,
    missing_in_the_archive,
    twice_at_the_consumer,
    not_archived_yet,
    another_partition,
    object_gone,
    object_spoilt,
    overlap,
    manifest_gone,
    link_broken,
    no_takeover,
    another_count,
    hole_not_witnessed,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_is_wrong_is_told(fault: Callable[[Judged], str]) -> None:
    judged = Judged()
    told = fault(judged)
    assert told in "\n".join(judged.judge())


@pytest.mark.parametrize(
    "change",
    [
        {"timestamp_ms": 7},
        {"timestamp_type": 1},
        {"key": None},
        {"value": b""},
        {"headers": ()},
        {"headers": (("trace", None), ("trace", b"5"))},
    ],
)
def test_a_record_that_differs_in_a_field_is_told_with_it(change: dict[str, object]) -> None:
    judged = Judged()
    judged.records[5] = judged.records[5]._replace(**change)  # type: ignore[arg-type]
    (told,) = judged.judge()
    assert f"offset 5: {next(iter(change))} is" in told


@pytest.mark.parametrize("module", [archive_truth, plain_consumer])
def test_the_judge_knows_nothing_of_millrace(module: object) -> None:
    tree = ast.parse(Path(str(getattr(module, "__file__", ""))).read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert names
    assert [name for name in names if name.startswith("millrace")] == []
