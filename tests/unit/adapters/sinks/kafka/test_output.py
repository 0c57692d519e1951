"""Rows that name their topic: each goes to it in order, or its record is refused. Errors of Kafka: which pass."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.adapters.sinks.kafka.output import RowsProducer, _Output
from millrace.adapters.sinks.kafka.values import Target
from millrace.errors import MillraceError, SinkFailedError, SinkUnreachableError
from millrace.settings import KafkaSettings

DECLARED = ("a", "b", "\u00fc")
NOT_UTF8 = (b"\xff", b"a\xff", b"\xed\xa0\x80", b"\xc3")
NAMES = st.sampled_from([None, b"", b"c", b"A", b"a\0", *(name.encode() for name in DECLARED), *NOT_UTF8])


def sent(names: Sequence[bytes | None], type_: pa.DataType) -> tuple[dict[str, list[int]], dict[int, str]]:
    """Return the offsets of the rows that each topic gets, and the reason at each offset that is refused."""
    block = pa.RecordBatch.from_pydict(
        {
            "_topic_id": pa.array(["id"] * len(names)),
            "_partition": pa.array([0] * len(names), pa.int32()),
            "_offset": pa.array(range(len(names)), pa.int64()),
            "topic": pa.array(names, pa.large_binary()).cast(pa.large_string(), safe=False).cast(type_),
        }
    )
    targets = {name: Target(name, (), None, True, False, 1, 1_000, 1_000) for name in DECLARED}
    settings = KafkaSettings({"bootstrap.servers": "nowhere:9092"})
    refused: dict[tuple[str, int, int], str] = {}
    parts = RowsProducer(settings, "test", "s", 1, 1, (), targets, by_column=True)._by_target(block, refused)
    found = {target.name: part.column("_offset").to_pylist() for target, part in parts}
    return found, {offset: why for (_, _, offset), why in refused.items()}


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()], ids=str)
def test_a_topic_that_is_not_utf8_refuses_its_record_alone(type_: pa.DataType) -> None:
    found, refused = sent([b"a", b"\xff", b"c", None, b"a"], type_)
    assert found == {"a": [0, 4]}
    assert refused == {
        1: "the row names no topic: `topic` is not UTF-8",
        2: "the row names the topic c, which is not declared for it",
        3: "the row names no topic",
    }


@given(st.lists(NAMES, max_size=12))
@example([*NOT_UTF8, None, b"a"])
def test_each_row_goes_to_the_topic_that_it_names_or_is_refused(names: Sequence[bytes | None]) -> None:
    found, refused = sent(names, pa.string())
    for name in DECLARED:
        assert found.get(name, []) == [row for row, given in enumerate(names) if given == name.encode()]
    declared = [name.encode() for name in DECLARED]
    assert sorted(refused) == [row for row, given in enumerate(names) if given not in declared]
    for row, why in refused.items():
        assert ("is not UTF-8" in why) is (names[row] in NOT_UTF8)


UNREACHABLE = (
    "_MSG_TIMED_OUT",
    "_TRANSPORT",
    "_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "REQUEST_TIMED_OUT",
    "KAFKA_STORAGE_ERROR",
)
FAILED = (
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "MSG_SIZE_TOO_LARGE",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_MSG",
    "INVALID_TIMESTAMP",
    "POLICY_VIOLATION",
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "_AUTHENTICATION",
    "_FATAL",
    "_GAPLESS_GUARANTEE",
)


def kind_of(error: KafkaError) -> type[MillraceError]:
    """Return the kind of error that a producer raises after the brokers' answer to a record."""
    output = _Output(KafkaSettings({"bootstrap.servers": "nowhere:9092"}), "test")
    output._delivered(error, None)
    with pytest.raises(MillraceError) as raised:
        output.finish()
    assert raised.value.where == "nowhere:9092"
    assert error.str() in raised.value.what
    return type(raised.value)


@pytest.mark.parametrize("name", UNREACHABLE)
def test_a_record_that_the_brokers_do_not_acknowledge_makes_the_sink_unreachable(name: str) -> None:
    assert kind_of(KafkaError(getattr(KafkaError, name))) is SinkUnreachableError


@pytest.mark.parametrize("name", FAILED)
def test_a_record_that_the_brokers_refuse_makes_the_sink_fail(name: str) -> None:
    assert kind_of(KafkaError(getattr(KafkaError, name))) is SinkFailedError


def test_an_error_that_the_client_calls_retriable_makes_the_sink_unreachable() -> None:
    retriable = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, None, False, True)
    assert kind_of(retriable) is SinkUnreachableError
