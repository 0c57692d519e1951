"""What people ask a backup to take for known: only its own app writes the chain, so it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One of these: offsets that are lost or diverged, or a chain that was cut off.

    Attributes:
        identity: of the row that holds it; None before it is asked.
        app: PIPELINE.backup, that is asked.
        incarnation: whose chain it is about.
        span: the offsets; None where it is about the chain.
        sequence: of the last manifest that is known to be missing or changed; None where it is about offsets.
        by: who asks, and `reason` why.
    """

    identity: int | None
    app: str
    incarnation: Incarnation
    span: PartitionSpan | None
    sequence: int | None
    by: str
    reason: str

    def __post_init__(self) -> None:
        if (self.span is None) == (self.sequence is None):
            raise ValueError("an acknowledgement is about offsets or about the chain, and not about both")
