"""A supervising process of its own that dies at a named point: `python dying_supervisor.py ROOT STREAM POINT`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from millrace.errors import MillraceError
from millrace.settings import open_settings
from millrace.usecases.streams import supervise as streams
from millrace.wiring import open_platform
from support.drills.points import wrap
from support.waiting import Deadline

BEFORE_SUBMIT = "between epoch raise and submit"
BEFORE_ANSWER = "between submit and its answer"
_DEADLY = {BEFORE_SUBMIT: "raise_epoch", BEFORE_ANSWER: "submit_app"}


def _dying(original: Callable[..., Any]) -> Callable[..., Any]:
    def deadly(*arguments: Any) -> Any:
        if original(*arguments) is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    return deadly


def main(root: Path, stream: str, point: str) -> int:
    """Supervise as the Airflow trigger does, until the point is reached."""
    wrap(streams, _DEADLY[point], _dying)
    platform = open_platform(open_settings(root))
    deadline = time.monotonic() + Deadline.STREAM.seconds
    while time.monotonic() < deadline:
        try:
            streams.supervise(platform, stream, "drill supervisor")
        except MillraceError as error:
            print(error, flush=True)
        time.sleep(0.3)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
