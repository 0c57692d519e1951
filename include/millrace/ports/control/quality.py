"""Quality checks and runs of the books, with their marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from millrace.domain.quality.books import Reconciliation
from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.results import Gain, QualityCheck, Waiting
from millrace.domain.topics.offsets import TopicPartition


class QualityChecks(Protocol):
    """Checks by stream, and the mark up to where the rows of each are proven."""

    def mark(self, stream: str) -> Mark:
        """Up to where a stream's rows are proven; nothing is where nobody has looked."""
        ...

    def store(
        self, check: QualityCheck, *, seen: Mark, mark: Mark | None, documents: Sequence[tuple[str, bytes]] = ()
    ) -> QualityCheck:
        """Store a check with its documents, and move the mark; all or nothing. The same check twice is stored once."""
        ...

    def accept(self, check: QualityCheck, *, actor: str, reason: str) -> bool:
        """Move the mark over the rows of a check, as they stay as they are; here and in the action log, or neither."""
        ...

    def latest(self, stream: str) -> QualityCheck | None:
        """The newest check of what a stream gained; None where nobody has looked."""
        ...

    def history(self, stream: str, *, limit: int = 20, windows: bool = False) -> tuple[QualityCheck, ...]:
        """Checks of a stream, newest first; `windows`: those of a window of time too."""
        ...

    def get(self, identity: int) -> QualityCheck:
        """The check of this number.

        Raises:
            UsageError: there is none.
        """
        ...

    def gains(self, stream: str, since: datetime, settled: datetime) -> tuple[tuple[datetime, Gain], ...]:
        """Return what came between looks, oldest first: when the later look began, and how many rows in which time."""
        ...

    def waiting(self, stream: str | None = None, limit: int = 50) -> tuple[Waiting, ...]:
        """Documents that the bucket has not got, oldest first."""
        ...

    def uploaded(self, waiting: Waiting) -> None:
        """Note that the bucket has a document: its bytes go, and its key joins the evidence of its check."""
        ...

    def tidy(self, now: datetime) -> None:
        """Forget checks that are old, but never the newest of a stream, and documents that have waited for long."""
        ...


class BooksRuns(Protocol):
    """Runs by stream, and the mark up to where the books of each are proven."""

    def mark(self, stream: str) -> Mark:
        """Up to where a stream's books are proven; nothing is where nobody has looked."""
        ...

    def store(self, run: Reconciliation, *, seen: Mark, stops: Mapping[TopicPartition, int]) -> Reconciliation:
        """Store a run and move the mark to where it has proven the books; both or neither. Twice is once."""
        ...

    def latest(self, stream: str) -> Reconciliation | None:
        """The run over a stream's books that was stored last; None where there was none."""
        ...

    def accept(self, run: Reconciliation, *, actor: str, reason: str) -> bool:
        """Move the mark over all that a run has looked at; here and in the action log, or neither."""
        ...

    def tidy(self, now: datetime) -> None:
        """Forget runs that are old, but never the newest ones of a stream."""
        ...
