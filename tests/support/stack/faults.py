"""Crashes in process: of all calls of one life's adapters, the n-th is the last.

A `Life` is what one process would be. It counts every call of a public method of the adapters it watches, all by one
counter, and dies at the n-th: the sockets are hung up first, so that no `finally` of the code under test reaches a
server any more, then `Crash` flies, and every later call of the same life raises it again, in whatever thread. The
servers are real, so is everything behind the watched methods.

What a server sees is what it sees of a process that is killed: a PostgreSQL connection that ends without a farewell,
its transaction open; a member of a group that says nothing more and stays listed until its session is over (a static
member does not leave when it is closed, KIP-345, and here it is closed with nothing to commit); a transactional
producer that neither commits nor aborts.

What differs from a kill:
- It is dealt between two calls of adapters or in the place of an answer, never in the middle of a call.
- `finally` runs, on what is dead; so do threads, until their next call. Files of the project are still written.
- The client's own threads are ended in order, so a record that waits in a producer is thrown away, not cut off.
- Memory and modules stay: what a process keeps in globals, the next life of a test would see.
For the first three there are children that end by `os._exit` (`dying`), and the drills' real kills.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus

from millrace.adapters.control.store import ControlStore
from millrace.adapters.kafka.member import GroupMember
from millrace.adapters.sinks.postgres.sink import PostgresSink
from millrace.errors import MillraceError, UnreachableError
from support.drills import points as drills_points
from support.waiting import joined

if TYPE_CHECKING:
    import pytest


class Crash(BaseException):
    """Here the process dies. No `except Exception` may live on."""


class Moment(Enum):
    """When a life is struck: it dies before or after its call, or lives on and is told that no server answered."""

    BEFORE = "before"
    AFTER = "after"
    ANSWER_LOST = "answer lost of"


@dataclass(frozen=True)
class Step:
    """The call at which a life was struck."""

    number: int
    moment: Moment
    call: str

    def __str__(self) -> str:
        return f"{self.moment.value} call {self.number}, {self.call}"


class Life:
    """What one process would be: its adapters' calls in their order, its sockets, and its end.

    Args:
        moment: when it is struck at its call.
        is_the_one: whether it is struck at a call, by its number, its name, and how many of that name there were;
            all count from 1.
        dying: what happens in the place of `Crash`, once the sockets are hung up: a child's `os._exit`.

    Attributes:
        calls: the names of the calls so far, `ADAPTER.METHOD`.
        struck: where it was struck.
    """

    def __init__(
        self,
        moment: Moment = Moment.AFTER,
        is_the_one: Callable[[int, str, int], bool] = lambda *_: False,
        *,
        dying: Callable[[], None] | None = None,
    ) -> None:
        self._moment = moment
        self._is_the_one = is_the_one
        self._dying = dying
        self._counting = threading.Lock()
        self._hang_ups: list[Callable[[], None]] = []
        self.calls: list[str] = []
        self.struck: Step | None = None
        self.dead = False

    def watch(
        self,
        name: str,
        adapter: Any,
        *,
        hang_up: Callable[[], None] = lambda: None,
        local: Collection[str] = (),
        blocks: Collection[str] = (),
    ) -> Any:
        """The same adapter, its calls counted.

        Args:
            name: what its calls are counted as.
            adapter: any object; its attributes and private methods stay as they are.
            hang_up: drops its sockets; may be called more than once.
            local: methods that ask no server, so that no answer of theirs can be lost.
            blocks: methods that give a context manager: entering it is the call.
        """
        self._hang_ups.append(hang_up)
        return _Watched(self, name, adapter, hang_up, frozenset(local), frozenset(blocks))

    def call(
        self, name: str, act: Callable[[], Any], *, hang_up: Callable[[], None] = lambda: None, local: bool = False
    ) -> Any:
        """Count a call and make it, unless this life dies before."""
        with self._counting:
            self.must_live()
            self.calls.append(name)
            number, of_name = len(self.calls), self.calls.count(name)
            here = self.struck is None and self._is_the_one(number, name, of_name)
            if here and not (local and self._moment is Moment.ANSWER_LOST):
                self.struck = Step(number, self._moment, name)
            else:
                here = False
        if here and self._moment is Moment.BEFORE:
            self._die()
        answer = act()
        self.must_live()  # it may have died meanwhile, in another thread
        if here and self._moment is Moment.AFTER:
            self._die()
        if here:
            hang_up()
            raise UnreachableError(f"the answer of {name} was lost", where="a test that does so on purpose")
        return answer

    def must_live(self) -> None:
        """Raise where this life is over: a dead process says and does nothing."""
        if self.dead:
            raise Crash(str(self.struck))

    def _die(self) -> None:
        self.dead = True
        if self._dying:
            self._dying()
        self.end()
        raise Crash(str(self.struck))

    def lived(self, act: Callable[[], object]) -> MillraceError | None:
        """Live it; what ended it before its end, but for its crash. Nothing of it stays."""
        try:
            act()
        except Crash:
            if not self.dead:
                raise
        except MillraceError as error:
            return error
        finally:
            self.end()
        return None

    def end(self) -> None:
        """Hang up everything, also after a life that ended in order: nothing of it may stay."""
        for hang_up in self._hang_ups:
            hang_up()


SERVERS = {"plans": "control", "streams": "control", "log": "control", "groups": "kafka", "kafka": "kafka"}


class Outage(Life):
    """A life in which a server is gone from its n-th call on: every call to it fails until this life has ended.

    What asks no server, as a runner of processes, is made.
    """

    def __init__(self, number: int) -> None:
        super().__init__(Moment.ANSWER_LOST)
        self._number = number

    def call(
        self, name: str, act: Callable[[], Any], *, hang_up: Callable[[], None] = lambda: None, local: bool = False
    ) -> Any:
        with self._counting:
            self.calls.append(name)
            if len(self.calls) == self._number and not local and self._server(name):
                self.struck = Step(self._number, Moment.ANSWER_LOST, name)
            gone = self.struck is not None and self._server(name) == self._server(self.struck.call)
        if gone:
            hang_up()
            raise UnreachableError(f"{self._server(name)} is away", where="a test that does so on purpose")
        return act()

    @staticmethod
    def _server(name: str) -> str:
        adapter = name.partition(".")[0]
        return "" if adapter == "runner" else SERVERS.get(adapter, adapter)


class _Watched:
    """An adapter whose public methods are counted. What is no method is handed through."""

    def __init__(
        self,
        life: Life,
        name: str,
        adapter: Any,
        hang_up: Callable[[], None],
        local: frozenset[str],
        blocks: frozenset[str],
    ) -> None:
        self._life, self._name, self._adapter = life, name, adapter
        self._hang_up, self._local, self._blocks = hang_up, local, blocks
        missing = [method for method in local | blocks if not callable(getattr(adapter, method, None))]
        assert not missing, f"{adapter!r} has no {missing}: mend the test"

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._adapter, method)
        if method.startswith("_") or not callable(found):
            return found
        name = f"{self._name}.{method}"

        def call(*arguments: Any, **named: Any) -> Any:
            if method in self._blocks:
                return self._block(name, found(*arguments, **named))
            return self._life.call(
                name, lambda: found(*arguments, **named), hang_up=self._hang_up, local=method in self._local
            )

        return call

    def __len__(self) -> int:
        return len(self._adapter)

    @contextmanager
    def _block(self, name: str, manager: AbstractContextManager[Any]) -> Iterator[Any]:
        try:
            entered = self._life.call(name, manager.__enter__, hang_up=self._hang_up)
            yield entered
        except BaseException:  # also where it was entered and nobody learns of that: its `finally` runs as any other
            if not manager.__exit__(*sys.exc_info()):
                raise
        else:
            manager.__exit__(None, None, None)


def crash_at(number: int, moment: Moment) -> Life:
    """A life that is struck at its n-th call, counted from 1."""
    return Life(moment, lambda nth, name, of_name: nth == number)


def crash_at_call(name: str, moment: Moment, *, occurrence: int = 1, dying: Callable[[], None] | None = None) -> Life:
    """A life that is struck at the first (or a later) call of this name."""
    return Life(moment, lambda nth, called, of_name: (called, of_name) == (name, occurrence), dying=dying)


def put_in(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """Put one of the drills' mutants into this process, until the test ends."""

    def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))

    with monkeypatch.context() as putting:
        putting.setattr(drills_points, "wrap", wrap)
        drills_points._MUTATIONS[mutant]()


def unexpected(life: Life, ended: MillraceError | None) -> list[str]:
    """How a life ended otherwise than it was struck: only a lost answer may show as an error, and only as this one."""
    if ended is None:
        return []
    told = life.struck is not None and life.struck.moment is Moment.ANSWER_LOST and isinstance(ended, UnreachableError)
    return [] if told else [f"the life ended with {type(ended).__name__}: {ended}"]


# The adapters


def hang_up(connection: psycopg.Connection[Any]) -> None:
    """End a connection as the death of its process does: the server reads the end of the stream, and no farewell.

    Another thread may use the connection. A close would free memory that this thread still reads, and the process
    would crash. So the socket ends first, and the close waits for the thread. A COPY holds no lock to wait for: its
    connection is left to the thread, which finds it broken.
    """
    with suppress(OSError, psycopg.Error):  # closed already
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
        with connection.lock:
            if connection.info.transaction_status != TransactionStatus.ACTIVE:
                connection.close()


def silence(member: GroupMember) -> None:
    """End a member's client. It sends no LeaveGroup, being static, and has nothing to commit by itself."""
    member._closing.set()
    if member._thread.ident is not None:
        joined(member._thread, what="the member's thread")
    with suppress(RuntimeError):  # closed already
        member._consumer.close()


def watched_control(life: Life, store: ControlStore) -> Any:
    """A control store, with whatever connections its pool comes to hold."""
    connections: list[psycopg.Connection[Any]] = []
    sa.event.listen(store._engine, "connect", lambda connection, _: connections.append(connection))

    def drop() -> None:
        while connections:
            hang_up(connections.pop())

    return SimpleNamespace(
        streams=life.watch("streams", store.streams, hang_up=drop, blocks=("supervising",)),
        hosts=life.watch("hosts", store.hosts, hang_up=drop),
        plans=life.watch("plans", store.plans, hang_up=drop, blocks=("running",)),
        log=life.watch("log", store.log, hang_up=drop),
        alarms=life.watch("alarms", store.alarms, hang_up=drop),
        holds=life.watch("holds", store.holds, hang_up=drop, blocks=("working",)),
        snapshots=life.watch("snapshots", store.snapshots, hang_up=drop),
    )


def watched_sink(life: Life, sink: PostgresSink) -> Any:
    def drop() -> None:
        if sink._connection is not None:
            hang_up(sink._connection)

    return life.watch("sink", sink, hang_up=drop, local=("close", "rows_writer", "bad_records_writer"))


def watched_member(life: Life, member: GroupMember) -> Any:
    watched = life.watch("member", member, local=("check", "close"))
    life._hang_ups.append(lambda: silence(member))  # only at the end: an answer is lost to a member that lives on
    return watched
