"""Counts of undeclared fields on their way from Spark's workers to the driver."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Set

from millrace.domain.printable import shown
from millrace.domain.undeclared import MOST_COUNTED, Undeclared, kept

LONGEST_NAME = 60
"""Characters of a name that are kept."""


class FieldTally:
    """Counts the undeclared names of one block of records, in bounded memory.

    Names become printable and short before they are counted; names that are alike then are one.

    Args:
        declared: the names that the schema has.
    """

    def __init__(self, declared: Iterable[str]) -> None:
        self._declared = frozenset(declared)
        self._columns = {_essence(name): name for name in sorted(self._declared)}
        self._records = 0
        self._names: Counter[str] = Counter()
        self._similar: dict[str, str] = {}

    def add(self, names: Set[str]) -> None:
        """Count the field names of one record."""
        undeclared = names - self._declared
        if not undeclared:
            return
        self._records += 1
        if not undeclared <= self._names.keys():
            undeclared = {self._noted(name) for name in undeclared}
        self._names.update(undeclared)
        if len(self._names) > MOST_COUNTED:
            self._names, self._similar = kept(self._names, self._similar)

    def _noted(self, name: str) -> str:
        """Return the name as it is counted, and note the column that is similar to it."""
        short = shown(name, LONGEST_NAME)
        essence = _essence(name)
        if essence and (column := self._columns.get(essence)):
            self._similar[short] = column
        return short

    def counts(self) -> Undeclared:
        """Return the counts."""
        return Undeclared(self._records, *kept(self._names, self._similar))


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
    return "".join(each for each in name.casefold() if each.isalnum())
