"""Records in quarantine put through again: which ones, what becomes of each, and the plan that says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from millrace.domain.plans.plan import Change, Facts, Plan, facts
from millrace.domain.quarantine.rules import Rule
from millrace.domain.rewind.time_travel import WrongTimeError, parse_time
from millrace.domain.topics.offsets import SourceAt

REDRIVE = "quarantine.redrive"
MOST_PLACES = 100
_LARGEST = 2**63 - 1
_PLACE = re.compile(r"([a-zA-Z0-9._-]{1,249})/(\d{1,10})@(\d{1,19})(?:-(\d{1,19}))?", re.ASCII)


class WrongSelectionError(ValueError):
    """A text does not select records; the message says why."""


class Fate(StrEnum):
    """What becomes of one record that is put through."""

    ROW = "row"  # it becomes rows, and leaves quarantine
    DROPPED = "dropped"  # the transform leaves it out now; it leaves quarantine
    BAD = "bad"  # it stays, by the rule that it breaks now
    UNREAD = "unread"  # it stays: the stream reads its topic no more
    AHEAD = "ahead"  # it stays: the stream was rewound to before it, and reads it again itself
    MOVED = "moved"  # somebody else was at it meanwhile


@dataclass(frozen=True, slots=True)
class Place:
    """Offsets `first <= offset < next` of one partition, by its topic's name: of every topic that has had it."""

    topic: str
    partition: int
    first: int
    next: int

    def __str__(self) -> str:
        last = f"-{self.next - 1}" if self.next - self.first > 1 else ""
        return f"{self.topic}/{self.partition}@{self.first}{last}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records of a stream's quarantine: all that every given part allows.

    Attributes:
        rule: only those that are there by this rule; empty: by any.
        since: only those that came there at this moment or later.
        places: only those of these offsets; none: of any.
    """

    rule: str = ""
    since: datetime | None = None
    places: tuple[Place, ...] = ()

    @property
    def facts(self) -> Facts:
        """As a plan says it."""
        return facts(
            {
                **({"only_rule": self.rule} if self.rule else {}),
                **({"only_since": self.since.isoformat()} if self.since else {}),
                **({"only_offsets": " ".join(map(str, self.places))} if self.places else {}),
            }
        )


def parse_selection(rule: str, since: str, offsets: Sequence[str], now: datetime) -> Selection:
    """A selection out of what a person writes; what is empty selects nothing out.

    Args:
        rule: a rule's name.
        since: a time with its zone, as `parse_time` takes it.
        offsets: TOPIC/PARTITION@OFFSET or TOPIC/PARTITION@FIRST-LAST each, with the last one.
        now: the present.

    Raises:
        WrongSelectionError: one of them is none.
    """
    if rule and rule not in set(Rule):
        raise WrongSelectionError(f"rule `{rule}` is unknown; choose one of: {', '.join(Rule)}")
    if len(offsets) > MOST_PLACES:
        raise WrongSelectionError(f"{len(offsets):,} places are too many: give at most {MOST_PLACES:,} at once")
    try:
        moment = parse_time(since, now) if since else None
    except WrongTimeError as error:
        raise WrongSelectionError(str(error)) from error
    return Selection(rule, moment, tuple(map(_place, offsets)))


def _place(text: str) -> Place:
    if not (found := _PLACE.fullmatch(text)):
        raise WrongSelectionError(
            f"`{text}` is not a range of offsets; write TOPIC/PARTITION@OFFSET or TOPIC/PARTITION@0-99"
        )
    first, last = int(found[3]), int(found[4] or found[3])
    if last < first:
        raise WrongSelectionError(f"`{text}` ends before it begins")
    if last >= _LARGEST or int(found[2]) >= 1 << 31:
        raise WrongSelectionError(f"`{text}` is beyond the largest offset or partition")
    return Place(found[1], int(found[2]), first, last + 1)


@dataclass(frozen=True, slots=True)
class Sum:
    """Records of one topic that were in quarantine by one rule, and all met the same fate.

    Attributes:
        now: the rule that they break now, where they stay because they are bad.
        rows: how many rows they became.
        first: one of them.
    """

    topic: str
    rule: str
    fate: Fate
    now: str
    records: int
    rows: int
    first: SourceAt


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became, or would become, of a selection.

    Attributes:
        upto: only what had come to quarantine before this moment of the sink's clock was looked at.
        sums: by topic, rule, fate and present rule.
    """

    upto: datetime
    sums: tuple[Sum, ...] = ()

    def records(self, *fates: Fate) -> int:
        """How many records met one of these fates; of all where none is named."""
        return sum(one.records for one in self.sums if not fates or one.fate in fates)

    @property
    def rows(self) -> int:
        """How many rows they became."""
        return sum(one.rows for one in self.sums)


@dataclass(frozen=True, slots=True)
class Left:
    """How many records have left quarantine by a plan: as how many rows, and because the transform leaves them out."""

    records: int = 0
    rows: int = 0
    dropped: int = 0


class Tally:
    """Adds up the fates of records."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, Fate, str], Sum] = {}

    def add(self, source: SourceAt, rule: str, fate: Fate, now: str = "", rows: int = 0) -> None:
        """One record more."""
        key = (source.topic, rule, fate, now)
        held = self._sums.get(key) or Sum(*key, 0, 0, source)
        self._sums[key] = Sum(*key, held.records + 1, held.rows + rows, held.first)

    def sums(self) -> tuple[Sum, ...]:
        """In the order of topic, rule and fate."""
        return tuple(self._sums[key] for key in sorted(self._sums))


def stayed(sums: Iterable[Sum]) -> dict[str, int]:
    """How many records stay in quarantine, by why; those that somebody else was at are not among them."""
    found: dict[str, int] = {}
    for one in sums:
        if one.fate in (Fate.BAD, Fate.UNREAD, Fate.AHEAD):
            name = f"stay_{one.now or one.fate.value}"
            found[name] = found.get(name, 0) + one.records
    return found


def taken(sums: Iterable[Sum]) -> int:
    """How many records somebody else was at meanwhile."""
    return sum(one.records for one in sums if one.fate is Fate.MOVED)


def changes_of(sums: Iterable[Sum]) -> tuple[Change, ...]:
    """What leaves quarantine as a plan's changes, one a topic and rule; what of the rest stays is told in them."""
    of_each: dict[tuple[str, str], list[Sum]] = {}
    for one in sums:
        of_each.setdefault((one.topic, one.rule), []).append(one)
    found = []
    for (topic, rule), parts in sorted(of_each.items()):
        tried = Redriven(datetime.min.replace(tzinfo=UTC), tuple(parts))
        if not (leaving := tried.records(Fate.ROW, Fate.DROPPED)):
            continue
        after: dict[str, object] = {"in_quarantine": tried.records() - leaving}
        if passing := tried.records(Fate.ROW):
            after["become_rows"] = passing if passing == tried.rows else f"{passing}, {tried.rows} rows in all"
        if dropped := tried.records(Fate.DROPPED):
            after["dropped_by_the_transform"] = dropped
        after |= stayed(parts)
        before = facts({"in_quarantine": tried.records()})
        unsafe = f"{dropped:,} records will have no row: check that the transform drops them on purpose"
        found.append(Change(REDRIVE, f"{topic} {rule}", before, facts(after), unsafe=unsafe if dropped else ""))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Redrive:
    """What a plan of this kind says.

    Attributes:
        code: what the app, its schemas and its stream's declaration were when it was tried.
        leaving: how many records would leave quarantine.
        staying: how many would stay.
        upto: what came to quarantine at this moment or later is not touched.
    """

    stream: str
    selection: Selection
    code: str
    upto: datetime
    leaving: int = 0
    staying: int = 0


def about(redrive: Redrive, tried: Redriven) -> Facts:
    """What a plan says beside its changes; `redrive_of` reads it."""
    counts = {
        "records_selected": tried.records(),
        "leave_quarantine": tried.records(Fate.ROW, Fate.DROPPED),
        "rows": tried.rows,
        "code": redrive.code,
        "in_quarantine_before": redrive.upto.isoformat(),
        **stayed(tried.sums),
    }
    return facts({**counts, **dict(redrive.selection.facts)})


def redrive_of(plan: Plan) -> Redrive:
    """The redrive that a plan of this kind says.

    Raises:
        ValueError: it is a plan of another kind, or of a later Millrace.
    """
    said = dict(plan.about)
    try:
        since = said.get("only_since")
        selection = Selection(
            said.get("only_rule", ""),
            datetime.fromisoformat(since) if since else None,
            tuple(map(_place, said.get("only_offsets", "").split())),
        )
        leaving = int(said["leave_quarantine"])
        upto = datetime.fromisoformat(said["in_quarantine_before"])
        return Redrive(plan.target, selection, said["code"], upto, leaving, int(said["records_selected"]) - leaving)
    except KeyError as error:
        raise ValueError(f"not a redrive: it does not say {error}") from error
