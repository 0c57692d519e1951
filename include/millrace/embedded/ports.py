"""Which port of 127.0.0.1 each part listens on: chosen once, kept, and changed only when somebody else took it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Collection

from millrace.embedded.layout import Layout, write_private

NAMES = ("kafka", "kafka_controller", "s3", "postgres", "airflow")
RANGE = range(20000, 32000)
"""Below the range that outgoing connections take their ports from (32768 and up on Linux)."""

Ports = dict[str, int]
"""Port numbers by the names of `NAMES`."""


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
        return True


def read(layout: Layout) -> Ports:
    """The ports of the last start, empty before the first."""
    try:
        document = json.loads(layout.ports_file.read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in document.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def taken(layout: Layout, names: Collection[str]) -> dict[str, int]:
    """Which of these parts' stored ports something listens on now."""
    return {name: port for name, port in read(layout).items() if name in names and not is_free(port)}


def choose(layout: Layout, *, in_use: Collection[str] = ()) -> Ports:
    """The ports to start on, stored: the former ones where they are free, others where somebody took them.

    Args:
        layout: whose stack.
        in_use: names whose port is in use by the stack itself, so that "not free" means nothing.
    """
    former = read(layout)
    chosen: Ports = {
        name: former[name] for name in NAMES if name in former and (name in in_use or is_free(former[name]))
    }
    for name in NAMES:
        if name not in chosen:
            chosen[name] = _a_free_one(chosen.values())
    if chosen != former:
        write_private(layout.ports_file, json.dumps(chosen, indent=1) + "\n")
    return chosen


def _a_free_one(besides: Collection[int]) -> int:
    candidates = random.SystemRandom().sample(RANGE, len(RANGE))
    return next(port for port in candidates if port not in besides and is_free(port))
