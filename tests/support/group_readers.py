"""Readers of a topic in processes of their own, and what Kafka's own tool says of all groups."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.embedded.stack import Stack
from support.streams_project import tool_environment
from support.waiting import Deadline, line_of

CHILD = Path(__file__).with_name("group_reader_child.py")


@dataclass
class GroupReader:
    """One reader that runs."""

    group: str
    process: subprocess.Popen[str]

    def leave(self) -> None:
        """Have it leave its group and end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(Deadline.SESSION.seconds)

    def kill(self) -> None:
        """End it without a word to the broker."""
        self.process.kill()
        self.process.wait(Deadline.KILLED.seconds)


@contextmanager
def group_reader(
    stack: Stack, topic: str, group: str, *, library: str, protocol: str = "classic", count: int | None = None
) -> Iterator[GroupReader]:
    """A reader that has committed what it was to read (`count`; none: it goes on). It is ended with the block."""
    asked = {
        "library": library,
        "servers": stack.settings().kafka().bootstrap_servers,
        "group": group,
        "topic": topic,
        "client": f"client-of-{group}",
        "protocol": protocol,
        "count": count,
    }
    process = subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        said = line_of(process.stdout, within=Deadline.SESSION, what=f"{group} to have committed")
        assert said == "ready\n", f"{group} ended without having read"
        yield GroupReader(group, process)
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class StockLine:
    """One line of `kafka-consumer-groups --describe`; None where it prints a dash."""

    committed: int | None
    end: int | None
    lag: int | None
    host: str | None
    client_id: str | None


def stock_groups(stack: Stack) -> dict[tuple[str, str, int], StockLine]:
    """What Kafka's own tool says of every group, by group, topic and partition."""
    done = subprocess.run(
        [
            str(stack.layout.tools / "kafka-consumer-groups"),
            "--bootstrap-server",
            stack.settings().kafka().bootstrap_servers,
            *("--describe", "--all-groups"),
        ],
        env=tool_environment(stack),
        capture_output=True,
        text=True,
        timeout=Deadline.COMMAND.seconds,
        check=True,
    )
    found = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) < 9 or words[0] == "GROUP":
            continue
        group, topic, partition, committed, end, lag, _, host, client = words[:9]
        told = StockLine(*map(_number, (committed, end, lag)), _text(host), _text(client))
        found[group, topic, int(partition)] = told
    return found


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


def _text(text: str) -> str | None:
    return None if text == "-" else text.removeprefix("/")
