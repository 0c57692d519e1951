"""Epochs that others than the control database know of: it may have been lost, or restored from a backup."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from millrace.domain.declaration.pipeline import BackupApp, Stream
from millrace.errors import Code, MillraceError, UnreachableError
from millrace.usecases.declaration.lookup import declared_app

if TYPE_CHECKING:
    from millrace.ports.platform import Platform

log = structlog.get_logger()

_ASK_AGAIN_SECONDS = 60.0  # hundreds of starts would each wait for the same server


def newest_elsewhere(platform: Platform, stream: str) -> int:
    """The greatest epoch that a stream's fence in its sink, or its group's commits, name; 0 where none does.

    A fence may be in the control database, which may be what was restored: a sink that keeps epochs with its rows, as
    the chain of a dataset does, is asked as well. A backup has no sink: its group is asked, and the ends of the chains
    it writes.

    A start that is not above it is fenced. A server that does not answer is left out, for a minute by all starts: such
    a start then ends as fenced, and a later one asks again.

    Args:
        platform: the adapters.
        stream: PIPELINE.STREAM or PIPELINE.backup, which is declared.
    """
    try:
        pipeline, declared = declared_app(platform.settings.root, stream)
    except MillraceError:
        return 0  # who starts it says what is wrong with its declaration
    group = (pipeline.kafka, partial(_of_group, platform, pipeline.kafka, declared.group, declared.reads, stream))
    asked: list[tuple[str, Callable[[], int]]]  # two of them may have one Connection
    if isinstance(declared, Stream):
        fence = declared.sink.connection
        beside = platform.sinks.epochs(declared.sink).items()
        asked = [
            (fence, partial(_of_fence, platform, fence, stream)),
            group,
            *((connection, partial(newest_epoch, stream)) for connection, newest_epoch in beside),
        ]
    else:  # before the group: chains can be asked while the group's coordinator is away
        asked = [(declared.store, partial(_of_chains, platform, pipeline.kafka, declared)), group]
    newest = 0
    for connection, ask in asked:
        if _is_left_out(platform, connection):
            log.info("epoch_not_asked", stream=stream, of=connection, error="Kafka did not answer a moment ago")
            continue
        try:
            newest = max(newest, ask())
        except MillraceError as error:
            log.warning("epoch_not_asked", stream=stream, of=connection, error=str(error))
            if isinstance(error, UnreachableError):
                platform.unanswered[connection] = time.monotonic()
    return newest


def _is_left_out(platform: Platform, connection: str) -> bool:
    return time.monotonic() - platform.unanswered.get(connection, -math.inf) < _ASK_AGAIN_SECONDS


def _of_fence(platform: Platform, connection: str, stream: str) -> int:
    return platform.sinks.fences(connection).epoch(stream)


def _of_chains(platform: Platform, kafka: str, app: BackupApp) -> int:
    """Ask the ends of the chains that a backup writes. The cluster names them: without it nothing is asked."""
    try:
        if _is_left_out(platform, kafka):
            raise UnreachableError(
                "Kafka did not answer a moment ago", where=f"connection {kafka}", code=Code.KAFKA_UNREACHABLE
            )
        chains = platform.archive.claims(app, kafka).incarnations()
    except UnreachableError as error:  # by the cluster: the bucket is not to be left out for it
        log.warning("epoch_not_asked", stream=app.qualified_name, of=kafka, error=str(error))
        if not _is_left_out(platform, kafka):
            platform.unanswered[kafka] = time.monotonic()
        return 0
    return platform.archive.hasty_heads(app.store).newest_epoch(chains)


def _of_group(platform: Platform, connection: str, group: str, topics: tuple[str, ...], stream: str) -> int:
    return platform.kafka.groups(connection).newest_epoch(group, topics, stream)
