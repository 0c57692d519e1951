"""Lists of names in YAML: how many there may be, and each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from millrace.declarations.findings import Place
from millrace.declarations.reader import Scalar, Sequence
from millrace.declarations.sink_kind import Say
from millrace.domain.formats.printable import shown


@dataclass(frozen=True, slots=True)
class NameList:
    """What findings say of a list of names.

    Attributes:
        owner: what has the list, with its article.
        word: what is named, in the singular.
        within: what a name is in twice, with its article.
        most: how many names there may be.
        fewer: the next step where there are more.
        example: a good list.
        same: gives two names that count as one the same text.
    """

    owner: str
    word: str
    within: str
    most: int
    fewer: str
    example: str
    same: Callable[[str], str] = str

    def check(self, say: Say, names: Sequence, place: Place) -> None:
        """Add what is wrong with how many names there are, and those that are there twice."""
        count = len(names.items)
        if not count:
            say(place, f"{self.owner} has no {self.word}", f"name at least one, like {self.example}")
        if count > self.most:
            say(place, f"{self.owner} has {count} {self.word}s, more than {self.most}", self.fewer)
        for item in repeated(names, self.same):
            say(
                item.place,
                f"the {self.word} `{shown(item.value)}` is in {self.within} twice",
                "remove one of them",
            )


def repeated(names: Sequence, same: Callable[[str], str] = str) -> Iterator[Scalar]:
    """Return the names of a list that stand in it already."""
    seen: set[str] = set()
    for item in names.items:
        if isinstance(item, Scalar) and not item.broken:
            name = same(str(item.value))
            if name in seen:
                yield item
            seen.add(name)
