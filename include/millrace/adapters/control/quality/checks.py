"""Checks of quality, what is proven of each stream's table, and documents that wait for the bucket."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONPATH, insert

from millrace.adapters.control.database.connection import translated
from millrace.adapters.control.quality.marks import Marks, forget_old
from millrace.adapters.control.quality.rows import body_of, check_of
from millrace.adapters.control.quality.tables import quality_check, quality_document, quality_mark
from millrace.domain.quality.ranges import Mark
from millrace.domain.quality.results import Gain, QualityCheck, Waiting
from millrace.errors import Code, UsageError
from millrace.settings import PostgresSettings

WAITS = timedelta(days=7)
_UNUSUAL = '$.results[*] ? (@.kind == "volume" && @.outcome == "failed")'
LARGEST_DOCUMENT = 5 * 1024**2
_MARKS = Marks(quality_mark)


class QualityTable:
    """Checks by stream, and the mark up to where the rows of each are proven."""

    def __init__(self, engine: sa.Engine, settings: PostgresSettings) -> None:
        self._engine = engine
        self._settings = settings

    def mark(self, stream: str) -> Mark:
        """Up to where a stream's rows are proven; nothing is where nobody has looked."""
        with translated(self._settings), self._engine.begin() as connection:
            return _MARKS.get(connection, stream)

    def store(
        self,
        check: QualityCheck,
        *,
        seen: Mark,
        mark: Mark | None,
        documents: Sequence[tuple[str, bytes]] = (),
    ) -> QualityCheck:
        """Store a check with its documents, and move the mark; all or nothing. The same check twice is stored once.

        Args:
            check: what was found.
            seen: the mark as it was when the check began. Where another check has moved it since, it stays.
            mark: where it goes; None: it stays.
            documents: keys and bytes that the bucket is to get; one that is too large is left out.

        Returns:
            The check with its identity.
        """
        values = {
            "stream": check.stream,
            "began": check.began,
            "actor": check.actor,
            "verdict": check.verdict.value,
            "windowed": check.window is not None,
            "body": body_of(check),
        }
        with translated(self._settings), self._engine.begin() as connection:
            _MARKS.lock(connection, check.stream)
            made = insert(quality_check).values(values).on_conflict_do_nothing().returning(quality_check)
            row = connection.execute(made).one_or_none()
            if row is None:
                return check_of(connection.execute(_same(check)).one())
            for key, data in documents:
                if len(data) <= LARGEST_DOCUMENT:
                    document = insert(quality_document).values(check_id=row.id, key=key, data=data)
                    connection.execute(document.on_conflict_do_nothing())
            if mark is not None and _MARKS.get(connection, check.stream) == seen:
                _MARKS.move(connection, check.stream, mark)
            return check_of(row)

    def accept(self, check: QualityCheck, *, actor: str, reason: str) -> bool:
        """Move the mark over the rows of a check, as they stay as they are; here and in the action log, or neither.

        Returns:
            False where a newer check was stored meanwhile.
        """
        with translated(self._settings), self._engine.begin() as connection:
            _MARKS.lock(connection, check.stream)
            newest = connection.execute(_looks(check.stream).limit(1)).one_or_none()
            if newest is None or newest.id != check.identity:
                return False
            _MARKS.accept(
                connection,
                check.stream,
                check.upto,
                actor=actor,
                reason=reason,
                action="quality.accept",
                check=str(check.identity),
            )
            return True

    def latest(self, stream: str) -> QualityCheck | None:
        """The newest check of what a stream gained; None where nobody has looked."""
        found = self.history(stream, limit=1)
        return found[0] if found else None

    def history(self, stream: str, *, limit: int = 20, windows: bool = False) -> tuple[QualityCheck, ...]:
        """Checks of a stream, newest first; `windows`: those of a window of time too."""
        with translated(self._settings), self._engine.begin() as connection:
            query = _looks(stream, windows=windows).limit(limit)
            return tuple(check_of(row) for row in connection.execute(query).all())

    def get(self, identity: int) -> QualityCheck:
        """The check of this number.

        Raises:
            UsageError: there is none.
        """
        with translated(self._settings), self._engine.begin() as connection:
            query = quality_check.select().where(quality_check.c.id == identity)
            row = connection.execute(query).one_or_none()
        if row is None:
            raise UsageError(
                f"check {identity} is unknown",
                next_step="run `millrace quality list` for the known checks",
                code=Code.UNKNOWN_NAME,
            )
        return check_of(row)

    def gains(self, stream: str, since: datetime, settled: datetime) -> tuple[tuple[datetime, Gain], ...]:
        """What came between looks, oldest first: when the later look began, and how many rows in which time.

        Args:
            stream: whose.
            since: from when on.
            settled: looks after this whose rule of volume was broken are left out: what is not usual becomes so by
                lasting.
        """
        table = quality_check
        query = (
            sa.select(table.c.began, table.c.body["gain"].label("gain"))
            .where(table.c.stream == stream, table.c.began >= since, ~table.c.windowed)
            .where(sa.func.jsonb_typeof(table.c.body["gain"]) == "array")
            .where(sa.or_(table.c.began < settled, ~table.c.body.path_exists(sa.cast(_UNUSUAL, JSONPATH))))
            .order_by(table.c.began)
        )
        with translated(self._settings), self._engine.begin() as connection:
            rows = connection.execute(query).all()
        return tuple((row.began.astimezone(UTC), Gain(row.gain[0], timedelta(seconds=row.gain[1]))) for row in rows)

    def waiting(self, stream: str | None = None, limit: int = 50) -> tuple[Waiting, ...]:
        """Documents that the bucket has not got, oldest first."""
        table = quality_document
        query = sa.select(table.c.id, table.c.check_id, table.c.key, table.c.data).order_by(table.c.id).limit(limit)
        if stream is not None:
            query = query.join(quality_check).where(quality_check.c.stream == stream)
        with translated(self._settings), self._engine.begin() as connection:
            return tuple(Waiting(row.id, row.check_id, row.key, row.data) for row in connection.execute(query).all())

    def uploaded(self, waiting: Waiting) -> None:
        """Note that the bucket has a document: its bytes go, and its key joins the evidence of its check."""
        with translated(self._settings), self._engine.begin() as connection:
            gone = quality_document.delete().where(quality_document.c.id == waiting.identity)
            row = connection.execute(
                quality_check.select().where(quality_check.c.id == waiting.check).with_for_update()
            ).one_or_none()
            if connection.execute(gone).rowcount and row is not None:
                body = {**row.body, "evidence": [*row.body["evidence"], waiting.key]}
                connection.execute(quality_check.update().where(quality_check.c.id == row.id).values(body=body))

    def tidy(self, now: datetime) -> None:
        """Forget checks that are old, but never the newest of a stream, and documents that have waited for long."""
        table = quality_check
        with translated(self._settings), self._engine.begin() as connection:
            stale = sa.select(table.c.id).where(table.c.began < now - WAITS)
            connection.execute(quality_document.delete().where(quality_document.c.check_id.in_(stale)))
            forget_old(connection, table, now)


def _looks(stream: str, *, windows: bool = False) -> sa.Select[tuple[object, ...]]:
    table = quality_check
    query = sa.select(table).where(table.c.stream == stream).order_by(table.c.began.desc(), table.c.id.desc())
    return query if windows else query.where(~table.c.windowed)


def _same(check: QualityCheck) -> sa.Select[tuple[object, ...]]:
    table = quality_check
    return sa.select(table).where(
        table.c.stream == check.stream, table.c.began == check.began, table.c.actor == check.actor
    )
