"""Readers of a topic in processes of their own, and what Kafka's own tool says of all groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from millrace.embedded.stack import Stack
from millrace.usecases.groups.listing import list_groups
from millrace.wiring import open_platform
from support.streams.project import tool_environment
from support.waiting import Deadline, eventually, line_of, result_of

KAFKA = "millrace_kafka"
CHILD = Path(__file__).with_name("reader_child.py")


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
    stack: Stack,
    topic: str,
    group: str,
    *,
    library: str,
    protocol: str = "classic",
    count: int | None = None,
    session_seconds: int = 6,
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
        "session_ms": session_seconds * 1000,
    }
    process = subprocess.Popen(
        [sys.executable, str(CHILD), json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHILD.parents[2])},
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
        if len(words) < 9 or not words[2].isdigit():  # a heading, or a remark about a group
            continue
        group, topic, partition, committed, end, lag, _, host, client = words[:9]
        told = StockLine(*map(_number, (committed, end, lag)), _text(host), _text(client))
        found[group, topic, int(partition)] = told
    return found


Seen = tuple[int | None, int | None, int | None, str | None, str | None]


def seen_now(stack: Stack) -> dict[tuple[str, str, int], Seen]:
    """What a look at the cluster says of every group, as Kafka's own tool has it."""
    found = list_groups(open_platform(stack.settings()), KAFKA, directly=True)
    return {
        (row.name, *one.partition): (
            one.committed,
            one.end,
            one.lag,
            one.member.host if one.member else None,
            one.member.client_id if one.member else None,
        )
        for row in found.groups
        for one in row.reading.partitions
    }


def wait_for_the_stock_tool(stack: Stack, groups: Sequence[str]) -> None:
    """Until `as_the_stock_tool`: of a group that rebalances the tool says nothing, so it is not asked meanwhile."""
    admin = AdminClient(dict(stack.settings().kafka().librdkafka))

    def same() -> bool:
        assert unsettled(admin, groups) == {}
        return as_the_stock_tool(stack, groups)

    what = "groups to be as the stock tool has them"
    eventually(same, within=Deadline.SESSION, what=what, ignoring=(AssertionError, KafkaException))


def unsettled(admin: AdminClient, groups: Sequence[str]) -> dict[str, ConsumerGroupState]:
    """Return the states of the groups whose members change just now."""
    settled = (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)
    return {name: state for name, state in states_of(admin, groups).items() if state not in settled}


def states_of(admin: AdminClient, groups: Sequence[str]) -> dict[str, ConsumerGroupState]:
    """Return the state of each group."""
    asked = admin.describe_consumer_groups(list(groups), request_timeout=Deadline.METADATA.seconds)
    return {name: result_of(one, what=f"the state of group {name}").state for name, one in asked.items()}


def as_the_stock_tool(stack: Stack, groups: Sequence[str]) -> bool:
    """Whether these groups are as Kafka's own tool has them, partition by partition; fails with the difference."""
    stock = {
        key: (line.committed, line.end, line.lag, line.host, line.client_id)
        for key, line in stock_groups(stack).items()
        if key[0] in groups
    }
    ours = {key: values for key, values in seen_now(stack).items() if key[0] in groups}
    assert {key[0] for key in stock} == set(groups), "the tool shows all of them"
    assert ours == stock
    return True


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


def _text(text: str) -> str | None:
    return None if text == "-" else text.removeprefix("/")
