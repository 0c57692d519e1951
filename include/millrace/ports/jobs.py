"""Bounded jobs by Spark: rows made again, and quarantine redriven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from millrace.domain.quality.recompute import Recomputed
from millrace.domain.quarantine.redrive import Redriven, Selection
from millrace.domain.topics.offsets import OffsetRange


class Recomputation(Protocol):
    """What makes rows again from their records and holds them against the stored ones."""

    def run(
        self,
        stream: str,
        ranges: Sequence[OffsetRange],
        connections: Sequence[str],
        progress: Callable[[int], object],
    ) -> Recomputed:
        """Do so for offsets of a stream's topics as they are now.

        Args:
            stream: PIPELINE.NAME.
            ranges: in the order of partition and offset.
            connections: the Connections that the app's code may see.
            progress: told how many offsets are done.
        """
        ...


class Redriving(Protocol):
    """What puts records in quarantine through again, or tries it."""

    def attempt(
        self, stream: str, selection: Selection, connections: Sequence[str], progress: Callable[[int], object]
    ) -> Redriven:
        """What would become of them, with the app as it is now; nothing stays changed."""
        ...

    def run(
        self,
        stream: str,
        selection: Selection,
        connections: Sequence[str],
        progress: Callable[[int], object],
        *,
        upto: datetime,
        plan: str,
    ) -> Redriven:
        """Put them through; what of this a former run has done is not told again.

        Args:
            stream: PIPELINE.NAME.
            selection: which records.
            connections: the Connections that the app's code may see.
            progress: told how many records are done.
            upto: what came to quarantine later is left out.
            plan: in whose name.
        """
        ...
