"""Objects of a bucket."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of one object; `modified_at`: when it was written, by the store's clock, if it tells."""

    key: str
    size_bytes: int
    modified_at: datetime | None = field(default=None, compare=False)


class Creation(StrEnum):
    """What came of writing an object that must not exist yet."""

    CREATED = "created"
    WAS_THERE = "was there"  # with the same bytes: written before, or by a try whose answer was lost


class ObjectStore(Protocol):
    """One bucket of an object store. An object is whole or not there; what is written is seen by every later call.

    Does not guarantee that of listings: while others write beside them, a store may leave out objects that are there,
    or list files of its own (s3proxy over a folder, tried). What a listing does not show is to be asked for by its key.

    Every call may raise UnreachableError: the store did not answer, let nobody in, or asked to slow down for too long.
    A write may have happened then; writing the same again is safe.
    """

    def create(self, key: str, data: bytes) -> Creation:
        """Write an object where none is, in parts where it is large; never over another one.

        Raises:
            ObjectExistsError: there is one, with other bytes. It was left alone.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """An object's bytes; None where there is none."""
        ...

    def get_range(self, key: str, first: int, next: int) -> bytes | None:
        """The bytes `first <= position < next` of an object, fewer where it ends earlier; None where there is none."""
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """An object's size in bytes; None where there is none."""
        ...

    def list(self, prefix: str, *, after: str = "", page_size: int = 1000) -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix` and lies beyond `after`, in the order of the keys' UTF-8 bytes.

        Pages of `page_size` (1 to 1000) are asked for as they are needed, so memory does not grow with the number of
        objects.
        """
        ...

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows `prefix` up to and without the next slash, in order, once each: `archive/` gives the topics."""
        ...

    def delete(self, keys: Collection[str]) -> Mapping[str, str]:
        """Delete objects, also many; one that is not there counts as deleted. Returns why, by key, others remain."""
        ...

    def prove_create_only(self) -> None:
        """Try on objects of its own, which are deleted again, that nothing is written over what is there.

        Raises:
            RefusedError: the store ignores the condition; a chain of manifests would have two heads.
        """
        ...
