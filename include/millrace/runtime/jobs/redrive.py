"""The job that puts records in quarantine through again: decoded and transformed by their kept bytes.

It runs in a process of its own (`adapters.apps.jobs.redrive`). What comes of it is written part by part, each in one
transaction (`adapters.sinks.postgres.redrive`), so it may be ended anywhere and begun again.
"""

from __future__ import annotations

import shutil
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
import pyarrow as pa
import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from millrace.adapters.apps.jobs.redrive import REQUESTS, Request
from millrace.adapters.apps.jobs.spark import Progress, serve
from millrace.adapters.postgres.connection import holds_unicode
from millrace.adapters.sinks.postgres.copy import text_held
from millrace.adapters.sinks.postgres.redrive import Held, Put, QuarantineRedrive, TooLongError, open_redrive
from millrace.domain.quarantine.redrive import Fate, Redriven, Tally
from millrace.domain.quarantine.rules import Broken
from millrace.domain.topics.offsets import Source
from millrace.errors import SinkExhaustedError, SinkRolledBackError, UnreachableError
from millrace.runtime.jobs.rows_again import OpenedApp, RowMaker, opened_app
from millrace.runtime.stream.plain_read import RAW_SCHEMA

log = structlog.get_logger()

_PATIENCE = timedelta(minutes=2)
"""So long a job may get nowhere."""


def main(argv: Sequence[str]) -> int:
    """Do what standard input asks, and answer on standard output; `argv` is the folder for what is temporary."""
    scratch = Path(argv[0])

    def act(request: Request, progress: Progress) -> Redriven:
        with opened_app(request.stream, scratch) as app:
            return redrive(app, request, scratch, progress)

    return serve(REQUESTS, scratch, act)


def redrive(app: OpenedApp, request: Request, scratch: Path, progress: Progress) -> Redriven:
    """Put what a request selects through, or try it.

    A sink that is away or full, or a lock that somebody holds, is waited for, as long as that lasts no two minutes.

    Args:
        app: the stream's.
        request: what is asked.
        scratch: for rows on their way.
        progress: told how many records are done.

    Raises:
        DeclarationError: the app or the table is not what it has to be.
        UnreachableError: the sink does not answer, for longer than it is waited for.
    """
    work = _Work(app, request, scratch, progress)
    retrying = Retrying(
        retry=retry_if_exception_type((UnreachableError, SinkRolledBackError, SinkExhaustedError)),
        stop=lambda _: work.idle > _PATIENCE,
        wait=wait_exponential(max=10),
        before_sleep=_tell,
        reraise=True,
    )
    try:
        return retrying(work.do)
    except (SinkRolledBackError, SinkExhaustedError) as error:
        code = error.code
        raise UnreachableError(error.what, where=error.where, next_step=error.next_step, code=code) from error


def _tell(state: RetryCallState) -> None:
    log.warning("sink_waited_for", error=str(state.outcome and state.outcome.exception()))


class _Work:
    """One request at work. When it begins anew it goes on after the last part that it has done."""

    def __init__(self, app: OpenedApp, request: Request, scratch: Path, progress: Progress) -> None:
        self._app = app
        self._request = request
        self._scratch = scratch
        self._progress = progress
        self._upto: datetime | None = request.upto
        self._tally = Tally()
        self._after: Source = ("", -1, -1)
        self._done = 0
        self._moved = time.monotonic()

    @property
    def idle(self) -> timedelta:
        """How long it has got nowhere."""
        return timedelta(seconds=time.monotonic() - self._moved)

    def do(self) -> Redriven:
        stream = self._app.stream
        settings = self._app.settings.postgres(stream.sink.connection)
        folder, table = self._scratch / uuid.uuid4().hex, stream.sink.appended
        assert table is not None, "who asks has refused every stream that does not append to a table"
        with open_redrive(settings, stream.qualified_name, table, self._request.plan) as quarantine:
            quarantine.prepare(self._app.columns)
            self._upto = self._upto or quarantine.now()
            columns = [column.name for column in self._app.columns]
            maker = RowMaker(self._app, columns, folder, on_try=self._on_try)
            for end, part in quarantine.parts(self._request.selection, self._upto, self._after):
                self._put(quarantine, maker, part)
                self._after = end
        shutil.rmtree(folder, ignore_errors=True)
        return Redriven(self._upto, self._tally.sums())

    def _on_try(self, step: str) -> None:
        """A search for records that the transform raises on gets on, though no record is done yet."""
        self._moved = time.monotonic()
        self._progress(self._done)

    def _put(self, quarantine: QuarantineRedrive, maker: RowMaker, part: Sequence[Held]) -> None:
        """Put a part through; in halves where that takes the database longer than a transaction may last."""
        if not part:
            return
        try:
            put = self._put_at_once(quarantine, maker, part)
        except (psycopg.errors.QueryCanceled, TooLongError):
            if len(part) == 1:
                raise
            log.warning("part_halved", records=len(part))
            middle = len(part) // 2
            self._put(quarantine, maker, part[:middle])
            self._put(quarantine, maker, part[middle:])
            return
        for one, became in zip(part, put, strict=True):
            self._tally.add(one.at, one.rule, became.fate, became.now, became.rows)
        self._after, self._moved = part[-1].source, time.monotonic()
        self._done += len(part)
        self._progress(self._done)

    def _put_at_once(self, quarantine: QuarantineRedrive, maker: RowMaker, part: Sequence[Held]) -> list[Put]:
        if part[0].topic not in self._app.stream.reads:  # a part is of one topic
            return [Put(Fate.UNREAD)] * len(part)
        unicode = holds_unicode(quarantine.connection)
        records = _table(part)
        quarantine.empty()
        ids = {part[0].topic: part[0].topic_id}
        rows, refused = maker.copy(records, ids, quarantine.connection, quarantine.rows)
        if strange := quarantine.stranger(part):
            raise maker.strange(strange)
        of_place = {one.at: one.source for one in part}
        bad = {
            of_place[at]: Broken(broken.rule, text_held(broken.error, unicode))
            for at, broken in maker.bad(records).items()
        }
        bad |= {source: Broken(one.rule, text_held(one.error, unicode)) for source, one in refused.items()}
        put = quarantine.put_through(part, bad, rows=rows, keep=bool(self._request.plan))
        return [put[one.source] for one in part]


def _table(held: Sequence[Held]) -> pa.Table:
    """Records in quarantine, as they came from the log."""
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            "timestamp_ms": one.timestamp_ms,
            "key": one.key,
            "value": one.value,
            "headers": [
                {"key": header["key"], "value": None if (value := header["value"]) is None else bytes.fromhex(value)}
                for header in one.headers
            ],
        }
        for one in held
    ]
    return pa.Table.from_pylist(rows, schema=RAW_SCHEMA)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
