"""One epoch of a stream in a process that is gone after a call, with no `finally`.

usage: crashed_stream_child.py ROOT PROJECT STREAM EPOCH INSTANCE CALL OCCURRENCE

It ends by itself after `LIFE_SECONDS`, for its test may be killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from millrace.domain.streams.supervision import ExitReason
from millrace.runtime.life.app import Launch
from support.stack.faults import Moment, crash_at_call
from support.streams.crashed_streams import BATCH, HERE, CrashedStreams
from support.streams.driver_without_spark import without_spark
from support.streams.project import StreamProject

LIFE_SECONDS = 300


def main(root: str, project: str, name: str, epoch: str, instance: str, call: str, occurrence: str) -> None:
    signal.alarm(LIFE_SECONDS)
    nobody: Any = None  # the stack and the database are only needed to make a project
    streams = CrashedStreams.opened(StreamProject(Path(root), nobody, nobody, project, 2, BATCH))
    stream = streams.new(name)
    life = crash_at_call(call, Moment.AFTER, occurrence=int(occurrence), dying=lambda: os._exit(int(ExitReason.KILLED)))
    with without_spark(streams.project.root):
        ended = stream.live(life, Launch(stream.stream, int(epoch), instance, False, HERE))
    print(f"it was not struck and ended with {ended}")


if __name__ == "__main__":
    main(*sys.argv[1:])
