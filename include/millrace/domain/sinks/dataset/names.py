"""What the objects of a dataset are called.

    PREFIX/data/event_date=YYYY-MM-DD/SHA256.parquet
    PREFIX/manifest/SEQUENCE.json
    PREFIX/page/SEQUENCE.json
    PREFIX/summary/SEQUENCE.json

Sequences have 20 digits, so that a listing is in their order. An object's name is the SHA-256 of its bytes: the same
name means the same bytes. Folders of dates are named as Hive names them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EVENT_DATE = "event_date"
"""The column that the folders are named by; no object has it."""
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""What stands for a null, in Hive and in all that read what it has written."""
MANIFESTS_A_PAGE = 1_000
_NUMBERED = re.compile(r"([0-9]{20})\.json")


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset by the beginning of all its keys, without a slash at its end."""

    prefix: str

    def __str__(self) -> str:
        return self.prefix

    @property
    def data(self) -> str:
        """What every data object's key begins with."""
        return f"{self.prefix}/data/"

    @property
    def manifests(self) -> str:
        """What every manifest's key begins with."""
        return f"{self.prefix}/manifest/"

    @property
    def summaries(self) -> str:
        """What every summary's key begins with."""
        return f"{self.prefix}/summary/"

    @property
    def pages(self) -> str:
        """What every page's key begins with."""
        return f"{self.prefix}/page/"

    def manifest_key(self, sequence: int) -> str:
        """The key of a manifest."""
        return f"{self.manifests}{sequence:020d}.json"

    def summary_key(self, sequence: int) -> str:
        """The key of the summary of the chain up to a manifest."""
        return f"{self.summaries}{sequence:020d}.json"

    def page_key(self, number: int) -> str:
        """The key of a page, which has `MANIFESTS_A_PAGE` manifests and is named by the last of them.

        Args:
            number: from 0.
        """
        return f"{self.pages}{(number + 1) * MANIFESTS_A_PAGE - 1:020d}.json"

    def object_key(self, date: str, sha256: str) -> str:
        """The key of a data object.

        Args:
            date: YYYY-MM-DD, or `NO_DATE`.
            sha256: of its bytes, 64 hexadecimal digits.
        """
        return f"{self.data}{EVENT_DATE}={date}/{sha256}.parquet"

    def sequence_of(self, key: str) -> int | None:
        """The sequence that the key of a manifest, page or summary names; None where it is the key of none."""
        for prefix in (self.manifests, self.pages, self.summaries):
            if key.startswith(prefix) and (found := _NUMBERED.fullmatch(key[len(prefix) :])):
                return int(found[1])
        return None
