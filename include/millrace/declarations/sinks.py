"""All kinds of sinks, by the word below `writes`. Nothing else in declarations names one."""

from __future__ import annotations

from typing import Any

from millrace.declarations.findings import Place
from millrace.declarations.reader import Mapping
from millrace.declarations.sink_kafka import KafkaKind
from millrace.declarations.sink_kind import SinkKind
from millrace.declarations.sink_postgres import PostgresKind
from millrace.declarations.sink_s3 import S3Kind

KINDS: tuple[SinkKind[Any, Any], ...] = (PostgresKind(), KafkaKind(), S3Kind())
"""In the order in which messages and the JSON schema name them."""


def kind_of(word: str) -> SinkKind[Any, Any]:
    """Return the kind of this word; `KeyError` where there is none."""
    return {kind.word: kind for kind in KINDS}[word]


def written_topics(tree: Mapping) -> list[tuple[Place, str]]:
    """Return the topics that a stream's tree says it writes to, as far as they can be names."""
    return [found for kind in KINDS for found in kind.topics(tree)]
