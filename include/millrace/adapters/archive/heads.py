"""The newest epoch that chains name: a start of their app begins above it.

Only the end of each chain is read. A start waits for it, so nothing here walks a chain.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor, wait

import structlog

from millrace.adapters.chain.ends import believed_epoch, last_manifest
from millrace.adapters.chain.links import THREADS
from millrace.domain.archive.manifest import Manifest
from millrace.domain.archive.names import Incarnation
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore

log = structlog.get_logger()


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
            last = last_manifest(self._store, here, Manifest)
        except CorruptArchiveError as error:
            log.warning("head_not_read", topic=here.topic, topic_id=here.topic_id, error=str(error))
            return 0
        return believed_epoch(last.epoch, topic=here.topic, topic_id=here.topic_id) if last else 0
