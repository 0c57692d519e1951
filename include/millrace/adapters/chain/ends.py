"""Find the end of a chain without reading the chain."""

from __future__ import annotations

from itertools import islice

import structlog

from millrace.adapters.chain.documents import ChainManifest, decode
from millrace.adapters.chain.links import Chained, Link
from millrace.domain.chain.head import LARGEST_EPOCH
from millrace.ports.objects import ObjectStore

log = structlog.get_logger()

_LISTED = 1_000  # keys of one page: a listing that shows fewer has reached the end


def summed_up(store: ObjectStore, chained: Chained) -> list[int]:
    """Return the sequences that summaries of a chain name, in order, by a listing."""
    found = (chained.sequence_of(info.key) for info in store.list(chained.summaries))
    return sorted(sequence for sequence in found if sequence is not None)


def last_summary(store: ObjectStore, chained: Chained) -> int:
    """Return the last sequence that a summary of a chain names, by a listing; -1 where there is none."""
    return max(summed_up(store, chained), default=-1)


def last_manifest(store: ObjectStore, chained: Chained, kind: type[ChainManifest]) -> ChainManifest | None:
    """Return the last manifest of a chain, or None where it has none.

    Raises:
        CorruptArchiveError: it cannot be read.
        UnreachableError: the store does not answer.
    """
    known = last_summary(store, chained)
    link = last_link(store, chained, known)
    if link is None and known >= 0:  # its manifest was deleted: the chain may end before it
        link = last_link(store, chained)
    return decode(link.data, kind, link.key) if link is not None and link.data is not None else None


def believed_epoch(epoch: int, **named: object) -> int:
    """Return an epoch that a chain names, or 0 for one that no app reaches by starting.

    A start above such an epoch would leave no room for the starts to come. It is logged; the app that meets its
    manifest does not write behind it.

    Args:
        epoch: of the last manifest.
        named: which chain it is, for the log.
    """
    if epoch <= LARGEST_EPOCH:
        return epoch
    log.warning("head_not_believed", epoch=epoch, **named)
    return 0


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
