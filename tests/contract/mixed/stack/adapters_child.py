"""The connections of a process that uses its adapters and closes them: `python adapters_child.py ROOT BROKER_PORT`.

The settings of its control database come by standard input, pickled. For each round it says in a line of JSON how many
connections each server has while the adapters are open, and how many once they are closed. In a process with other
clients nobody could tell whose connections those are.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from pathlib import Path

import psutil

from millrace.adapters.control.store import ControlStore
from millrace.settings import open_settings
from millrace.wiring.platform import Adapters

ROUNDS = 2
CLOSED_SECONDS = 10
"""After these seconds a connection counts as open for good."""


def connections(ports: list[int]) -> list[int]:
    """Return how many connections of this process lead to each port."""
    found = psutil.Process().net_connections("tcp")
    remote = [one.raddr.port for one in found if one.raddr and one.status == psutil.CONN_ESTABLISHED]
    return [remote.count(port) for port in ports]


def main() -> None:
    database = pickle.load(sys.stdin.buffer)
    settings, ports = open_settings(Path(sys.argv[1])), [database.port, int(sys.argv[2])]
    platform = Adapters(settings, control=ControlStore(database))
    for _ in range(ROUNDS):
        platform.control.check()
        platform.kafka.cluster().take()
        used = connections(ports)
        platform.close()
        ends = time.monotonic() + CLOSED_SECONDS
        while any(connections(ports)) and time.monotonic() < ends:
            time.sleep(0.02)
        print(json.dumps([used, connections(ports)]), flush=True)


if __name__ == "__main__":
    main()
