"""What the example's report says of its backup: the proof, and where its evidence lies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from millrace.domain.archive.audits.findings import summed_up
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.partition import Label
from millrace.usecases.archive.audits import Backed, look_at

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


@dataclass(frozen=True, slots=True)
class ProvenBackup:
    """An archive by its proof.

    Attributes:
        records: how many it holds.
        pending: how many offsets of the topic are not archived yet.
        lost: how many are lost, whether somebody acknowledged that or not.
        breaches: what is wrong.
        evidence: the key of the last audit's page; empty where there was none.
    """

    records: int
    pending: int
    lost: int
    breaches: tuple[str, ...]
    evidence: str = ""

    def __str__(self) -> str:
        where = f"; evidence: {self.evidence}" if self.evidence else ""
        return f"{self.records:,} of {self.records + self.pending:,} records proven, lost {self.lost:,}{where}"


def prove(platform: Platform, backed: Backed, here: Incarnation) -> ProvenBackup:
    """Hold an archive against the topic as it is now.

    Raises:
        UnreachableError: the store or a broker does not answer.
    """
    found = look_at(platform, backed, here)
    evidence = platform.archive.evidence(backed.app.store)
    last = next(iter(evidence.remembered(here, datetime.now(UTC)).memory.audits), None)
    return ProvenBackup(
        records=found.records,
        pending=found.offsets(Label.PENDING),
        lost=found.offsets(Label.LOST),
        breaches=tuple(summed_up(found)),
        evidence=f"{evidence.key(last).removesuffix('.json')}.html" if last else "",
    )
