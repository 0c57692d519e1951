"""Who can tell that an offset held no record, and what is left where nobody can."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.domain.archive.proof.spans import Spans
from millrace.domain.quality.books import MOST_NAMED, Doubt, Fault, Finding


@dataclass(frozen=True, slots=True)
class Witness:
    """What an archive or a log knows of a partition.

    Attributes:
        knows: the offsets that it can speak of.
        holes: those of them where it has no record.
        read: those that were looked at in the log itself. Where an archive has a record there may be none any more when
            a stream comes: compaction has taken it.
    """

    knows: Spans = field(default_factory=Spans)
    holes: Spans = field(default_factory=Spans)
    read: Spans = field(default_factory=Spans)

    def __add__(self, more: Witness) -> Witness:
        """Both together: an offset is a hole where one of them says so."""
        return Witness(
            Spans(sorted([*self.knows, *more.knows])),
            Spans(sorted([*self.holes, *more.holes])),
            Spans(sorted([*self.read, *more.read])),
        )

    def within(self, first: int, next_: int) -> Witness:
        """What it knows of some offsets."""
        return Witness(*(Spans(one.within(first, next_)) for one in (self.knows, self.holes, self.read)))

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
        if doubt.gaps is None:
            unknown = doubt.absent.minus(self.knows)
            what = "any of them may have"
        else:
            unknown = doubt.absent.minus(self.holes).minus(self.read)
            holes = doubt.absent.both(self.holes).offsets
            short = doubt.gaps - holes
            what = f"{short:,} of them"
            if short > unknown.offsets:
                detail = (
                    f"{doubt.gaps:,} offsets gave no record when they were read: {holes:,} hold none, and "
                    f"{unknown.offsets:,} are unknown"
                )
                span = (doubt.range.first, doubt.range.next)
                return Finding(Fault.UNREAD, partition, (span,), short - unknown.offsets, 1, detail)
        detail = f"{what} held no record when they were read, and neither archive nor log can prove it"
        named = tuple(unknown)[:MOST_NAMED]
        return Finding(Fault.UNWITNESSED, partition, named, unknown.offsets, len(unknown), detail)
