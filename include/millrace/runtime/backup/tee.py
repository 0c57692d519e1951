"""The loop of a backup: look at topics and chains, copy what is due, look again, write manifests, commit the group.

The chains are the only truth. What is copied and stands in no manifest was not done; what a commit says is for people,
and for whoever wants to know whether a chain was cut off. So a round may end anywhere, and the next begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from millrace.adapters.archive.cutting import Copied
from millrace.domain.archive.chain import Diverged, Recreated, next_ranges
from millrace.domain.archive.manifest import Kind, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.pace import MOST_HOLES, Read, Waiting, due
from millrace.domain.archive.proof.tiling import ObservedLog
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import DataLossError, MillraceError, PartFailedError, RefusedError
from millrace.runtime.backup.chains import LONG_AGO, TopicChain
from millrace.runtime.backup.keeper import Keeper
from millrace.runtime.backup.parts import Parts
from millrace.runtime.life.step_times import StepTimes

log = structlog.get_logger()

MANIFEST_HOLES = 10 * MOST_HOLES
MANIFEST_OBJECTS = 1_000


@dataclass(slots=True)
class Round:
    """What one round did: for people.

    Attributes:
        records, bytes, objects: what was archived; bytes are those of the objects.
        waiting: offsets that are in a log and not archived; `behind`: some of it is due at once.
        positions: how far each partition is archived.
        seconds: of each step: look, copy, look again, write manifests, commit.
        failure: why some of what was due was not archived; the rest was.
        silent: why topics and partitions gave no answer; they wait, the rest was archived.
    """

    records: int = 0
    bytes: int = 0
    objects: int = 0
    waiting: int = 0
    behind: bool = False
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    failure: MillraceError | None = None
    silent: Mapping[str, str] = field(default_factory=dict)


class Tee:
    """Copies every record of an app's topics to the archive, round by round.

    A topic with a broken chain is halted and named in an alarm; the others are archived. A topic or partition without
    an answer waits: nothing is written of it, neither that it is empty nor that anything is lost.

    Guarantees: a manifest names only objects whose ranges were read wholly while the log, looked at afterwards, still
    was the same topic's; what was lost, it says.

    Args:
        parts: what it works with.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._keeper = Keeper(parts)
        self._silent: dict[str, str] | None = None  # in the present round; None before the first look
        self._backups = {topic.name: topic.backup for topic in parts.app.topics if topic.backup is not None}

    @property
    def halted(self) -> Mapping[Incarnation, str]:
        """Topics that are not backed up any more, and why."""
        return dict(self._keeper.halted)

    @property
    def silent(self) -> Mapping[str, str] | None:
        """Why topics and partitions gave the last looks no answer, also where the round failed; None before a look.

        A round that no broker answers leaves this as it was.
        """
        return None if self._silent is None else dict(self._silent)

    def round(self) -> Round:
        """Do what is due now. Whatever it raises, the next round begins anew.

        Raises:
            FencedError: a newer epoch writes a chain.
            UnreachableError: no broker answers, or the store does not.
        """
        times = StepTimes()
        done = Round()
        self._keeper.attend(self.look())
        waiting = list(self._waiting())
        done.waiting = sum(len(entry.range) for entry in waiting)
        reads, more = due(waiting, self._backups, self._parts.clock())
        times.end("plan")
        copied, failure = self._copy(reads)
        times.end("copy")
        self._step("look again")
        logs = self._look({entry.read.partition.topic for entry in copied}) if copied else {}
        times.end("check")
        for topic, found in logs.items():
            of_topic = [entry for entry in copied if entry.read.partition.topic == topic]
            here = self._keeper.chains[topic].here
            with self._keeper.halting(here):
                try:
                    self._archive(topic, found, of_topic, done)
                except ValueError as error:  # what would come next cannot be
                    self._keeper.halt(here, str(error))
        self._keeper.expire()
        times.end("merge")
        self._commit()
        times.end("group")
        done.seconds = times.steps
        done.behind = more or any(entry.next < entry.read.range.next for entry in copied)
        done.positions = {
            chain.partition(number): state.next
            for chain in self._keeper.chains.values()
            for number, state in chain.tiling.partitions.items()
        }
        done.failure = failure
        done.silent = self.silent or {}
        return done

    def look(self) -> Mapping[str, ObservedLog]:
        """Look at all topics; `silent` then says what gives no answer.

        Raises:
            UnreachableError: no broker answers.
        """
        self._step("look at the topics")
        seen = self._parts.look(self._parts.app.reads)
        self._silent = dict(seen.silent)
        return seen.logs

    def _look(self, topics: Collection[str]) -> Mapping[str, ObservedLog]:
        """Look at topics; what gives no answer is noted for the round."""
        seen = self._parts.look(topics)
        self._silent = {**(self._silent or {}), **seen.silent}
        return seen.logs

    def _step(self, text: str) -> None:
        self._parts.step(text)

    def _waiting(self) -> Iterator[Waiting]:
        """What of all topics waits; what is lost is told, and chains that diverged are halted."""
        for chain in list(self._keeper.chains.values()):
            if chain.is_there and self._keeper.has_seen(chain):
                found: list[Waiting] = []
                with self._keeper.halting(chain.here):
                    found = list(self._waiting_of(chain))
                yield from found

    def _waiting_of(self, chain: TopicChain) -> Iterator[Waiting]:
        found = next_ranges(chain.tiling, chain.log)
        if isinstance(found, Diverged):
            self._keeper.diverge(chain, chain.log, found.tiles)
        elif not isinstance(found, Recreated):
            if fresh := [tile for tile in found.lost if tile not in chain.noted]:
                self._keeper.append(chain, Kind.LOOK, chain.log)
                chain.noted.update(fresh)
                chain.since.update((tile.partition, LONG_AGO) for tile in fresh)
            self._keeper.tell_lost(chain, chain.losses(chain.log))
            yield from chain.waiting(found.read)

    def _copy(self, reads: Sequence[Read]) -> tuple[list[Copied], MillraceError | None]:
        """Copy; where that fails, each half by itself, so that in the end one partition holds up no other."""
        if not reads:
            return [], None
        self._step(f"copy {sum(len(read.range) for read in reads):,} offsets of {len(reads)} partitions")
        try:
            return list(self._parts.copier.copy(reads)), None
        except (DataLossError, PartFailedError, RefusedError) as error:
            log.warning("not_read", ranges=", ".join(str(read.range) for read in reads[:5]), error=str(error))
            if len(reads) == 1:
                return [], error
        logs = self._look({read.partition.topic for read in reads})  # where no broker answers the round ends here
        if len(answered := [read for read in reads if _is_answered(read, logs)]) < len(reads):
            return self._copy(answered)
        places = sorted(reads, key=lambda read: (read.partition.topic, read.partition.partition))
        middle = len(places) // 2
        copied, failure = self._copy(places[:middle])
        more, failed = self._copy(places[middle:])
        return copied + more, failure or failed

    def _archive(self, topic: str, found: ObservedLog, copied: Sequence[Copied], done: Round) -> None:
        """Name what was copied of a topic in manifests, as far as the log, looked at now, bears it out."""
        chain = self._keeper.chains[topic]
        if found.topic_id != chain.here.topic_id:
            log.warning("not_archived", topic=topic, why="the topic was deleted or made anew while it was read")
            return
        planned_at = chain.log.at
        if isinstance(ranges := next_ranges(chain.tiling, found), Diverged):
            self._keeper.diverge(chain, found, ranges.tiles)
            return
        borne_out = [entry for entry in copied if _is_borne_out(entry, found)]
        if len(borne_out) < len(copied):
            log.warning(
                "not_archived", topic=topic, why="partitions have no leader, or end before what was read of them"
            )
        for number, part in enumerate(_in_manifests(borne_out)):
            if number:  # each manifest has a look of its own, or holes would seem to have been looked at late
                later = self._look([topic]).get(topic)
                if later is None or later.topic_id != chain.here.topic_id or not _has_bounds(later, part):
                    break
                found = later
            self._step(f"write manifest {chain.tiling.head.sequence + 1} of {topic}")
            self._keeper.append(chain, Kind.DATA, found, objects=part)
            done.records += sum(entry.count for entry in part)
            done.bytes += sum(entry.size_bytes for entry in part)
            done.objects += len(part)
        for entry in borne_out:
            chain.wrote(entry, planned_at)
        chain.saw(found)
        self._keeper.tell_lost(chain, chain.losses(found))

    def _commit(self) -> None:
        """Tell the group of every chain that has grown, and of each that was taken over, whatever it said before."""
        behind = [
            chain
            for chain in self._keeper.chains.values()
            if chain.is_there and self._keeper.has_seen(chain) and not chain.committed
        ]
        app, epoch = self._parts.app.qualified_name, self._parts.writer.epoch
        commits = {p: commit for chain in behind for p, commit in chain.commits(app, epoch).items()}
        if commits:
            self._step("commit the group")
            self._parts.commit(commits)
        for chain in behind:
            chain.committed = True
        self._keeper.tell_taken()


def _is_answered(read: Read, logs: Mapping[str, ObservedLog]) -> bool:
    """Return whether the leader of a range answered a look. A topic that is gone did: a read shows that it is gone."""
    log = logs.get(read.partition.topic)
    return log is not None and (log.topic_id is None or read.partition.partition in log.bounds)


def _has_bounds(log: ObservedLog, entries: Sequence[ObjectEntry]) -> bool:
    return all(entry.partition in log.bounds for entry in entries)


def _is_borne_out(copied: Copied, found: ObservedLog) -> bool:
    """Return whether the log has a leader after the read, and reaches as far as was copied."""
    bounds = found.bounds.get(copied.read.partition.partition)
    return bounds is not None and copied.next <= bounds.end


def _in_manifests(copied: Sequence[Copied]) -> Iterator[list[ObjectEntry]]:
    """All objects, as few to a manifest that it stays small: with their holes some megabytes at most."""
    part: list[ObjectEntry] = []
    holes = 0
    for entry in sorted((entry for each in copied for entry in each.entries), key=lambda e: (e.partition, e.first)):
        if part and (len(part) >= MANIFEST_OBJECTS or holes + len(entry.holes) > MANIFEST_HOLES):
            yield part
            part, holes = [], 0
        part.append(entry)
        holes += len(entry.holes)
    if part:
        yield part
