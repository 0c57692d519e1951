"""A supervisor of its own: `python supervising_child.py ROOT STREAM EVERY_SECONDS`, until its input ends.

Epochs are asked of the control database alone: there is neither sink nor group.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from millrace.errors import MillraceError
from millrace.ports.platform import Platform
from millrace.settings import open_settings
from millrace.usecases.streams import supervise as streams
from millrace.wiring import open_platform


def nowhere_else(platform: Platform, stream: str) -> int:
    return 0


def main(root: str, stream: str, every_seconds: str) -> int:
    streams.newest_elsewhere = nowhere_else
    platform = open_platform(open_settings(Path(root)))
    while not select.select([sys.stdin], [], [], float(every_seconds))[0]:
        try:
            streams.supervise(platform, stream, "supervisor")
        except MillraceError as error:
            print(error, flush=True)
            platform = open_platform(open_settings(Path(root)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
