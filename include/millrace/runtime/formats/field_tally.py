"""Counts of undeclared fields on their way from Spark's workers to the driver."""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from functools import cached_property

from millrace.domain.formats.printable import shown
from millrace.domain.formats.undeclared import Undeclared, kept

MOST_COUNTED = 50_000
"""Different names that are counted at once."""
LONGEST_NAME = 60
"""Characters of a name that are kept, as it is shown."""
_LONGEST_SIMILAR = 1_000  # characters; a column has far fewer
_SIGNS = re.compile(r"[\W_]+")


class FieldTally:
    """Counts the undeclared names of one block of records, in bounded memory.

    Names become printable and short before they are counted; names that are alike then are one.

    Guarantees: counts are exact while the block has no more than half of `MOST_COUNTED` different names. Beyond that
    they may be lower bounds, each too low by at most about two of `MOST_COUNTED` of all undeclared fields (Misra and
    Gries, 1982).

    Args:
        declared: the names that the schema has.
    """

    def __init__(self, declared: Iterable[str]) -> None:
        self._declared = frozenset(declared)
        self._records = 0
        self._names: Counter[str] = Counter()  # as they are shown
        self._shown: dict[str, str] = {}  # the names that were met, as they are shown
        self._candidates: dict[str, list[str]] = {}  # columns that met names are similar to; no record lacked one yet
        self._similar: dict[str, str] = {}

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        """The declared names by their letters and digits."""
        columns: dict[str, list[str]] = {}
        for name in sorted(self._declared):
            columns.setdefault(_essence(name), []).append(name)
        return columns

    def add(self, names: set[str]) -> None:
        """Count the field names of one record."""
        undeclared = names - self._declared
        if not undeclared:
            return
        self._records += 1
        for name in undeclared.difference(self._shown):  # an operator would walk through all names that were met
            self._meet(name)
        for name in self._candidates.keys() & undeclared:  # walks through the fewer; `intersection` does not
            self.decide(name, names)
        self._names.update(set(map(self._shown.__getitem__, undeclared)))
        if len(self._shown) > MOST_COUNTED:
            self._trim()

    def add_counts(self, records: int, names: Mapping[str, int]) -> None:
        """Count the field names of several records.

        Args:
            records: those with at least one undeclared field.
            names: records by undeclared name; each name is shown as it is.
        """
        self._records += records
        for name in names.keys() - self._shown.keys():
            self._meet(name)
        self._names.update(names)
        if len(self._shown) > MOST_COUNTED:
            self._trim()

    def undecided(self, names: Mapping[str, int]) -> dict[str, list[str]]:
        """Return the columns that these undeclared names are similar to, while no record is known that lacks one."""
        return {name: self._candidates[name] for name in self._candidates.keys() & names.keys()}

    def decide(self, name: str, names: Container[str]) -> bool:
        """Return whether a record with this undeclared name lacks a similar column; then the name is similar.

        Args:
            name: one that is undecided.
            names: all names of the record.
        """
        lacking = [column for column in self._candidates[name] if column not in names]
        if lacking:
            self._similar[self._shown[name]] = lacking[0]
            del self._candidates[name]
        return bool(lacking)

    def counts(self) -> Undeclared:
        """Return the counts."""
        return Undeclared(self._records, *kept(self._names, self._similar))

    def _meet(self, name: str) -> None:
        self._shown[name] = shown(name, LONGEST_NAME)
        essence = _essence(name) if len(name) <= _LONGEST_SIMILAR else ""
        if essence and (columns := self._columns.get(essence)):
            self._candidates[name] = columns

    def _trim(self) -> None:
        """Forget all spellings, and the rarest names where there are too many."""
        self._shown, self._candidates = {}, {}
        if len(self._names) > MOST_COUNTED // 2:
            similar, self._similar = kept({name: self._names[name] for name in self._similar}, self._similar)
            less = heapq.nlargest(MOST_COUNTED // 2, self._names.values())[-1]
            frequent = {name: count - less for name, count in self._names.items() if count > less}
            self._names = Counter({**frequent, **similar})


def as_text(counts: Undeclared) -> str | None:
    """Return the counts of a block as text; None: there are none."""
    if not counts.records:
        return None
    return json.dumps([counts.records, dict(counts.names), dict(counts.similar)], ensure_ascii=False)


def from_text(text: str) -> Undeclared:
    """Return the counts that `as_text` has written."""
    records, names, similar = json.loads(text)
    return Undeclared(records, names, similar)


def _essence(name: str) -> str:
    """Return the letters and digits of a name in one case."""
    return _SIGNS.sub("", name.casefold())
