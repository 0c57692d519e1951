"""Summaries of an archive's chain: the proof up to a manifest, so that readers resume there."""

from __future__ import annotations

from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.adapters.chain.ends import last_summary, summed_up
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problem
from millrace.domain.archive.proof.summary import Summary
from millrace.domain.archive.proof.tiling import Tiling
from millrace.errors import CorruptArchiveError
from millrace.ports.objects import ObjectStore

SUMMARIES_KEPT = 10


def resume(store: ObjectStore, incarnation: Incarnation) -> Tiling:
    """A tiling up to the chain's last summary, or an empty one.

    A summary that cannot be read is left aside: the chain alone says the same. One whose manifest is missing or has
    other bytes is a problem of the chain, which is then to be read from its beginning. Where a listing leaves the last
    one out, an earlier one does as well.
    """
    sequence = last_summary(store, incarnation)
    tiling = _tiling_of(store, incarnation, sequence)
    tiling.promised = sequence
    return tiling


def promised(store: ObjectStore, tiling: Tiling) -> int:
    """The last sequence that a summary of the chain names, -1 where there is none; asked for once a tiling.

    To be asked for before the chain is read: a summary that is made later may name what has come since.
    """
    if tiling.promised is None:
        tiling.promised = last_summary(store, tiling.incarnation)
    return tiling.promised


def _tiling_of(store: ObjectStore, incarnation: Incarnation, sequence: int) -> Tiling:
    anew, key = Tiling(incarnation), incarnation.summary_key(max(sequence, 0))
    data = store.get(key) if sequence >= 0 else None
    if data is None:
        return anew
    try:
        summary = decode(data, Summary, key)
        tiling = summary.tiling()
    except (CorruptArchiveError, ValueError):
        return anew
    if tiling.incarnation != incarnation or summary.sequence != sequence:
        return anew
    manifest = store.get(incarnation.manifest_key(sequence))
    if manifest is not None and sha256_of(manifest) == summary.sha256:
        return tiling
    missing = "is missing: the chain was cut off" if manifest is None else "has other bytes now"
    anew.problems.append(
        Problem(f"the summary covers the chain up to manifest {sequence}, but that manifest {missing}", key=key)
    )
    return anew


def put_summary(store: ObjectStore, tiling: Tiling) -> str:
    """Write the summary of a chain without faults beside it; its key.

    Raises:
        ValueError: something is wrong with the chain, or lost without anybody's knowledge.
    """
    key = tiling.incarnation.summary_key(tiling.head.sequence)
    store.create(key, encode(Summary.of(tiling)))
    return key


def drop_old_summaries(store: ObjectStore, tiling: Tiling) -> None:
    """Delete summaries but the last ten: the last serves, those before it where a listing leaves it out."""
    here = tiling.incarnation
    older = [sequence for sequence in summed_up(store, here) if sequence < tiling.head.sequence]
    old = older[: -(SUMMARIES_KEPT - 1)]
    if old:
        store.delete([here.summary_key(sequence) for sequence in old])


def forget_false_summaries(store: ObjectStore, tiling: Tiling, known: int) -> None:
    """Delete summaries of manifests that are gone and will be written anew, as far as somebody said to know of that.

    Args:
        store: where they lie.
        tiling: the chain, read to its head.
        known: the last manifest that is known to be missing or changed.
    """
    here, head = tiling.incarnation, tiling.head.sequence
    false = [sequence for sequence in summed_up(store, here) if head < sequence <= known]
    if false:
        store.delete([here.summary_key(sequence) for sequence in false])
        tiling.promised = None
