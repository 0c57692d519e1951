"""Epochs that others than the control database know of: it may have been lost, or restored from a backup."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from millrace.errors import MillraceError
from millrace.spec import load_pipeline

if TYPE_CHECKING:
    from millrace.wiring import Platform

log = structlog.get_logger()


def newest_elsewhere(platform: Platform, stream: str) -> int:
    """The greatest epoch that a stream's fence in its sink, or its group's commits, name; 0 where none does.

    A start that is not above it is fenced. Who does not answer is left out: that start then ends as fenced, and the
    next one asks again.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM, which is declared.
    """
    pipeline_name, _, name = stream.partition(".")
    try:
        pipeline = load_pipeline(platform.settings.root, pipeline_name)
        declared = pipeline.stream(name)
    except (KeyError, MillraceError):
        return 0  # who starts it says what is wrong with its declaration
    asked = {
        "fence": partial(_of_fence, platform, declared.sink.connection, stream),
        "group": partial(_of_group, platform, pipeline.kafka, declared.group, declared.reads, stream),
    }
    newest = 0
    for what, ask in asked.items():
        try:
            newest = max(newest, ask())
        except MillraceError as error:
            log.warning("epoch_not_asked", stream=stream, of=what, error=str(error))
    return newest


def _of_fence(platform: Platform, connection: str, stream: str) -> int:
    return platform.fences(connection).epoch(stream)


def _of_group(platform: Platform, connection: str, group: str, topics: tuple[str, ...], stream: str) -> int:
    return platform.groups(connection).newest_epoch(group, topics, stream)
