"""The bad records of a batch, found again for quarantine: each with the rule that it breaks, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from millrace.domain.declaration.pipeline import Topic
from millrace.domain.quarantine.rules import Broken
from millrace.domain.topics.offsets import Source
from millrace.runtime.formats.decoded import RecordDecoder
from millrace.runtime.formats.registry import decoder_of
from millrace.runtime.stream.source import timestamps
from millrace.runtime.stream.writing import Blocks


def find_bad_records(
    topics: Mapping[str, tuple[Topic, str]], refused: Mapping[Source, Broken]
) -> Callable[[Blocks], Blocks]:
    """Return what finds the bad records of a batch, and those that were refused, in blocks of what was read.

    It decodes all of them once more, so it is asked only where there is something to find.

    Args:
        topics: each topic with the id it has now.
        refused: sources that decode, and that the transform or the sink refused, each with rule and reason.

    Returns:
        from blocks of `runtime.stream.source.RAW_TYPE`, blocks as `SinkStore.bad_records_writer` takes them.
    """

    def find(blocks: Blocks) -> Blocks:
        decoders = {
            name: (decoder_of(topic.value, topic.key), topic_id)
            for name, (topic, topic_id) in topics.items()
            if topic.value is not None
        }
        for block in blocks:
            for name, (decoder, topic_id) in decoders.items():
                part = block.filter(pc.equal(block.column("topic"), name))
                if len(part):
                    yield _bad_of(part, decoder, topic_id, refused)

    return find


def _bad_of(
    block: pa.RecordBatch, decoder: RecordDecoder, topic_id: str, refused: Mapping[Source, Broken]
) -> pa.RecordBatch:
    milliseconds = block.column("timestamp_ms").to_pylist()
    found = decoder.decode(block.column("value").to_pylist(), block.column("key").to_pylist(), milliseconds)
    rules, errors, bad = list(found.rules), list(found.errors), []
    places = zip(block.column("partition").to_pylist(), block.column("offset").to_pylist(), strict=True)
    for row, (partition, offset) in enumerate(places):
        broken = refused.get((topic_id, partition, offset))
        if rules[row] is None and broken is not None:
            rules[row], errors[row] = broken.rule, broken.error
        bad.append(rules[row] is not None)
    part = block.filter(pa.array(bad))
    at = timestamps(part.column("timestamp_ms"))
    return pa.RecordBatch.from_pydict(
        {
            "_topic_id": pa.array([topic_id] * len(part), type=pa.string()),
            "_partition": part.column("partition"),
            "_offset": part.column("offset"),
            "_ordinal": pa.array([0] * len(part), type=pa.int32()),
            "topic": part.column("topic"),
            "timestamp": at,
            "timestamp_ms": pc.if_else(pc.is_null(at), part.column("timestamp_ms"), pa.scalar(None, pa.int64())),
            "key": part.column("key"),
            "value": part.column("value"),
            "headers": part.column("headers"),
            "rule": pa.array([str(rule) for rule in rules if rule is not None], type=pa.string()),
            "error": pa.array([error for error in errors if error is not None], type=pa.string()),
        }
    )
