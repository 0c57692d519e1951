"""The driver of one app: claim the epoch, take the sink and the group over, decide where to begin, run, drain.

The order is what keeps two drivers apart: the claim in the control database lets one instance of an epoch through,
the fence in the sink refuses older epochs' writes, the group refuses older members' commits. Only then is the record
of work read.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

import structlog

from millrace import declarations
from millrace.adapters.apps.host import make_host
from millrace.adapters.kafka.member import MembershipLostError
from millrace.adapters.kafka.settings.spark import must_serve_spark
from millrace.domain.declaration.pipeline import Pipeline, Stream
from millrace.domain.streams.supervision import ExitReason
from millrace.errors import (
    Code,
    DataLossError,
    DeclarationError,
    FencedError,
    MillraceError,
    RecreatedTopicError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from millrace.runtime.life.app import ClaimLostError, Launch, Life
from millrace.runtime.stream.driver import Driver
from millrace.settings import open_settings, project_root
from millrace.wiring.control import open_control

if TYPE_CHECKING:
    from millrace.runtime.backup.driver import BackupDriver

log = structlog.get_logger()

_EXIT_REASONS: tuple[tuple[type[MillraceError], ExitReason], ...] = (
    (ClaimLostError, ExitReason.CLAIM_LOST),
    (MembershipLostError, ExitReason.MEMBERSHIP_LOST),
    (FencedError, ExitReason.FENCED),
    (RecreatedTopicError, ExitReason.RECREATED),
    (DataLossError, ExitReason.DATA_LOSS),
    (DeclarationError, ExitReason.DECLARATION),
    (UsageError, ExitReason.DECLARATION),
    (RefusedError, ExitReason.REFUSED),
    (UnreachableError, ExitReason.UNREACHABLE),
)


def main(argv: Sequence[str]) -> int:
    """Run one instance of one epoch of an app; returns its `ExitReason`."""
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    _configure_logging()
    try:
        _run(_parse(argv), stop)
    except MillraceError as error:
        reason = exit_reason(error)
        log.error("ended", reason=reason.name, error=str(error))
        return int(reason)
    except Exception:
        log.exception("ended", reason=ExitReason.FAILED.name)
        return int(ExitReason.FAILED)
    log.info("ended", reason=ExitReason.STOPPED.name)
    return int(ExitReason.STOPPED)


def exit_reason(error: MillraceError) -> ExitReason:
    """The exit code that tells supervision what to do about an error."""
    return next((reason for kind, reason in _EXIT_REASONS if isinstance(error, kind)), ExitReason.FAILED)


def _run(launch: Launch, stop: threading.Event) -> None:
    root = project_root()
    settings = open_settings(root)
    pipeline = declarations.load_pipeline(root, launch.stream.partition(".")[0], os.environ.get("MILLRACE_ENVIRONMENT"))
    try:
        app = pipeline.app(launch.stream.partition(".")[2])
    except KeyError:
        raise DeclarationError(
            f"stream {launch.stream} is not declared", where=str(root), code=Code.UNKNOWN_NAME
        ) from None
    kafka = settings.kafka(pipeline.kafka)
    must_serve_spark(kafka)
    folder = settings.state_folder / "streams" / launch.stream / str(launch.epoch)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = folder / "scratch"
    control = open_control(settings)
    driver = _driver(Life(settings, control, kafka, app, launch, folder, stop.set), pipeline)
    mine = True
    try:
        driver.run(stop)
    except ClaimLostError:
        mine = False  # the folder is the winner's, and so is the checkpoint in it
        raise
    finally:
        if mine:
            shutil.rmtree(scratch, ignore_errors=True)


def _driver(life: Life, pipeline: Pipeline) -> Driver | BackupDriver:
    """What does the work of this kind of app."""
    if isinstance(life.app, Stream):
        return Driver(life, pipeline, life.app)
    from millrace.runtime.backup.driver import BackupDriver

    return BackupDriver(life, pipeline)


def _parse(argv: Sequence[str]) -> Launch:
    parser = argparse.ArgumentParser(prog="stream.py")
    parser.add_argument("--stream", required=True, help="PIPELINE.STREAM")
    parser.add_argument("--epoch", required=True, type=int)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--accept-recreated", action="store_true")
    found = parser.parse_args(argv)
    return Launch(found.stream, found.epoch, found.instance, found.accept_recreated, make_host(project_root()))


def _configure_logging() -> None:
    logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
    # At DEBUG it logs all that goes to the JVM: the tasks' functions too, with the passwords in them.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
    )
