"""Fields of records that the schema of their topic does not name.

A column reads the field of exactly its name. A renamed field, or one in another case, leaves the column null and breaks
no rule. So a stream counts the fields that it was given and did not read.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MOST_NAMES = 10
"""Names that people are shown of a batch."""
MOST_KEPT = 100
"""Names that are kept of a block of records, and of a topic's part of a batch."""


@dataclass(frozen=True, slots=True)
class Undeclared:
    """Counts of records of one topic.

    Attributes:
        records: records with at least one undeclared field at their top level.
        names: records by undeclared name.
        similar: the declared column by undeclared name, where both have the same letters and digits and at least one
            record with this name lacks the column.
    """

    records: int = 0
    names: Mapping[str, int] = field(default_factory=dict)
    similar: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UndeclaredName:
    """One undeclared name.

    Attributes:
        records: records of the batch with such a field.
        column: the declared column with the same letters and digits that at least one of these records lacks; None:
            there is no such column.
    """

    topic: str
    name: str
    records: int
    column: str | None = None


@dataclass(frozen=True, slots=True)
class UndeclaredFields:
    """The undeclared fields of one batch.

    Attributes:
        records: records with at least one.
        names: first those that are similar to a column, then the others; the most frequent first.
    """

    records: int = 0
    names: tuple[UndeclaredName, ...] = ()


def total(counts: Iterable[Undeclared]) -> Undeclared:
    """Return the sum of counts of one topic.

    Args:
        counts: each with at most `MOST_KEPT` names.
    """
    records, names, similar = 0, Counter[str](), dict[str, str]()
    for each in counts:
        records += each.records
        names.update(each.names)
        similar |= each.similar
    return Undeclared(records, *kept(names, similar))


def kept(names: Mapping[str, int], similar: Mapping[str, str]) -> tuple[Counter[str], dict[str, str]]:
    """Return at most `MOST_KEPT` of these names: those that are similar to a column, then the most frequent.

    Args:
        names: records by name.
        similar: columns by name.
    """
    best = heapq.nsmallest(MOST_KEPT, names, key=lambda name: (name not in similar, -names[name], name))
    return Counter({name: names[name] for name in best}), {name: similar[name] for name in best if name in similar}


def names_to_show(found: Mapping[str, Undeclared]) -> UndeclaredFields:
    """Return the names of a batch that a person should see.

    Args:
        found: the counts by topic.
    """
    names = [
        UndeclaredName(topic, name, records, counts.similar.get(name))
        for topic, counts in found.items()
        for name, records in counts.names.items()
    ]
    names.sort(key=lambda each: (each.column is None, -each.records, each.topic, each.name))
    return UndeclaredFields(sum(counts.records for counts in found.values()), tuple(names[:MOST_NAMES]))
