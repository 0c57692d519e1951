"""What a backup's loop works with, so that it can be tried on anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from millrace.adapters.archive.cutting import Copied
from millrace.domain.alarms.extent import UNKNOWN, Extent
from millrace.domain.alarms.kinds import AlarmKind
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.domain.archive.expiry import Done, Expiry
from millrace.domain.archive.pace import Read
from millrace.domain.archive.proof.tiling import LogsSeen
from millrace.domain.chain.head import Writer
from millrace.domain.declaration.pipeline import BackupApp
from millrace.domain.groups.commits import Committed
from millrace.domain.topics.offsets import TopicPartition
from millrace.ports.objects import ObjectStore


class SayBreach(Protocol):
    """Opens or closes alarms."""

    def __call__(self, kind: AlarmKind, subject: str, detail: str | None, extent: Extent = UNKNOWN) -> None:
        """Have the alarm of this kind and subject say this; without a detail it is over."""
        ...


class Copier(Protocol):
    """Copies ranges into objects."""

    def copy(self, reads: Sequence[Read]) -> Sequence[Copied]:
        """Copy ranges, one a partition; what became of each.

        Raises:
            DataLossError: some of it is not in the log any more.
            UnreachableError: broker or store do not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a tee works with.

    Attributes:
        app: which topics, and how often.
        store: where the archive lies.
        look: asks for topics and their logs; those without an answer are named.
        copier: copies ranges.
        committed: asks for the group's commits of some partitions.
        commit: commits to the group.
        writer: the epoch and instance that write the chains.
        claimed: asks which instance claimed an epoch of the app; None where nobody did. Raises UnreachableError.
        asked: what people want to be taken for known and is not yet; nothing where nobody answers.
        taken: is told that it is, by number.
        expiries: what people want to be let go and is not yet; nothing where nobody answers.
        expired: is told what became of it, by number.
        breach: opens or closes an alarm.
        step: is told what the tee is at.
        clock: the present, in UTC.
    """

    app: BackupApp
    store: ObjectStore
    look: Callable[[Collection[str]], LogsSeen]
    copier: Copier
    committed: Callable[[Collection[TopicPartition]], Mapping[tuple[str, int], Committed]]
    commit: Callable[[Mapping[TopicPartition, Committed]], None]
    writer: Writer
    claimed: Callable[[int], str | None]
    asked: Callable[[], Sequence[Acknowledgement]]
    taken: Callable[[int], None]
    expiries: Callable[[], Sequence[Expiry]]
    expired: Callable[[int, Done], None]
    breach: SayBreach
    step: Callable[[str], None]
    clock: Callable[[], datetime]
