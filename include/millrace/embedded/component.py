"""The wrapper every part is started through: `python -m millrace.embedded.component PART`.

It ends what a former life of the part has left, writes down which process the part now is, gives it exactly the
environment it should have, and becomes the part (exec), so that the supervisor's child is the part itself.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from millrace import ROOT_VARIABLE
from millrace.embedded import environment
from millrace.embedded.layout import Layout
from millrace.embedded.processes import Identity, PartRecord, end_left_of_part
from millrace.embedded.servers.program import Program

GRACE = timedelta(seconds=10)


def main() -> None:
    """Become the part named on the command line."""
    part = sys.argv[1]
    layout = Layout(Path(os.environ[ROOT_VARIABLE]))
    program = Program.read(layout, part)
    working_in = Path(program.working_in) if program.working_in else None
    ended = end_left_of_part(layout, part, grace=GRACE, working_in=working_in)
    if ended:
        print(f"millrace: ended {ended} orphaned processes of a former {part}", flush=True)
    for leftover in program.remove_first:
        Path(leftover).unlink(missing_ok=True)
    identity = Identity.of(os.getpid())
    assert identity is not None
    PartRecord(part, identity, program.stop_signal).write(layout)
    os.chdir(working_in or layout.root)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    variables = environment.of_part(layout, program)
    os.execvpe(program.command[0], program.command, variables)


if __name__ == "__main__":
    main()
