"""Objects that an archive needs no more: found by its whole chain, and deleted a thousand at a time.

Deleted is only what lies wholly below the chain's end. No later manifest can name anything there: the objects of a
partition follow one another in a chain, and one that overlaps with those before it brings nothing (`Tiling.add`).
What no manifest names goes only where the chain has the same offsets otherwise: of what is lost it may be all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice

from millrace.adapters.archive.audits.inspection import inspect
from millrace.adapters.chain.documents import sha256_of
from millrace.domain.archive.expiry import Collectable, Deleted, DuePart, ExpiringTiling
from millrace.domain.archive.manifest import Manifest, ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectInfo, ObjectStore

AT_ONCE = 1_000


class Collector:
    """Finds and deletes what an archive needs no more.

    Args:
        store: where it lies.
        look: asks for a topic and its log.
    """

    def __init__(self, store: ObjectStore, look: Callable[[str], ObservedLog]) -> None:
        self._store = store
        self._look = look

    def look(self, here: Incarnation, keep: timedelta | None, now: datetime, grace: timedelta) -> Collectable:
        """Read an archive's chain from its beginning, and list its objects.

        Args:
            here: whose archive.
            keep: for how long at least what is archived is kept; None: for ever.
            now: the present.
            grace: for how long what expired stays.

        Raises:
            UnreachableError: store or broker do not answer.
        """
        tiling, due = ExpiringTiling(here, now - grace), DuePart(keep, now)

        def see(entry: ObjectEntry, manifest: Manifest) -> bool:
            due.see(entry, manifest)
            return False

        found = inspect(self._store, tiling, lambda: self._look(here.topic), picks=see)
        return Collectable(tiling, found.coverage.problems, found.orphans, due, tiling.expired_before)

    def delete_expired(self, seen: Collectable, older_than: datetime, begin: Callable[[], None] | None) -> Deleted:
        """Delete objects of ranges that the chain let expire longer than the grace ago, and what else lies in these.

        Args:
            seen: what `look` found.
            older_than: nothing that was written since is deleted.
            begin: called before the first is deleted; None: none is, they are only counted.

        Raises:
            CorruptArchiveError: the chain's head is another one by now.
            UnreachableError: the store does not answer; some may be deleted.
        """
        return self._delete(seen.tiling, self._expired(seen), older_than, begin)

    def delete_orphans(self, seen: Collectable, older_than: datetime, begin: Callable[[], None] | None) -> Deleted:
        """The same with objects that no manifest names nor will: of those that were found, the first thousand."""
        return self._delete(seen.tiling, self._orphans(seen), older_than, begin)

    def _expired(self, seen: Collectable) -> Iterator[ObjectInfo]:
        here = seen.tiling.incarnation
        for number, expired in sorted(seen.expired.items()):
            end = max((next_ for _, next_ in expired), default=0)
            for info in self._store.list(here.partition(number)) if end else ():
                name = here.object_name(info.key)
                if name is None:
                    continue  # a foreign object: for a person to move
                if name.first >= end:
                    break
                if not any(expired.outside(name.first, name.next)):
                    yield info

    def _orphans(self, seen: Collectable) -> Iterator[ObjectInfo]:
        for stray in seen.orphans.found if not seen.problems.total else ():
            name = seen.tiling.incarnation.object_name(stray.key)
            state = seen.tiling.partitions.get(name.partition) if name else None
            elsewhere = name is not None and state is not None and state.has_archived(name.first, name.next)
            if elsewhere and (info := self._store.head(stray.key)) is not None:
                yield info

    def _delete(
        self, tiling: Tiling, infos: Iterable[ObjectInfo], older_than: datetime, begin: Callable[[], None] | None
    ) -> Deleted:
        done = Deleted()
        old = (info for info in infos if _is_older(info, older_than) or done.leave_young())
        while batch := list(islice(old, AT_ONCE)):
            if begin is None:
                done.count(len(batch), sum(info.size_bytes for info in batch))
                continue
            if not done.objects + done.kept:
                begin()
            self._check_head(tiling)
            refused = self._store.delete([info.key for info in batch])
            gone = [info for info in batch if info.key not in refused]
            done.count(len(gone), sum(info.size_bytes for info in gone), refused)
        return done

    def _check_head(self, tiling: Tiling) -> None:
        key = tiling.incarnation.manifest_key(tiling.head.sequence)
        data = self._store.get(key)
        if data is None or sha256_of(data) != tiling.head.sha256:
            raise CorruptArchiveError(
                f"the chain's last manifest, {tiling.head.sequence}, "
                f"{'is missing' if data is None else 'has other bytes'} since the chain was read",
                where=key,
                next_step="run `millrace backup audit --deep` to find the fault; no more objects are deleted",
            )


def _is_older(info: ObjectInfo, than: datetime) -> bool:
    """Whether an object was written before; one of which the store does not say when is none."""
    return info.modified_at is not None and info.modified_at < than
