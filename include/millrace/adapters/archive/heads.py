"""The newest epoch that chains name: a start of their app begins above it.

Only the end of each chain is read. A start waits for it, so nothing here walks a chain.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice

import structlog

from millrace.adapters.archive.chain import THREADS, Chained, Link, last_summary
from millrace.adapters.chain.documents import decode
from millrace.domain.archive.chain import LARGEST_EPOCH
from millrace.domain.archive.manifest import Manifest
from millrace.domain.archive.names import Incarnation
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore

log = structlog.get_logger()

_LISTED = 1_000  # keys of one page: a listing that shows fewer has reached the end


def last_link(store: ObjectStore, chained: Chained, known: int = -1) -> Link | None:
    """Return the last manifest of a chain, or None where it has none; requests grow with the logarithm of its length.

    A gap in the chain does not end the search, since listings look behind it.

    Args:
        store: where the chain lies.
        chained: what the chain is of.
        known: a sequence that it has reached, by a summary.
    """
    last = _last_listed(store, chained, known)
    found: Link | None = None
    while True:  # some stores leave objects out of listings while others are written
        sequence = max(last, 0) if found is None else last + 1
        key = chained.manifest_key(sequence)
        data = store.get(key)
        if data is None:
            return found
        found, last = Link(sequence, key, data), sequence


def _last_listed(store: ObjectStore, chained: Chained, known: int) -> int:
    """Search by listings that begin further and further behind what is known, then nearer and nearer."""
    last, step, grows = known, 0, True
    while True:
        page = _page_behind(store, chained, last + step)
        if not page and step == 0:
            return last
        if page:
            last = page[-1]
            if len(page) < _LISTED:
                return last
        else:
            grows = False
        step = max(2 * step, _LISTED) if grows else step // 2


def _page_behind(store: ObjectStore, chained: Chained, sequence: int) -> list[int]:
    after = chained.manifest_key(sequence) if sequence >= 0 else ""
    listed = islice(store.list(chained.manifests, after=after), _LISTED)
    return [found for info in listed if (found := chained.sequence_of(info.key)) is not None]


class ChainHeads:
    """The ends of an app's chains.

    Args:
        store: the archive's bucket.
        within_seconds: for all of them together; a start waits for it.
    """

    def __init__(self, store: ObjectStore, *, within_seconds: float = 30) -> None:
        self._store = store
        self._within_seconds = within_seconds

    def newest_epoch(self, chains: Collection[Incarnation]) -> int:
        """Return the greatest epoch that the last manifests of these chains name; 0 where there is none.

        A chain whose end cannot be read, or not in time, is logged and left out. So is an epoch that no app reaches by
        starting: a start above it would leave no room for those to come. The app halts such a topic.

        Raises:
            UnreachableError: the store does not answer.
        """
        if not chains:
            return 0
        first, *others = sorted(chains)
        newest = self._epoch(first)  # alone: a store that is away is not asked by every thread
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="heads")
        asked = [pool.submit(self._epoch, here) for here in others]
        try:
            wait(asked, timeout=self._within_seconds)
            answered = [each.result() for each in asked if each.done() and each.exception() is None]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # requests under way have their own limits
        if missing := len(asked) - len(answered):
            log.warning("heads_not_read", missing=missing, of=len(chains), within_seconds=self._within_seconds)
        return max([newest, *answered])

    def _epoch(self, here: Incarnation) -> int:
        try:
            summed_up = last_summary(self._store, here)
            link = last_link(self._store, here, summed_up)
            if link is None and summed_up >= 0:  # its manifest was deleted: the chain may go on from before it
                link = last_link(self._store, here)
            epoch = decode(link.data, Manifest, link.key).epoch if link is not None and link.data is not None else 0
        except CorruptArchiveError as error:
            log.warning("head_not_read", topic=here.topic, topic_id=here.topic_id, error=str(error))
            return 0
        if epoch > LARGEST_EPOCH:
            log.warning("head_not_believed", topic=here.topic, topic_id=here.topic_id, epoch=epoch)
            return 0
        return epoch
