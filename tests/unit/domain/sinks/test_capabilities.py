"""Capabilities of the sinks that there are: each answers all, and a stream is told why one is missing."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest

from millrace.domain.declaration.pipeline import KafkaSink, PostgresSink, S3Sink, Sink, SinkMode, Stream
from millrace.domain.sinks.capabilities import Capabilities, Capability, Lack

APPENDED = PostgresSink("warehouse", "shop.purchases")
UPSERTED = replace(APPENDED, mode=SinkMode.UPSERT, key=("id",))
TOPICS = KafkaSink(("shop.returns",))
DATASET = S3Sink("millrace_s3", "lake/returns")
OF_TABLES = {Capability.TABLE, Capability.BOOKS, Capability.REWIND}
OF_SOURCES = {Capability.QUALITY, Capability.REDRIVE, Capability.RECOMPUTE}


def stream(sink: Sink) -> Stream:
    return Stream("returns", "shop", "app", ("shop.purchases",), sink, "millrace.shop.returns")


@pytest.mark.parametrize(
    ("sink", "able"),
    [
        (APPENDED, OF_TABLES | OF_SOURCES),
        (UPSERTED, OF_TABLES | {Capability.DELETES}),
        (TOPICS, {Capability.DELETES}),
        (DATASET, {Capability.FILES}),
    ],
    ids=["append", "upsert", "kafka", "s3"],
)
def test_a_sink_has_a_capability_or_a_reason_and_a_way_out(sink: Sink, able: set[Capability]) -> None:
    declared = stream(sink)

    assert {each for each in Capability if declared.able(each)} == able
    for capability in set(Capability) - able:
        lack = declared.lack(capability)
        assert lack is not None
        assert lack.reason
        assert lack.next_step
        assert "{" not in lack.reason + lack.next_step
    assert (sink.as_table is not None, sink.as_dataset is not None) == (
        Capability.TABLE in able,
        Capability.FILES in able,
    )


def test_each_capability_is_answered_by_a_field_of_its_name() -> None:
    assert [each.name for each in fields(Capabilities)] == [each.value for each in Capability]


@pytest.mark.parametrize("other", [Capability.REWIND, Capability.REDRIVE])
def test_a_sink_without_books_can_neither_rewind_nor_redrive(other: Capability) -> None:
    with pytest.raises(ValueError, match=f"`{other}` also has `books`"):
        replace(TOPICS.capabilities, **{other.value: None})


@pytest.mark.parametrize("other", [Capability.BOOKS, Capability.QUALITY, Capability.RECOMPUTE])
def test_a_sink_without_a_table_has_nothing_that_is_held_against_one(other: Capability) -> None:
    with pytest.raises(ValueError, match=f"`{other}` also has `table`"):
        replace(TOPICS.capabilities, **{other.value: None})


def test_a_way_out_names_stream_and_group_as_they_are() -> None:
    lack = Lack("{stream} cannot", "reset {group} of {stream}")

    assert lack.of("a.b", "g{stream}") == Lack("a.b cannot", "reset g{stream} of a.b")


@pytest.mark.parametrize(
    ("sink", "document"),
    [
        (UPSERTED, '{"connection":"warehouse","table":"shop.purchases","mode":"upsert","key":["id"]}'),
        (TOPICS, '{"topics":["shop.returns"],"by_column":false}'),
        (DATASET, '{"store":"millrace_s3","prefix":"lake/returns","event_date":null}'),
    ],
    ids=["postgres", "kafka", "s3"],
)
def test_what_a_sink_can_is_no_part_of_the_digest_that_plans_are_bound_to(sink: Sink, document: str) -> None:
    assert msgspec.json.encode(sink, order="deterministic").decode() == document
