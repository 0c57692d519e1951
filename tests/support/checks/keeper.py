"""The keeper of one test run: `python -m support.checks.keeper FOLDER`, with a pipe from pytest as its standard input.

When nobody holds the other end any more, killed or not, it ends every process of the run and removes its folder. After
a run that ended in order there is nothing left to do.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path) -> int:
    """Wait for the end of pytest, then for everything else of its run to end."""
    while sys.stdin.buffer.read(1):  # nobody writes: this is the end of the pipe
        pass
    if not folder.exists():
        return 0
    from support.checks import runs  # what is hardly ever needed
    from support.checks.kept_logs import Logs
    from support.waiting import Deadline

    Logs(folder).keep()
    runs.close_forgotten(folder, within=Deadline.KILLED)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
