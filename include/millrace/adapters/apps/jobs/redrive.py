"""Records in quarantine put through again, or tried, by Spark in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from millrace.adapters.apps.jobs.spark import Progress, SparkJob
from millrace.domain.quarantine.redrive import Redriven, Selection

MODULE = "millrace.runtime.jobs.redrive"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be put through.

    Attributes:
        stream: PIPELINE.NAME.
        selection: which of its records in quarantine.
        upto: what came there later is left out; None: what is there now.
        plan: in whose name; empty: nothing is to stay, it is only tried.
    """

    stream: str
    selection: Selection
    upto: datetime | None = None
    plan: str = ""


REQUESTS = msgspec.json.Decoder(Request)
_ANSWERS = msgspec.json.Decoder(Redriven)


class RedriveJob(SparkJob):
    """Has records in quarantine put through, or tried."""

    module = MODULE

    def attempt(self, stream: str, selection: Selection, connections: Sequence[str], progress: Progress) -> Redriven:
        """What would become of a stream's records in quarantine, with the app as it is now; nothing stays changed.

        Args:
            stream: PIPELINE.NAME.
            selection: which records.
            connections: the Connections that the job may see.
            progress: told how many records are done.

        Raises:
            UnreachableError, DeclarationError, PartFailedError: as every job.
        """
        return self._run(Request(stream, selection), connections, progress)

    def run(
        self,
        stream: str,
        selection: Selection,
        connections: Sequence[str],
        progress: Progress,
        *,
        upto: datetime,
        plan: str,
    ) -> Redriven:
        """Put a stream's records in quarantine through; what of this a former run has done is not told again.

        Args:
            stream: PIPELINE.NAME.
            selection: which records.
            connections: the Connections that the job may see.
            progress: told how many records are done.
            upto: what came to quarantine later is left out.
            plan: in whose name.

        Raises:
            UnreachableError, DeclarationError, PartFailedError: as every job.
        """
        return self._run(Request(stream, selection, upto, plan), connections, progress)

    def _run(self, request: Request, connections: Sequence[str], progress: Progress) -> Redriven:
        return _ANSWERS.decode(self._ask(request.stream, request, connections, progress))
