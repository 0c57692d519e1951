"""Documents of the archive, decoded by several threads of a process that has decoded none yet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.waiting import Deadline

# Each child is a process in which nothing was decoded; the shortest switches make threads meet wherever they can.
SCRIPT = """
import os, sys, threading
from millrace.adapters.chain import documents
from millrace.errors import CorruptArchiveError

kind = getattr(documents, sys.argv[1])

def decode(together):
    together.wait()
    try:
        documents.decode(b'{"unknown": 0}', kind, "key")
    except CorruptArchiveError as error:
        assert "missing required field" in error.what, error

def child():
    sys.setswitchinterval(1e-6)
    together = threading.Barrier(8)
    threads = [threading.Thread(target=decode, args=(together,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

for _ in range(40):
    if not (pid := os.fork()):
        child()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize("kind", ["Manifest", "ObjectEntry", "Summary", "Audit"])
def test_threads_that_decode_their_first_document_at_once_do_not_end_the_process(kind: str) -> None:
    script = f"import sys\nsys.path[:0] = {sys.path!r}\n{SCRIPT}"
    done = subprocess.run(
        [sys.executable, "-c", script, kind],
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=True,
    )
    assert done.stdout.split() == ["0"] * 40
    assert done.stderr == ""
