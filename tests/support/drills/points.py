"""Named points inside a driver, and mutants of it, put in from outside by a drill's own `spark_apps/stream.py`.

The product has no hooks: functions of it are wrapped by name, and a name that is not there fails the drill's app at
once. Where the driver shall wait for the drill stands in `drill/orders.json` of the app's root, read anew at every
pass, so that a drill can choose a point while the stream runs. There the driver waits for `drill/go-TOKEN`, which names
whom to kill, or nobody. It does not wait for ever: it ends by itself when the drill takes too long or is gone.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

BEFORE_SINK = "before the sink's commit"
AFTER_SINK = "between sink and group commit"
AFTER_GROUP = "between group and checkpoint commit"
DRAIN = "during stop"
CLAIM = "during claim"
TAKEN_OVER = "after the takeover"
BEFORE_COPY = "before the copy to staging"
IN_MERGE = "in the merge transaction, holding the fence"

NO_FENCE = "no fence"
NO_COMPARE_AND_SET = "no compare-and-set"
GROUP_FIRST = "group committed first"
EPOCH_IGNORED = "epoch ignored"
MUTANTS = (NO_FENCE, NO_COMPARE_AND_SET, GROUP_FIRST, EPOCH_IGNORED)

JVM, PYTHON, ALL = "driver JVM", "driver Python", "whole group"

HELD_SECONDS = 300
FORGOTTEN = 70
"""How a driver exits that nobody lets go on: no `ExitReason`, so that it is never taken for an end in order."""

_batch_in_flight: int | None = None
_passes: dict[str, int] = {}


def run(arguments: Sequence[str], mutants: Sequence[str] = ()) -> int:
    """Put points and mutants in, then be the driver."""
    # A drill starts many short-lived JVMs, and the optimizing compiler never pays for itself in one.
    os.environ["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1"
    for mutant in mutants:
        _MUTATIONS[mutant]()
    _put_points_in()
    from millrace.runtime.main import main

    return main(arguments)


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put `make(original)` in the place of a function.

    Raises:
        RuntimeError: there is no such function: the drill no longer drills what it says.
    """
    original = getattr(owner, name, None)
    if not callable(original):
        raise RuntimeError(f"{owner!r} has no function {name} to wrap: mend the drill")
    setattr(owner, name, make(original))


def _put_points_in() -> None:
    from millrace.adapters.control.streams import StreamTables
    from millrace.adapters.sinks.kafka.sink import KafkaSink
    from millrace.adapters.sinks.postgres.sink import PostgresSink
    from millrace.adapters.sinks.s3.sink import S3Sink
    from millrace.runtime.stream.batch import sink as batch_sink
    from millrace.runtime.stream.batch.runner import BatchRunner

    def noting_batch(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, raw: Any, batch_id: int) -> Any:
            global _batch_in_flight
            _batch_in_flight = batch_id
            answer = original(self, raw, batch_id)
            reach(AFTER_GROUP)
            _batch_in_flight = None
            return answer

        return noted

    wrap(BatchRunner, "_run", noting_batch)
    for sink in (PostgresSink, KafkaSink, S3Sink):
        wrap(sink, "commit_batch", _around(before=BEFORE_SINK, after=AFTER_SINK))
        wrap(sink, "take_over", _around(after=TAKEN_OVER))
    wrap(PostgresSink, "_advance", _around(before=IN_MERGE))
    wrap(batch_sink, "write_counted", _around(before=BEFORE_COPY))
    wrap(BatchRunner, "drain", _around(before=DRAIN))
    wrap(StreamTables, "claim", _around(after=CLAIM))


def _around(*, before: str | None = None, after: str | None = None) -> Callable[..., Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def passing(*arguments: Any, **named: Any) -> Any:
            if before == BEFORE_SINK and _order(before).get("reconnect"):
                arguments[0].close()  # this writer opens its next connection only when it goes on
            if before:
                reach(before)
            answer = original(*arguments, **named)
            if after:
                reach(after)
            return answer

        return passing

    return make


def reach(point: str) -> None:
    """Where this point is ordered, say so, wait until the drill says to go on, and die where it says so."""
    order = _order(point)
    if not order:
        return
    token = str(order["token"])
    _passes[token] = _passes.get(token, 0) + 1
    if _passes[token] != int(order["pass"]):
        return
    told = {"point": point, "batch": _batch_in_flight, "pid": os.getpid()}
    _write(_folder() / f"reached-{token}.json", told)
    go_on = _folder() / f"go-{token}"
    until = time.monotonic() + HELD_SECONDS
    while not go_on.exists():
        if time.monotonic() > until or _is_gone(order["drill"]):
            print(f"held {point}, and forgotten there", file=sys.stderr, flush=True)
            os._exit(FORGOTTEN)
        time.sleep(0.05)
    if victim := go_on.read_text(encoding="utf-8"):
        _VICTIMS[victim]()


def _is_gone(drill: dict[str, int]) -> bool:
    from millrace.adapters.apps.processes import process

    found = process(drill["pid"])
    return found is None or found.started_ticks != drill["started_ticks"]


def _kill_jvm() -> None:
    for one in _below():
        if "java" in _program(one.pid):
            os.kill(one.pid, signal.SIGKILL)


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive after SIGKILL")


def _kill_all() -> NoReturn:
    from millrace.adapters.apps.processes import AppName, apps_of, send

    mine = AppName.parse(os.environ["MILLRACE_APP"])
    others = [one for app in apps_of(_root(), lambda name: name == mine) for one in app.all if one.pid != os.getpid()]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in others:
            send(one, number)
    _die()


def _below() -> list[Any]:
    from millrace.adapters.apps.processes import descendants

    return descendants(os.getpid())


def _program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _order(point: str) -> dict[str, Any]:
    try:
        orders = json.loads((_folder() / "orders.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    epoch = int(dict(itertools.pairwise(sys.argv))["--epoch"])
    found = [one for one in orders if one["point"] == point and one.get("epoch") in (None, epoch)]
    return found[0] if found else {}


def _root() -> Path:
    return Path(os.environ["MILLRACE_ROOT"])


def _folder() -> Path:
    return _root() / "drill"


def _write(path: Path, document: dict[str, Any]) -> None:
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(document), encoding="utf-8")
    draft.replace(path)


# Mutants: what each guard is there for is seen when it is gone.


def _no_fence() -> None:
    from millrace.adapters.sinks.postgres.sink import PostgresSink

    wrap(PostgresSink, "_hold_fence", lambda original: lambda self, cursor, **how: None)


def _no_compare_and_set() -> None:
    """Every batch applies, and the record of work goes wherever the batch ends.

    Nor is it counted what arrives: a twin of the same epoch has emptied the staging that both use.
    """
    from millrace.adapters.sinks.postgres.sink import PostgresSink

    def advance(self: Any, cursor: Any, timeline: int, todo: Any) -> None:
        for entry in todo:
            cursor.execute(
                "UPDATE millrace.progress SET next_offset = %s, epoch = %s, updated_at = now() WHERE stream = %s "
                "AND timeline = %s AND topic_id = %s AND partition = %s",
                (
                    entry.next,
                    self.identity.epoch,
                    self.identity.stream,
                    timeline,
                    entry.partition.topic_id,
                    entry.partition.partition,
                ),
            )

    wrap(PostgresSink, "_ranges_to_do", lambda original: lambda self, cursor, timeline, ranges: list(ranges))
    wrap(PostgresSink, "_advance", lambda original: advance)
    wrap(PostgresSink, "_balance", lambda original: lambda *counted: None)


def _group_first() -> None:
    from millrace.runtime.stream.batch.runner import BatchRunner
    from millrace.runtime.stream.batch.sink import BatchSink

    running: list[Any] = []

    def noting_runner(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, raw: Any, batch_id: int) -> Any:
            running[:] = [self]
            return original(self, raw, batch_id)

        return noted

    def committing_group(original: Callable[..., Any]) -> Callable[..., Any]:
        def merge(self: Any, batch: Any, rows: Any, read: Any) -> Any:
            [runner] = running
            runner.group.commit(batch.ranges)
            return original(self, batch, rows, read)

        return merge

    wrap(BatchRunner, "_run", noting_runner)
    wrap(BatchSink, "merge", committing_group)


def _epoch_ignored() -> None:
    from millrace.adapters.control.streams import StreamTables
    from millrace.adapters.sinks.postgres.sink import PostgresSink

    def raise_fence(self: Any) -> bool:
        with self._transaction("raise the fence") as cursor:
            cursor.execute(
                "INSERT INTO millrace.fence (stream, epoch, instance) VALUES (%s, %s, %s) ON CONFLICT (stream) "
                "DO UPDATE SET epoch = excluded.epoch, instance = excluded.instance, raised_at = now()",
                (self.identity.stream, self.identity.epoch, self.identity.instance),
            )
        return True

    wrap(StreamTables, "claim", lambda original: lambda self, stream, epoch, instance, host: True)
    wrap(PostgresSink, "_try_raise_fence", lambda original: raise_fence)


_VICTIMS: dict[str, Callable[[], None]] = {JVM: _kill_jvm, PYTHON: _die, ALL: _kill_all}
_MUTATIONS: dict[str, Callable[[], None]] = {
    NO_FENCE: _no_fence,
    NO_COMPARE_AND_SET: _no_compare_and_set,
    GROUP_FIRST: _group_first,
    EPOCH_IGNORED: _epoch_ignored,
}
