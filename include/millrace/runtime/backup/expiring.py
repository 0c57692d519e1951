"""What is no longer kept, written into the chains in portions: no round takes long, and no manifest gets large."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from millrace.adapters.chain.documents import decode
from millrace.adapters.chain.links import links
from millrace.domain.archive.expiry import Done, Expiry, expired_to, is_due
from millrace.domain.archive.manifest import Kind, Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import Tiling
from millrace.errors import ChainFencedError, CorruptArchiveError, MillraceError
from millrace.runtime.backup.chains import TopicChain
from millrace.runtime.backup.parts import Parts

log = structlog.get_logger()

READ_A_ROUND = 1_000
SECONDS_A_ROUND = 5.0
MOST_OBJECTS = 1_000
MOST_HOLES = 10_000


@dataclass(frozen=True, slots=True)
class Portion:
    """What expires next, up to and with manifest `reached`. `fault`: why it is the last, though more is due."""

    entries: tuple[ObjectEntry, ...]
    reached: int
    is_last: bool
    read: int
    fault: str = ""


class Chains(Protocol):
    """The chains of an app (`Keeper`)."""

    def is_halted(self, here: Incarnation) -> bool:
        """Whether nobody can go on with a chain now."""
        ...

    def is_kept(self, here: Incarnation) -> bool:
        """Whether the chain is of a topic that is there."""
        ...

    def is_seen(self, here: Incarnation) -> bool:
        """Whether the last look told of a topic."""
        ...

    def chain_of(self, here: Incarnation) -> TopicChain | None:
        """A chain, taken over; None where there is none."""
        ...

    def halt(self, here: Incarnation, why: str) -> None:
        """Keep a chain no longer, and say so."""
        ...

    def meet_fence(self, here: Incarnation, error: ChainFencedError) -> bool:
        """Raise the fence where another instance claimed its epoch; halt the topic where nobody did."""
        ...


class Expirer:
    """Lets objects expire as people asked for it, and as far as the declaration says that they may go.

    Nothing is remembered that the chain does not say: an epoch that begins anew goes on where the chain ends.

    Args:
        parts: what it works with.
        append: writes a chain's next manifest (`Keeper.append`).
        seconds: of the machine's monotonic clock.
    """

    def __init__(
        self, parts: Parts, append: Callable[..., None], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._parts = parts
        self._append = append
        self._keep = {topic.name: topic.backup.keep for topic in parts.app.topics if topic.backup is not None}
        self._reached: dict[int, int] = {}
        self._to_tell: dict[int, Done] = {}
        self._last = -1

    def expire(self, asked: Sequence[Expiry], chains: Chains) -> None:
        """Write the next portion of each expiry that was asked for, as many as fit into a round.

        Nothing of it ends a round, but that a newer epoch writes a chain that this one keeps: expiring waits, archiving
        does not.

        Args:
            asked: the oldest first.
            chains: the chains of the app.

        Raises:
            FencedError: a newer epoch writes a chain that is kept.
        """
        left, end = READ_A_ROUND, self._seconds() + SECONDS_A_ROUND
        for one in _in_turn(asked, self._last):
            if left <= 0 or self._seconds() >= end:
                return
            if one.identity is None or one.identity in self._to_tell:
                continue
            self._last = one.identity
            try:
                left -= self._expire(one, one.identity, chains, left)
            except MillraceError as error:
                if isinstance(error, ChainFencedError) and chains.is_kept(one.incarnation):
                    chains.meet_fence(one.incarnation, error)
                if isinstance(error, CorruptArchiveError):
                    chains.halt(one.incarnation, str(error))
                log.warning("not_expired", topic=str(one.incarnation), why=str(error))

    def _expire(self, one: Expiry, identity: int, chains: Chains, most_read: int) -> int:
        if chains.is_halted(one.incarnation):
            return 1  # until somebody has seen to it
        if one.incarnation.topic in self._keep and not chains.is_seen(one.incarnation):
            return 1  # until the brokers tell of the topic again
        chain = chains.chain_of(one.incarnation) if one.incarnation.topic in self._keep else None
        if chain is None:
            if not chains.is_halted(one.incarnation):
                self._refuse(one, identity, "the app keeps no such chain")
            return 1
        if chain.tiling.problems.total:  # what the chain says is not what it should be: nothing is let go by it
            self._refuse(one, identity, f"the chain has a fault: {chain.tiling.problems.found[0]}")
            return 1
        self._parts.step(f"let expire what {one.incarnation.topic} need not keep")
        portion = self._portion(one, identity, chain.tiling, most_read)
        if portion.entries:
            self._append(chain, Kind.EXPIRY, chain.log, objects=portion.entries, by=one.by, reason=one.reason)
            log.info("expired", topic=str(one.incarnation), objects=len(portion.entries), to=portion.reached)
        self._reached[identity] = portion.reached
        if portion.is_last:
            self._to_tell[identity] = Done(portion.reached, portion.fault)
        return portion.read

    def _refuse(self, one: Expiry, identity: int, why: str) -> None:
        log.error("not_expired", topic=str(one.incarnation), why=why)
        self._to_tell[identity] = Done(-1, why)

    def tell(self) -> None:
        """Say what was done, now that group and chain will not forget it."""
        for identity, done in list(self._to_tell.items()):
            try:
                self._parts.expired(identity, done)
            except MillraceError as error:  # it is looked at once more then, which changes nothing
                log.warning("not_told", error=str(error))
                return
            del self._to_tell[identity]
            self._reached.pop(identity, None)

    def _portion(self, one: Expiry, identity: int, tiling: Tiling, most_read: int) -> Portion:
        here, keep, now = tiling.incarnation, self._keep.get(one.incarnation.topic), self._parts.clock()
        last = min(one.sequence, tiling.head.sequence)
        if identity not in self._reached:
            self._reached[identity] = expired_to(lambda number: self._read(tiling, number), tiling, last)
        reached, read, holes = self._reached[identity], 0, 0
        entries: list[ObjectEntry] = []
        for link in links(self._parts.store, here, reached):
            if link.sequence > last or read >= most_read:
                break
            manifest = None if link.data is None else _decoded(tiling, link.sequence, link.data)
            if manifest is None:
                return Portion(tuple(entries), reached, True, read + 1, f"manifest {link.sequence} cannot be read")
            if manifest.kind is Kind.DATA:
                if not is_due(manifest, keep, now):
                    return Portion(tuple(entries), reached, True, read)
                fresh = [entry for entry in manifest.objects if not tiling.expiry_fault(entry)]
                holes += sum(len(entry.holes) for entry in fresh)
                if entries and (len(entries) + len(fresh) > MOST_OBJECTS or holes > MOST_HOLES):
                    break
                entries += fresh
            reached, read = link.sequence, read + 1
        return Portion(tuple(entries), reached, reached >= last, max(1, read))

    def _read(self, tiling: Tiling, number: int) -> Manifest | None:
        data = self._parts.store.get(tiling.incarnation.manifest_key(number))
        return None if data is None else _decoded(tiling, number, data)


def _in_turn(asked: Sequence[Expiry], last: int) -> list[Expiry]:
    """Those behind the one that had its turn last, then the others: one that cannot be done holds up no other."""
    return sorted(asked, key=lambda one: ((one.identity or 0) <= last, one.identity or 0))


def _decoded(tiling: Tiling, number: int, data: bytes) -> Manifest | None:
    """The manifest of a number; None where these are not its bytes."""
    try:
        manifest = decode(data, Manifest, tiling.incarnation.manifest_key(number))
    except CorruptArchiveError:
        return None
    return manifest if (manifest.incarnation, manifest.sequence) == (tiling.incarnation, number) else None
