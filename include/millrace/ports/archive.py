"""Archives in a bucket: read, audited and collected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from datetime import datetime, timedelta
from typing import Protocol

from millrace.domain.archive.audits.acknowledgement import Known
from millrace.domain.archive.audits.findings import Audit, Depth
from millrace.domain.archive.audits.memory import Claim, Remembered
from millrace.domain.archive.expiry import Collectable, Deleted
from millrace.domain.archive.manifest import ObjectEntry
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.coverage import Problem
from millrace.domain.archive.proof.tiling import Tiling
from millrace.domain.archive.records import ArchivedRecord
from millrace.domain.topics.offsets import OffsetRange


class ArchivedObject(Protocol):
    """An object of an archive, fetched; `range` is what its own footer says."""

    @property
    def range(self) -> OffsetRange:
        """The offsets that it covers."""
        ...

    def records(self) -> Iterator[ArchivedRecord]:
        """Its records in the order of their offsets."""
        ...


class ArchiveReader(Protocol):
    """Reads archives of one bucket. Asks nothing but the bucket, and writes nothing."""

    def topics(self) -> Iterator[str]:
        """The topics that have an archive, in order."""
        ...

    def incarnations(self, topic: str) -> list[Incarnation]:
        """The incarnations of a topic that have an archive, in the order of their ids; what else lies there is none."""
        ...

    def began(self, incarnation: Incarnation) -> datetime | None:
        """Return when a chain began, as the first of its manifests that can be read says; None where there is none."""
        ...

    def look_through(self, incarnation: Incarnation, see: Callable[[ObjectEntry], object]) -> Tiling:
        """Return what a chain comes to; fetches none of its objects, and tells nothing of what is wrong.

        Raises:
            UnreachableError: the store does not answer.
        """
        ...

    def read(
        self,
        incarnation: Incarnation,
        fits: Callable[[ObjectEntry], bool],
        tell: Callable[[Problem], object],
        *,
        as_of: Tiling | None = None,
    ) -> Generator[ArchivedObject, None, None]:
        """The objects of one incarnation that fit, in the order of the chain, each as its manifest says it is.

        Raises:
            UnreachableError: the store does not answer.
        """
        ...


class ChainHeads(Protocol):
    """The ends of an app's chains."""

    def newest_epoch(self, chains: Collection[Incarnation]) -> int:
        """Return the greatest epoch that the last manifests of these chains name; 0 where there is none.

        Raises:
            UnreachableError: the store does not answer.
        """
        ...


class AuditEvidence(Protocol):
    """Evidence in one bucket: created once, never written over, deleted by nobody here."""

    def key(self, audit: Audit) -> str:
        """Return where an audit's JSON lies."""
        ...

    def put(self, audit: Audit, page: str) -> tuple[str, str]:
        """Keep what an audit found; the keys of its JSON and of its page. The page first: the JSON is the memory.

        Raises:
            UnreachableError: the store does not answer; the same again.
        """
        ...

    def topic_ids(self, topic: str) -> Iterator[str]:
        """The ids of a topic that were ever audited."""
        ...

    def remembered(self, here: Incarnation, now: datetime) -> Remembered:
        """Return what earlier audits remember.

        Raises:
            UnreachableError: the store does not answer.
        """
        ...


class Claims(Protocol):
    """Asks the group."""

    def of(self, here: Incarnation) -> list[Claim]:
        """The furthest manifest of one incarnation that a commit knows of; nothing where none does.

        Raises:
            UnreachableError: a broker does not answer.
        """
        ...

    def incarnations(self) -> set[Incarnation]:
        """Return the app's topics as they are now, and the former ones that commits know of: it writes those chains.

        Raises:
            UnreachableError: no broker answers.
        """
        ...

    def topic_ids(self, topic: str) -> set[str]:
        """The ids of a topic that commits know of, and the one it has now.

        Raises:
            UnreachableError: a broker does not answer.
        """
        ...


class Auditor(Protocol):
    """Audits archives of one app, of one cluster, in one bucket."""

    def audit(self, here: Incarnation, depth: Depth, max_lag: timedelta, known: Known) -> Audit:
        """Audit one incarnation; writes nothing but the summary of a chain in which nothing is wrong.

        Raises:
            UnreachableError: store or broker do not answer. That is no verdict.
        """
        ...


class Collector(Protocol):
    """Finds and deletes what an archive needs no more."""

    def look(self, here: Incarnation, keep: timedelta | None, now: datetime, grace: timedelta) -> Collectable:
        """Read an archive's chain from its beginning, and list its objects.

        Raises:
            UnreachableError: store or broker do not answer.
        """
        ...

    def delete_expired(self, seen: Collectable, older_than: datetime, begin: Callable[[], None] | None) -> Deleted:
        """Delete objects of ranges that the chain let expire longer than the grace ago, and what else lies in these.

        Raises:
            CorruptArchiveError: the chain's head is another one by now.
            UnreachableError: the store does not answer; some may be deleted.
        """
        ...

    def delete_orphans(self, seen: Collectable, older_than: datetime, begin: Callable[[], None] | None) -> Deleted:
        """The same with objects that no manifest names nor will: of those that were found, the first thousand."""
        ...
