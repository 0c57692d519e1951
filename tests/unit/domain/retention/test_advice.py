"""Advice about a topic's settings: each one given where it should be, and not where nothing is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from millrace import declarations
from millrace.domain.formats.sizes import roughly_bytes
from millrace.domain.retention.advice import IN_FORCE, Advice, advise
from millrace.domain.retention.settings import log_settings
from support.declarations import PRODUCTION, RETURNS, SHOP, example_project, replace_once, valid_project

MIB, HOUR, DAY = 1024**2, 3_600_000, 86_400_000


def given_for(
    *,
    replication: int | None = 3,
    partitions: int | None = 4,
    has_key: bool | None = True,
    fed: bool = False,
    in_force: bool = False,
    **settings: object,
) -> list[Advice]:
    """Advice about a topic with these settings, `retention_ms` for `retention.ms`, declared or all in force."""
    values = {key.replace("_", "."): str(value) for key, value in settings.items()}
    return advise(
        "shop.purchases",
        log_settings(values),
        replication=replication,
        partitions=partitions,
        has_key=has_key,
        fed_by_source=fed,
        declared=IN_FORCE if in_force else frozenset({*values, "partitions", "replication"}),
    )


def about(found: list[Advice]) -> list[str]:
    return [each.setting for each in found]


def test_of_a_topic_that_declares_nothing_nothing_is_said() -> None:
    assert given_for() == []


def test_a_partition_alone() -> None:
    assert about(given_for(partitions=1)) == ["partitions"]
    assert given_for(partitions=2) == given_for(partitions=None) == []


def test_a_replica_alone_and_not_where_one_broker_is_all_there_is() -> None:
    assert about(given_for(replication=1)) == ["replication"]
    assert given_for(replication=2) == given_for(replication=None) == []


def test_replicas_in_sync() -> None:
    (alone,) = given_for(min_insync_replicas=1)
    (many,) = given_for(min_insync_replicas=4)

    assert (alone.setting, alone.next_step) == ("min.insync.replicas", "declare `config: {min.insync.replicas: 2}`")
    assert many.next_step == "write at most 3"
    assert given_for(min_insync_replicas=2) == given_for(min_insync_replicas=1, replication=None) == []
    assert about(given_for(min_insync_replicas=1, replication=1)) == ["replication"]
    assert about(given_for(in_force=True)) == ["min.insync.replicas"]  # Kafka's default, in force


def test_an_unclean_election() -> None:
    assert about(given_for(unclean_leader_election_enable="true")) == ["unclean.leader.election.enable"]
    assert given_for(unclean_leader_election_enable="false") == []
    assert given_for(unclean_leader_election_enable="true", replication=None) == []


def test_a_compacted_topic_without_keys() -> None:
    for policy in ("compact", "compact,delete"):
        assert about(given_for(cleanup_policy=policy, has_key=False)) == ["cleanup.policy"]
        assert given_for(cleanup_policy=policy) == given_for(cleanup_policy=policy, has_key=None) == []
    assert given_for(cleanup_policy="delete", has_key=False) == []


def test_segments_too_large_for_the_limit_by_size() -> None:
    (declared,) = given_for(retention_bytes=100 * MIB, segment_bytes=60 * MIB)
    (by_default,) = given_for(retention_bytes=1024 * MIB)

    assert (declared.setting, declared.next_step) == (
        "segment.bytes",
        "declare `config: {segment.bytes: 10485760}`, or a larger limit",
    )
    assert declared.what == (
        "Kafka deletes whole segments, of up to 60.0 MiB, and keeps 100 MiB: a partition holds up to 160 MiB"
    )
    assert by_default.setting == "retention.bytes"
    assert "of up to 1.0 GiB (Kafka's default)," in by_default.what
    assert given_for(retention_bytes=100 * MIB, segment_bytes=50 * MIB) == []
    assert given_for(retention_bytes=2048 * MIB) == []
    assert given_for(segment_bytes=1024 * MIB) == []
    assert given_for(retention_bytes=100 * MIB, segment_bytes=60 * MIB, cleanup_policy="compact") == []


def test_segments_written_to_for_longer_than_records_are_to_be_kept() -> None:
    (declared,) = given_for(retention_ms=DAY, segment_ms=2 * DAY)
    (by_default,) = given_for(retention_ms=DAY)

    assert (declared.setting, declared.next_step) == ("segment.ms", "declare `config: {segment.ms: 8640000}`")
    assert declared.what.endswith("records are kept for up to 3.0 d")
    assert by_default.setting == "retention.ms"
    assert "7.0 d old (Kafka's default)," in by_default.what
    assert given_for(retention_ms=7 * DAY) == given_for(retention_ms=DAY, segment_ms=DAY) == []
    assert given_for(retention_ms=-1, segment_ms=3153600000000) == []
    assert given_for(retention_ms=DAY, cleanup_policy="compact") == []


def test_segments_rolled_so_often_that_there_are_too_many() -> None:
    (declared,) = given_for(retention_ms=7 * DAY, segment_ms=HOUR // 60)
    (by_default,) = given_for(segment_ms=HOUR // 60)
    (for_ever,) = given_for(retention_ms=-1, segment_ms=HOUR)

    assert (declared.setting, declared.next_step) == ("segment.ms", "declare `config: {segment.ms: 6048000}`")
    assert declared.what == (
        "a segment every 60 s for 7.0 d: up to 10,080 segments a partition, 40,320 in all, each with three open files"
    )
    assert "7.0 d (Kafka's default)" in by_default.what
    assert "a year, and no limit by time: up to 8,760 segments" in for_ever.what
    assert given_for(retention_ms=1000 * HOUR, segment_ms=HOUR) == []
    assert about(given_for(retention_ms=1001 * HOUR, segment_ms=HOUR)) == ["segment.ms"]
    assert given_for(retention_ms=-1) == given_for(retention_ms=-1, segment_ms=DAY) == []
    assert given_for(segment_ms=1, cleanup_policy="compact") == []


def test_segments_so_small_that_there_are_too_many() -> None:
    (found,) = given_for(retention_bytes=2048 * MIB, segment_bytes=MIB, partitions=1, replication=None)[1:]

    assert (found.setting, found.next_step) == ("segment.bytes", "declare `config: {segment.bytes: 21474836}`")
    assert found.what == "segments of 1.0 MiB for 2.0 GiB: up to 2,048 segments a partition, each with three open files"
    assert given_for(retention_bytes=1000 * MIB, segment_bytes=MIB) == []
    assert given_for(segment_bytes=MIB) == []
    assert given_for(retention_bytes=2 * 1024**4) == []  # larger ones Kafka hardly takes


def test_records_that_a_program_dates_and_that_are_deleted_at_once() -> None:
    (found,) = given_for(retention_ms=7 * DAY, fed=True)

    assert found.setting == "retention.ms"
    assert found.next_step == (
        "declare `retention: {time: unlimited}` or `config: {message.timestamp.type: LogAppendTime}`"
    )
    assert given_for(retention_ms=7 * DAY) == given_for(fed=True) == given_for(retention_ms=-1, fed=True) == []
    assert given_for(retention_ms=7 * DAY, fed=True, message_timestamp_type="LogAppendTime") == []
    assert given_for(retention_bytes=-1, fed=True) == []
    assert about(given_for(fed=True, in_force=True, min_insync_replicas=2)) == ["retention.ms"]


@given(
    some.fixed_dictionaries(
        {},
        optional={
            "retention_ms": some.integers(-1, 2**63 - 1),
            "segment_ms": some.integers(0, 2**63 - 1),
            "retention_bytes": some.integers(-1, 2**63 - 1),
            "segment_bytes": some.integers(0, 2**31 - 1),
            "cleanup_policy": some.sampled_from(["delete", "compact", "compact,delete"]),
            "min_insync_replicas": some.integers(0, 5),
        },
    ),
    some.booleans(),
)
def test_whatever_the_settings_are_advice_is_about_one_that_is_known(settings: dict[str, object], all_: bool) -> None:
    found = given_for(fed=True, in_force=all_, **settings)

    keys = {key.replace("_", ".") for key in settings} | {"partitions", "replication"}
    assert set(about(found)) <= (IN_FORCE if all_ else keys)
    assert all(each.what and each.next_step for each in found)


@given(
    some.fixed_dictionaries(
        {},
        optional={
            "retention_ms": some.integers(60_000, 400 * DAY),
            "segment_ms": some.integers(1, 400 * DAY),
            "retention_bytes": some.integers(10 * MIB, 2**45),
            "segment_bytes": some.integers(MIB, 2**31 - 1),
            "min_insync_replicas": some.integers(0, 3),
            "unclean_leader_election_enable": some.booleans(),
        },
    ),
    some.booleans(),
)
def test_doing_what_an_advice_says_ends_it_and_brings_no_other(settings: dict[str, object], all_: bool) -> None:
    steps = [each.next_step for each in given_for(in_force=all_, **settings)]
    for step in steps:
        for key, value in re.findall(r"`config: {([a-z.]+): ([^}]+)}`", step):
            settings = settings | {key.replace(".", "_"): value}

    assert given_for(in_force=all_, **settings) == []


def test_sizes_are_told_in_the_unit_that_suits_them() -> None:
    sizes = (0, 1023, 1024, 1536, 100 * 1024, 1024**2 - 1, MIB, 2**40, 2**63)

    assert [roughly_bytes(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "100 KiB",
        "1.0 MiB",
        "1.0 MiB",
        "1.0 TiB",
        "8388608 TiB",
    ]


def warnings(root: Path, environment: str = "production") -> list[tuple[str, int, str]]:
    return [(each.file, each.line, each.field) for each in declarations.check(root, environment)]


def test_spec_check_says_in_which_line(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    replace_once(root / SHOP, "message.timestamp.type: LogAppendTime", "segment.ms: 1000, min.insync.replicas: 1")

    topic = "topics.shop.purchases"
    assert warnings(root) == [
        (PRODUCTION, 5, f"{topic}.retention.time"),
        (SHOP, 12, f"{topic}.config.min.insync.replicas"),
        (SHOP, 12, f"{topic}.config.segment.ms"),
    ]
    assert warnings(root, "embedded") == [
        (SHOP, 11, f"{topic}.retention.time"),
        (SHOP, 12, f"{topic}.config.segment.ms"),
    ]


def test_spec_check_speaks_of_a_limit_that_kafkas_default_segments_are_too_large_for(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    replace_once(root / SHOP, "size_per_partition: 2GiB", "size_per_partition: 1GiB")

    assert warnings(root, "embedded") == [(SHOP, 11, "topics.shop.purchases.retention.size_per_partition")]


def test_a_source_of_another_pipeline_feeds_a_topic_too(tmp_path: Path) -> None:
    root = valid_project(tmp_path)
    replace_once(root / SHOP, "sources:\n  cdnow:\n    program: cdnow\n    writes: shop.purchases\n", "")
    replace_once(root / SHOP, ", message.timestamp.type: LogAppendTime", "")

    assert warnings(root) == []
    with (root / RETURNS).open("a", encoding="utf-8") as file:
        file.write("\nsources:\n  cdnow: {program: cdnow, writes: shop.purchases}\n")
    assert warnings(root) == [(PRODUCTION, 5, "topics.shop.purchases.retention.time")]


@pytest.mark.parametrize("value", ["soon", "1.5", "-100000000000000000"])
def test_of_settings_that_are_no_numbers_nothing_is_said(tmp_path: Path, value: str) -> None:
    root = valid_project(tmp_path)
    replace_once(root / SHOP, "LogAppendTime", f"LogAppendTime, segment.ms: {value}")

    assert warnings(root) == []


@pytest.mark.parametrize("environment", ["embedded", "production"])
def test_the_examples_are_free_of_warnings(tmp_path: Path, environment: str) -> None:
    root = example_project(tmp_path)
    (root / PRODUCTION).write_text("description: three brokers\n", encoding="utf-8")

    assert warnings(root, environment) == []
