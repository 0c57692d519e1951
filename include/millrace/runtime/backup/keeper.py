"""The chains of an app's topics: taken over, left when their topic is gone, halted where nobody can go on with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby

import structlog

from millrace.adapters.archive.chain import read_on
from millrace.adapters.archive.summaries import forget_false_summaries, resume
from millrace.adapters.archive.writer import ArchiveWriter
from millrace.domain.alarms.extent import Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.manifest import Kind, ObjectEntry, PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import lost_text, tile_text
from millrace.domain.archive.proof.partition import Tile
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.domain.chain.head import LARGEST_EPOCH
from millrace.domain.groups.commits import BackupMetadata
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import ChainFencedError, Code, CorruptArchiveError, FencedError, MillraceError, UnreachableError
from millrace.runtime.backup.chains import TopicChain
from millrace.runtime.backup.expiring import Expirer
from millrace.runtime.backup.parts import Parts

log = structlog.get_logger()

GONE_AFTER = timedelta(minutes=5)


class Keeper:
    """Keeps the chain of each topic that is there. One that cannot be gone on with holds up no other.

    Args:
        parts: what it works with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._chains: dict[str, TopicChain] = {}
        self._halted: dict[Incarnation, str] = {}
        self._ended: set[Incarnation] = set()
        self._tried: set[int] = set()
        self._to_tell: list[int] = []
        self._expirer = Expirer(parts, self.append)
        self._logs: Mapping[str, ObservedLog] = {}
        self._resumed = False
        self._unclaimed: ChainFencedError | None = None

    @property
    def chains(self) -> Mapping[str, TopicChain]:
        """Those that are kept, by topic."""
        return self._chains

    @property
    def halted(self) -> Mapping[Incarnation, str]:
        """Topics that are not backed up any more, and why."""
        return self._halted

    def attend(self, logs: Mapping[str, ObservedLog]) -> None:
        """Have the chain of every topic that is there, and take for known in them what people ask for.

        Raises:
            FencedError: a newer epoch writes a chain.
            UnreachableError: broker or store do not answer.
        """
        asked = self._parts.asked()
        for one in asked:  # what was halted is tried again, once for each
            if one.identity not in self._tried and one.incarnation in self._halted:
                del self._halted[one.incarnation]
        self._tried |= {one.identity for one in asked if one.identity is not None}
        for topic, found in logs.items():
            self._attend(topic, found, asked)
        self._stop_where_a_start_was_too_low()
        for here, group in groupby(sorted(asked, key=lambda one: one.incarnation), key=lambda one: one.incarnation):
            if here.topic in logs and here not in self._halted:
                with self.halting(here):
                    self._acknowledge(here, logs[here.topic], list(group))
        self._logs = logs

    def has_seen(self, chain: TopicChain) -> bool:
        """Return whether the last look told of a chain's topic. If not, all that was known stays as it is."""
        return self.is_seen(chain.here)

    def is_seen(self, here: Incarnation) -> bool:
        """Return whether the last look told of a topic: that it is there, or that it is gone."""
        return here.topic in self._logs

    def expire(self) -> None:
        """Let expire what people ask for; called when all else of a round is done.

        Raises:
            FencedError: a newer epoch writes a chain.
        """
        self._expirer.expire(self._parts.expiries(), self)

    def is_halted(self, here: Incarnation) -> bool:
        """Whether nobody can go on with a chain now."""
        return here in self._halted

    def is_kept(self, here: Incarnation) -> bool:
        """Whether the chain is of a topic that is there."""
        return (chain := self._chains.get(here.topic)) is not None and chain.here == here

    def chain_of(self, here: Incarnation) -> TopicChain | None:
        """A chain, taken over, also of a topic that is gone; None where there is none, or nobody can go on with it.

        Raises:
            UnreachableError: broker or store do not answer.
        """
        return self._chain(here, self._logs[here.topic]) if here.topic in self._logs else None

    def tell_taken(self) -> None:
        """Say what was taken for known, now that group and chain will not forget it."""
        self._expirer.tell()
        while self._to_tell:
            try:
                self._parts.taken(self._to_tell[0])
            except MillraceError as error:  # it is taken once more then, which changes nothing
                log.warning("not_told", error=str(error))
                return
            del self._to_tell[0]

    def _acknowledge(self, here: Incarnation, found: ObservedLog, asked: Sequence[Acknowledgement]) -> None:
        """Write into a chain what people know of it, also into that of a topic that is gone."""
        known = max((one.sequence for one in asked if one.sequence is not None), default=-1)
        chain = self._chain(here, found, known)
        for one in asked:
            if one.identity is None or one.identity in self._to_tell:
                continue
            is_for_the_chain = one.span is not None and not one.fault
            if is_for_the_chain and (here in self._halted or (chain is not None and _must_wait(one, chain))):
                continue  # nobody can write it down now
            if one.span is not None and is_for_the_chain and chain is not None:
                try:
                    self.append(  # by the chain's last look: an older one would show a log that ends too early
                        chain, Kind.ACKNOWLEDGEMENT, chain.log, acknowledged=[one.span], by=one.by, reason=one.reason
                    )
                except ValueError as error:  # of a partition that the topic never had
                    log.error("not_acknowledged", topic=here.topic, span=str(one.span), error=str(error))
            log.warning("acknowledged", topic=here.topic, span=str(one.span), sequence=one.sequence, by=one.by)
            self._to_tell.append(one.identity)
        if chain is not None:
            self.tell_lost(chain, chain.losses(chain.log))

    def _chain(self, here: Incarnation, found: ObservedLog, known: int = -1) -> TopicChain | None:
        """A chain that is kept, or that of a topic that is gone; manifests up to `known` may be missing."""
        chain = self._chains.get(here.topic)
        return chain if chain is not None and chain.here == here else self._former(here, found, known)

    @contextmanager
    def halting(self, here: Incarnation) -> Iterator[None]:
        """Halt a topic whose chain turns out to be damaged or another writer's; the others are archived.

        Raises:
            FencedError: another instance of the app took over.
        """
        try:
            yield
        except CorruptArchiveError as error:
            self.halt(here, str(error))
        except ChainFencedError as error:
            self.meet_fence(here, error)

    def meet_fence(self, here: Incarnation, error: ChainFencedError) -> bool:
        """Raise the fence where another instance claimed its epoch; halt the topic where nobody did.

        Without an answer the chain is left: the next round reads it again, and asks again.

        Returns:
            Whether there was an answer.

        Raises:
            FencedError: another instance of the app took over.
        """
        if self.is_kept(here):
            del self._chains[here.topic]
        try:
            claimed_by = self._parts.claimed(error.epoch)
        except UnreachableError as unknown:
            log.warning("fence_not_judged", topic=here.topic, epoch=error.epoch, error=unknown.what)
            return False
        if claimed_by is not None and claimed_by != self._parts.writer.instance:
            raise error
        self._unclaimed = error
        app, mine = self._parts.app.qualified_name, self._parts.writer.epoch
        start = f"`millrace streams stop {app} --reason TEXT`, then `start`: a start resumes above it"
        self.halt(
            here,
            f"the chain has a manifest of epoch {error.epoch}, instance {error.instance}, that no start claimed; "
            f"this is epoch {mine}; new records of the topic are not archived\n"
            f"  next: find out who else writes to {here.manifests} "
            + (f"and stop it; {start}" if error.epoch <= LARGEST_EPOCH else "and remove manual changes"),
            fault="unclaimed epoch",
        )
        return True

    def _stop_where_a_start_was_too_low(self) -> None:
        """End an app that could resume no chain at all: its start could not ask the bucket, and the next one can.

        A chain that begins with this app does not count until each topic has one: others may be silent at first, or
        wait for the control database's verdict.

        Raises:
            FencedError: this app has met nothing but chains of newer epochs that nobody claimed.
        """
        found = self._unclaimed
        self._resumed |= found is None and len(self._chains) == len(self._parts.app.reads)
        if found is not None and not self._resumed and self._parts.writer.epoch <= found.epoch <= LARGEST_EPOCH:
            raise found

    def _former(self, here: Incarnation, found: ObservedLog, known: int = -1) -> TopicChain | None:
        """The chain of a topic that is gone, taken over; None where there is none, or nobody can go on with it."""
        try:
            tiling = resume(self._parts.store, here)
            read_on(self._parts.store, tiling)
            if known >= 0:
                forget_false_summaries(self._parts.store, tiling, known)
            return self._begin(tiling, found) if tiling.head.sequence >= 0 else None
        except CorruptArchiveError as error:
            self.halt(here, str(error))
            return None
        except FencedError as error:  # by another app's, or by this one's newer epoch, which ends this one elsewhere
            log.error("not_gone_on_with", topic=here.topic, topic_id=here.topic_id, why=str(error))
            self._halted[here] = str(error)
            return None

    def _attend(self, topic: str, found: ObservedLog, asked: Sequence[Acknowledgement]) -> None:
        """Have the chain of the topic that has this name now, or say why there is none."""
        chain = self._chains.get(topic)
        here = Incarnation(topic, found.topic_id) if found.topic_id else None
        about = chain.here if chain else here
        try:
            if chain is not None and chain.writer.unsettled:
                self._parts.step(f"read the chain of {topic} on")
                chain.writer.settle()
            if chain is not None and chain.here != here:
                self._leave(chain, found)
            if here is None or here in self._halted:
                return
            about = here
            if topic not in self._chains:
                self._chains[topic] = self._take_over(here, found, asked)
                found = self._chains[topic].log
            self._chains[topic].saw(found)
        except CorruptArchiveError as error:
            assert about is not None
            self.halt(about, str(error))
        except ChainFencedError as error:
            assert about is not None
            self.meet_fence(about, error)

    def _take_over(self, here: Incarnation, found: ObservedLog, asked: Sequence[Acknowledgement]) -> TopicChain:
        """Begin this epoch in a chain, unless the group's commits know of manifests that the chain does not have.

        The commits are read before the chain: an older epoch may still write, and each commit follows its manifest.

        Raises:
            CorruptArchiveError: it was cut off, or cannot be read.
        """
        self._parts.step(f"read the chain of {here.topic}")
        commits = self._commits(here, found)
        tiling = resume(self._parts.store, here)
        read_on(self._parts.store, tiling)
        known = [one.sequence for one in asked if one.incarnation == here and one.sequence is not None]
        if known:
            forget_false_summaries(self._parts.store, tiling, max(known))
        for said in commits:
            if said.topic_id == here.topic_id:
                if said.sequence > max(known, default=-1):
                    _check_not_cut_off(tiling, said)
            elif tiling.head.sequence < 0 and (former := Incarnation(here.topic, said.topic_id)) not in self._ended:
                self._end(former, found)
        return self._begin(tiling, found)

    def _begin(self, tiling: Tiling, found: ObservedLog) -> TopicChain:
        """Take a chain over. What counts from then on is the takeover's own look, made after the head was read.

        By an older one all that another epoch archived in between would lie beyond the log, as after an election.
        """
        here, looks = tiling.incarnation, [found]
        resumes = tiling.head.sequence >= 0

        def look() -> ObservedLog:
            seen = self._parts.look([here.topic])
            if here.topic not in seen.logs:
                raise UnreachableError(
                    "the topic no longer answers", where=seen.silent[here.topic], code=Code.KAFKA_UNREACHABLE
                )
            looks.append(seen.logs[here.topic])
            return looks[-1]

        self._parts.step(f"take over the chain of {here.topic}")
        writer = ArchiveWriter.take_over(self._parts.store, tiling, self._parts.writer, look)
        self._resumed |= resumes
        self._parts.breach(AlarmKind.BACKUP_HALTED, str(here), None)
        log.info("chain_taken_over", topic=here.topic, topic_id=here.topic_id, sequence=tiling.head.sequence)
        return TopicChain(writer, looks[-1])

    def _commits(self, here: Incarnation, found: ObservedLog) -> list[BackupMetadata]:
        """What the group's commits say of the topic's chains, as far as they are of this app; the last of each."""
        partitions = [TopicPartition(here.topic, here.topic_id, number) for number in range(found.partitions)]
        commits = [BackupMetadata.decode(commit.metadata) for commit in self._parts.committed(partitions).values()]
        own = [said for said in commits if said is not None and said.app == self._parts.app.qualified_name]
        last = {said.topic_id: said for said in sorted(own, key=lambda said: said.sequence)}
        return list(last.values())

    def _end(self, former: Incarnation, found: ObservedLog) -> None:
        """End the chain of a topic that was deleted while nobody looked."""
        chain = self._former(former, found)
        if chain is None:
            return
        try:
            self._leave(chain, found)
        except CorruptArchiveError as error:
            self.halt(former, str(error))
        except ChainFencedError as error:
            if not self.meet_fence(former, error):
                raise  # its successor waits too, so that the end of this chain is not forgotten

    def halt(self, here: Incarnation, why: str, fault: str = "corrupt") -> None:
        """Keep a chain no longer, and open an alarm with this fault."""
        log.error("halted", topic=here.topic, topic_id=here.topic_id, why=why)
        self._halted[here] = why
        if (chain := self._chains.get(here.topic)) and chain.here == here:
            del self._chains[here.topic]
        self._parts.breach(AlarmKind.BACKUP_HALTED, str(here), why, Extent(fault=fault))

    def _leave(self, chain: TopicChain, found: ObservedLog) -> None:
        """End a chain whose topic is gone: what was last seen of it, then that it is gone.

        A topic that only has no name now may be one that no broker tells of yet: its chain waits.
        """
        if chain.is_there and not chain.knows(chain.log):
            self.append(chain, Kind.LOOK, chain.log)
        chain.log = found
        if found.topic_id is None:
            chain.absent_since = chain.absent_since or found.at
            if found.at - chain.absent_since >= GONE_AFTER:  # what of it was not read is lost, unless it comes back
                self.tell_lost(chain, chain.losses(found))
            return
        self.append(chain, Kind.LOOK, found)
        log.warning("recreated", topic=chain.here.topic, was=chain.here.topic_id, now=found.topic_id)
        self.tell_lost(chain, chain.losses(found))
        self._ended.add(chain.here)
        self._chains.pop(chain.here.topic, None)

    def diverge(self, chain: TopicChain, seen: ObservedLog, tiles: Iterable[Tile]) -> None:
        """Write the look down that showed it, before the log grows and shows nothing any more; then halt."""
        self.append(chain, Kind.LOOK, seen)
        what = ", ".join(tile_text(chain.here.topic, tile) for tile in tiles)
        why = f"the log ends before archived offsets ({what}): an unclean election cut it off"
        self.halt(chain.here, why, "diverged")

    def tell_lost(self, chain: TopicChain, found: Iterable[Tile]) -> None:
        """Say what a chain has lost, where that was not said before.

        What a former epoch has told stays told until every partition answers.
        """
        tiles = set(found)
        if chain.told is None and not tiles and not chain.has_all_bounds:
            return
        fresh = tiles - (chain.told or set())
        for tile in sorted(fresh, key=lambda one: (one.partition, one.first)):
            log.error(
                "lost",
                topic=chain.here.topic,
                partition=tile.partition,
                first=tile.first,
                next=tile.next,
                cause=tile.cause.value,
            )
        if tiles != chain.told:
            chain.told = tiles
            extent = Extent(sum(tile.next - tile.first for tile in tiles))
            self._parts.breach(
                AlarmKind.BACKUP_LOST, str(chain.here), lost_text(chain.here.topic, tiles) if tiles else None, extent
            )

    def append(
        self,
        chain: TopicChain,
        kind: Kind,
        seen: ObservedLog,
        *,
        objects: Sequence[ObjectEntry] = (),
        acknowledged: Sequence[PartitionSpan] = (),
        by: str = "",
        reason: str = "",
    ) -> None:
        """Write a chain's next manifest; the group is to be told of it.

        Raises:
            FencedError, ObjectExistsError, UnreachableError: as `ArchiveWriter.append` says.
        """
        chain.committed = False
        chain.writer.append(kind, seen, objects=objects, acknowledged=acknowledged, by=by, reason=reason)


def _must_wait(one: Acknowledgement, chain: TopicChain) -> bool:
    """Return whether only the log could tell what is acknowledged, and its leader gave no answer."""
    if one.span is None or not chain.is_there or one.span.partition not in chain.silent:
        return False
    state = chain.tiling.partitions.get(one.span.partition)
    return state is None or one.span.next > state.next


def _check_not_cut_off(tiling: Tiling, said: BackupMetadata) -> None:
    """Raise CorruptArchiveError where a chain is not the one that a commit of this app knows of."""
    head = tiling.head
    changed = said.sequence == head.sequence and said.sha256 != head.sha256
    if said.sequence > head.sequence or changed:
        what = "has other bytes now" if changed else f"ends at manifest {head.sequence}"
        raise CorruptArchiveError(
            f"the group's commits name manifest {said.sequence}, but the chain {what}",
            where=tiling.incarnation.manifests,
            next_step="find out who deleted or changed manifests; Millrace writes nothing in their place",
        )
