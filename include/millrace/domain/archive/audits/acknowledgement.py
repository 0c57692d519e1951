"""What people ask a backup to take for known: only its own app writes the chain, so it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.spans import Spans


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
        fault: of an object, in the words of an audit, where it is about that; empty where it is about lost records.
    """

    identity: int | None
    app: str
    incarnation: Incarnation
    span: PartitionSpan | None
    sequence: int | None
    by: str
    reason: str
    fault: str = ""

    def __post_init__(self) -> None:
        if (self.span is None) == (self.sequence is None):
            raise ValueError("an acknowledgement is about offsets or about the chain, and not about both")


@dataclass(frozen=True, slots=True)
class Known:
    """What people have said that they know of one incarnation, whether the chain has it yet or not.

    Attributes:
        spans: offsets that are lost, by partition.
        faults: of objects, in the words of an audit.
        sequence: the last manifest that is known to be missing or changed; -1: none.
    """

    spans: Mapping[int, Spans] = field(default_factory=dict)
    sequence: int = -1
    faults: frozenset[str] = frozenset()

    @classmethod
    def of(cls, asked: Iterable[Acknowledgement]) -> Known:
        """All of these together."""
        spans: dict[int, Spans] = {}
        sequence = -1
        found = list(asked)
        for one in found:
            if one.span is not None and not one.fault:
                spans.setdefault(one.span.partition, Spans()).add(one.span.first, one.span.next)
            sequence = max(sequence, -1 if one.sequence is None else one.sequence)
        return cls(spans, sequence, frozenset(one.fault for one in found if one.fault))

    def rest(self, partition: int, first: int, next_: int) -> list[tuple[int, int]]:
        """What of some offsets nobody has said to know of."""
        return list(self.spans.get(partition, Spans()).outside(first, next_))
