"""Which topics are not restored into, and that the error names the setting and the way out."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millrace.domain.archive.manifest import MOST, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.records import Digest
from millrace.domain.archive.restore.records import Placement
from millrace.domain.archive.restore.target import KEPT_AT_LEAST_MS, Survey, refusals
from millrace.domain.archive.selection import Selection
from millrace.domain.topics.changes import ObservedTopic

SOURCE = Incarnation("shop.purchases", "C" * 22)
DAY_MS = 24 * 3_600_000
NOW_MS = 1_800_000_000_000
DEFAULTS = {
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(MOST),
    "message.timestamp.after.max.ms": "3600000",
}


def target(partitions: int = 3, topic_id: str = "D" * 22, **config: str) -> ObservedTopic:
    own = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in config.items()}
    return ObservedTopic("back", topic_id, partitions, 1, own, DEFAULTS)


def survey(
    least_ms: int | None = NOW_MS - 8 * DAY_MS, greatest_ms: int = NOW_MS, selection: Selection | None = None
) -> Survey:
    return Survey(selection or Selection(), 3, 10, least_ms, None if least_ms is None else greatest_ms)


def reasons(topic: ObservedTopic, seen: Survey | None = None, placement: Placement = Placement.SAME) -> list[str]:
    found = list(refusals(topic, SOURCE, seen or survey(), placement, NOW_MS))
    assert all(each.subject == "back" and each.next_step for each in found)
    return [f"{each.what} / {each.next_step}" for each in found]


def test_a_topic_that_keeps_everything_takes_everything() -> None:
    assert reasons(target()) == []
    assert reasons(target(), survey(-(1 << 63), NOW_MS)) == []


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ({"retention_ms": str(8 * DAY_MS)}, "retention.ms=-1"),
        ({"retention_ms": "0"}, "retention.ms=-1"),
        ({"retention_bytes": "1000000000000"}, "retention.bytes=-1"),
        ({"cleanup_policy": "compact"}, "cleanup.policy=delete"),
        ({"cleanup_policy": "compact, delete"}, "cleanup.policy=delete"),
        ({"message_timestamp_type": "LogAppendTime"}, "message.timestamp.type=CreateTime"),
        ({"message_timestamp_before_max_ms": str(7 * DAY_MS)}, f"message.timestamp.before.max.ms={MOST}"),
    ],
)
def test_a_setting_that_would_change_or_delete_records_is_named_with_the_command(
    config: Mapping[str, str], setting: str
) -> None:
    (reason,) = reasons(target(**config))
    assert f"--alter --topic back --add-config {setting}`" in reason


def test_retention_has_to_leave_a_day() -> None:
    seen = survey(NOW_MS - DAY_MS)
    assert reasons(target(retention_ms=str(DAY_MS + KEPT_AT_LEAST_MS)), seen) == []
    assert len(reasons(target(retention_ms=str(DAY_MS + KEPT_AT_LEAST_MS - 1)), seen)) == 1


def test_where_nothing_is_ever_deleted_retention_does_not_matter() -> None:
    assert reasons(target(cleanup_policy="", retention_ms="1", retention_bytes="1")) == []


def test_timestamps_ahead_are_taken_as_far_as_the_topic_says() -> None:
    ahead = survey(greatest_ms=NOW_MS + 3_600_001)
    (reason,) = reasons(target(), ahead)
    assert f"message.timestamp.after.max.ms={MOST}" in reason
    assert reasons(target(message_timestamp_after_max_ms=str(MOST)), ahead) == []
    old = target(message_timestamp_difference_max_ms="1", message_timestamp_after_max_ms=str(MOST))
    assert len(reasons(old, ahead)) == 2


def test_a_broker_that_would_compress_anew_refuses_what_is_older_than_1970() -> None:
    old = survey(-2)
    (reason,) = reasons(target(compression_type="zstd"), old)
    assert "compression.type=producer" in reason
    assert reasons(target(compression_type="zstd"), survey(-1)) == []
    assert [reasons(target(compression_type=each), old) for each in ("producer", "gzip")] == [[], []]


def test_without_records_their_timestamps_are_no_reason() -> None:
    assert reasons(target(retention_ms="1", message_timestamp_before_max_ms="1"), survey(None)) == []


def test_another_number_of_partitions_has_to_be_told() -> None:
    for count in (2, 4):
        (reason,) = reasons(target(count))
        assert f"has {count} partitions, and the archived topic had 3" in reason
        assert "--partitions keep" in reason
        assert reasons(target(count), placement=Placement.KEY) == []
    assert reasons(target(4), placement=Placement.KEEP) == []
    assert len(reasons(target(2), placement=Placement.KEEP)) == 1
    assert reasons(target(2), survey(selection=Selection(1)), Placement.KEEP) == []


def test_the_topic_itself_is_refused() -> None:
    (reason,) = reasons(target(topic_id=SOURCE.topic_id))
    assert "it is the topic that" in reason


def entry(partition: int, first: int, least_ms: int, greatest_ms: int) -> ObjectEntry:
    return ObjectEntry(partition, first, first + 10, 10, (), least_ms, greatest_ms, 100, "0" * 64, Digest())


def test_a_survey_bounds_what_is_asked_for() -> None:
    whole, part, none = Survey(Selection()), Survey(Selection(0, 5, 12)), Survey(Selection(2))
    timed = Survey(Selection(from_ms=150, to_ms=300))
    for seen in (whole, part, none, timed):
        seen.see(entry(0, 0, 100, 200))
        seen.see(entry(0, 10, 190, 400))
        seen.see(entry(1, 0, 10, 20))
    assert (whole.records, whole.least_ms, whole.greatest_ms) == (30, 10, 400)
    assert (part.records, part.least_ms, part.greatest_ms) == (7, 100, 400)
    assert (timed.records, timed.least_ms, timed.greatest_ms) == (20, 150, 299)
    assert (none.records, none.least_ms) == (0, None)
