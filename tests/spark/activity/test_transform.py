"""The transform over the coordinator's log as a batch on small frames."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from millrace.domain.declaration.pipeline import BYTES_COLUMNS, ValueFormat, ValueSchema
from millrace.runtime.stream.source import RAW_TYPE, SOURCE_TYPE, holds_only_commits_of
from millrace.runtime.stream.transform import input_type

PATH = Path(__file__).parents[3] / "spark_apps" / "activity" / "transform.py"
Records = tuple[tuple[bytes | None, bytes | None], ...]
OWN = "millrace.activity.groups"
TOPIC = "__consumer_offsets"


def app() -> ModuleType:
    specification = importlib.util.spec_from_file_location("activity_transform", PATH)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit_key(group: str, partition: int = 0) -> bytes:
    return struct.pack(">h", 1) + text(group) + text("t") + struct.pack(">i", partition)


def commit(offset: int, at_ms: int = 1_000) -> bytes:
    return struct.pack(">hqi", 3, offset, 0) + text("") + struct.pack(">q", at_ms)


def group_of(*client_ids: str) -> bytes:
    """The metadata of a classic group whose members have a partition each."""
    members = b""
    for number, client_id in enumerate(client_ids):
        assignment = struct.pack(">hi", 0, 1) + text("t") + struct.pack(">iii", 1, number, -1)
        members += text(f"id-{number}") + text(client_id) + text("/10.0.0.1") + struct.pack(">ii", 1, 0)
        members += struct.pack(">i", len(assignment)) + assignment
    head = struct.pack(">h", 0) + text("consumer") + struct.pack(">i", 1) + text("range") + text("id-0")
    return head + struct.pack(">i", len(client_ids)) + members


COMMITS: Records = (
    (commit_key("g"), commit(1)),
    (commit_key("g", 1), commit(5, 2**62)),
    (commit_key(OWN), commit(9)),
    (commit_key("g"), commit(3)),
    (commit_key("other"), None),
)
GROUP = struct.pack(">h", 2) + text("g")
GROUPS: Records = ((GROUP, group_of("one", "two")), (GROUP, None))
STRANGE = struct.pack(">h", 42)
UNREADABLE: Records = (
    (STRANGE, b""),
    (None, b""),
    (STRANGE + b"x", None),
    (struct.pack(">h", 3), b"known, not read"),
)


@pytest.fixture(scope="module")
def result(spark: SparkSession) -> DataFrame:
    """Return the rows that the transform makes of all these records in one batch."""
    log = [*COMMITS, *GROUPS, *UNREADABLE]
    rows = [(key, value, (TOPIC, "A" * 22, 7, offset, None)) for offset, (key, value) in enumerate(log)]
    frame = spark.createDataFrame(rows, input_type(ValueSchema(ValueFormat.BYTES, BYTES_COLUMNS)))
    transformed: DataFrame = app().transform({TOPIC: frame}, {})
    return transformed


@pytest.fixture(scope="module")
def facts(result: DataFrame) -> list[Row]:
    return result.orderBy("_source.offset", "_ordinal").collect()


def facts_of(facts: list[Row], kind: str) -> list[Row]:
    return [row for row in facts if row.kind == kind]


def test_of_each_group_and_partition_the_last_commit_of_a_batch_is_kept(result: DataFrame, facts: list[Row]) -> None:
    assert result.schema["_source"].dataType == SOURCE_TYPE
    found = facts_of(facts, "commit")
    assert [(r.group_id, r.partition, r.committed, r.records, r._source.offset) for r in found] == [
        ("g", 1, 5, 1, 1),
        ("g", 0, 3, 2, 3),
    ]
    assert found[0].committed_at is None  # a time that nothing here holds takes nothing else down
    assert found[1].committed_at is not None


def test_each_member_of_a_group_is_a_row_of_one_record(facts: list[Row]) -> None:
    found = facts_of(facts, "classic")
    assert [(r.client_id, r.client_host, r.assigned, r._ordinal, r.records) for r in found] == [
        ("one", "10.0.0.1", '{"t": [0]}', 0, 1),
        ("two", "10.0.0.1", '{"t": [1]}', 1, 1),
        (None, None, None, 0, 1),
    ]


def test_what_cannot_be_read_is_counted_by_version(facts: list[Row]) -> None:
    assert [(r.version, r.records) for r in facts_of(facts, "unreadable")] == [(None, 1), (42, 2)]


def test_a_batch_has_no_other_facts(facts: list[Row]) -> None:
    assert {row.kind for row in facts} == {"commit", "classic", "unreadable"}


def test_only_the_groups_own_commits_are_its_echo(spark: SparkSession) -> None:
    def only_own(*keys: bytes | None, topic: str = TOPIC) -> bool:
        raw = [(topic, 7, offset, 0, key, None, None) for offset, key in enumerate(keys)]
        return holds_only_commits_of(spark.createDataFrame(raw, RAW_TYPE), OWN)

    own = (commit_key(OWN), b"\0\0" + commit_key(OWN, 3)[2:])
    assert only_own(*own)
    others = (commit_key(OWN + "2"), commit_key("g"), struct.pack(">h", 2) + text(OWN), None)
    assert [only_own(*own, key) for key in others] == [False] * 4
    assert not only_own(*own, topic="another")
