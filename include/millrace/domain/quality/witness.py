"""Who can tell that an offset held no record, and what is left where nobody can."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.domain.archive.spans import Spans
from millrace.domain.quality.books import MOST_NAMED, Doubt, Fault, Finding


@dataclass(frozen=True, slots=True)
class Witness:
    """What an archive or a log knows of a partition.

    Attributes:
        knows: the offsets that it can speak of.
        holes: those of them where it has no record.
    """

    knows: Spans = field(default_factory=Spans)
    holes: Spans = field(default_factory=Spans)

    def __add__(self, more: Witness) -> Witness:
        """Both together: an offset is a hole where one of them says so."""
        return Witness(Spans(sorted([*self.knows, *more.knows])), Spans(sorted([*self.holes, *more.holes])))

    def is_enough_for(self, doubt: Doubt) -> bool:
        """Whether nobody else has to be asked."""
        if doubt.gaps is None:
            return not doubt.absent.minus(self.knows)
        return doubt.absent.both(self.holes).offsets >= doubt.gaps

    def judge(self, doubt: Doubt) -> Finding | None:
        """What of a doubt is left."""
        if self.is_enough_for(doubt):
            return None
        partition = doubt.range.partition
        holes, unknown = doubt.absent.both(self.holes).offsets, doubt.absent.minus(self.knows)
        short = unknown.offsets if doubt.gaps is None else doubt.gaps - holes
        if short <= unknown.offsets:
            what = "any of them may have" if doubt.gaps is None else f"{short:,} of them"
            detail = f"{what} held no record when they were read, and neither archive nor log can tell"
            named = tuple(unknown)[:MOST_NAMED]
            return Finding(Fault.UNWITNESSED, partition, named, unknown.offsets, len(unknown), detail)
        detail = (
            f"{doubt.gaps:,} offsets gave no record when they were read, of which {holes:,} hold none, and of "
            f"{unknown.offsets:,} nobody can tell"
        )
        span = (doubt.range.first, doubt.range.next)
        return Finding(Fault.UNREAD, partition, (span,), short - unknown.offsets, 1, detail)
