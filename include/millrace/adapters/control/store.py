"""The control database: what people want of streams, plans, the action log, alarms.

Every method is one short transaction. All of them raise `UnreachableError` where the database does not
answer; a running stream does not need it, a start does.
"""

from __future__ import annotations

import sqlalchemy as sa

from millrace.adapters.control.alarms import AlarmTable
from millrace.adapters.control.backups import BackupTable
from millrace.adapters.control.database.connection import open_engine, translated
from millrace.adapters.control.forecasts.store import ForecastTable
from millrace.adapters.control.holds import HoldTable
from millrace.adapters.control.hosts import HostTables
from millrace.adapters.control.log import ActionLog
from millrace.adapters.control.pages import PageReader
from millrace.adapters.control.plans import PlanTable
from millrace.adapters.control.quality.books import BooksTable
from millrace.adapters.control.quality.checks import QualityTable
from millrace.adapters.control.snapshots.store import SnapshotTable
from millrace.adapters.control.streams import StreamTables
from millrace.adapters.postgres.connection import PAGE_TIME, address
from millrace.settings import PostgresSettings


class ControlStore:
    """One room a noun: `streams`, `hosts`, `plans`, `log`, `alarms`, `backups`, `snapshots`, `holds`, and so on.

    Connects on first use; safe between threads.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        self._engine = open_engine(settings)
        self.pages = PageReader(settings, PAGE_TIME)
        self.streams = StreamTables(self._engine, settings)
        self.hosts = HostTables(self._engine, settings)
        self.plans = PlanTable(self._engine, settings)
        self.log = ActionLog(self._engine, settings)
        self.alarms = AlarmTable(self._engine, settings)
        self.backups = BackupTable(self._engine, settings)
        self.snapshots = SnapshotTable(self._engine, settings)
        self.holds = HoldTable(self._engine, settings)
        self.forecasts = ForecastTable(self._engine, settings)
        self.quality = QualityTable(self._engine, settings)
        self.books = BooksTable(self._engine, settings)

    @property
    def address(self) -> str:
        """`host:port/database`."""
        return address(self._settings)

    def check(self) -> None:
        """Do nothing with the database but ask it a question.

        Raises:
            UnreachableError: it does not answer, or not with Millrace's tables.
        """
        with translated(self._settings), self._engine.connect() as connection:
            connection.execute(sa.text("select 1 from desired_state limit 1"))

    def close(self) -> None:
        """Give the pool's connections back."""
        self._engine.dispose()
