"""Source programs, with the topic that they feed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.domain.declaration.pipeline import Pipeline
    from millrace.usecases.topics.sources import LoadProgress, LoadReport


def load_source(
    settings: Settings, pipeline: Pipeline, name: str, progress: Callable[[LoadProgress], None]
) -> LoadReport:
    """Load a declared source into its topic (see `usecases.topics.sources.load_source`)."""
    from millrace.adapters.kafka.producers.source import open_source_topic
    from millrace.usecases.topics import sources

    return sources.load_source(settings, pipeline, name, progress, open_topic=open_source_topic)
