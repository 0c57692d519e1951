"""The control database: one port a noun, and the database as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # for annotations alone: whoever builds or takes a platform needs none of them
    from millrace.ports.control.alarms import Alarms
    from millrace.ports.control.backups import Backups
    from millrace.ports.control.pages import Pages
    from millrace.ports.control.plans import ActionLog, Plans
    from millrace.ports.control.quality import BooksRuns, QualityChecks
    from millrace.ports.control.retention import Forecasts, Holds
    from millrace.ports.control.snapshots import Snapshots
    from millrace.ports.control.streams import Hosts, Streams


class Control(Protocol):
    """The control database. Each method of its parts is one short transaction.

    Any call may raise UnreachableError: the database does not answer.
    """

    @property
    def streams(self) -> Streams:
        """Desired states, starts and looks of streams."""
        ...

    @property
    def hosts(self) -> Hosts:
        """Signs and heartbeats of hosts, and the owner of each stream."""
        ...

    @property
    def plans(self) -> Plans:
        """Stored plans."""
        ...

    @property
    def log(self) -> ActionLog:
        """The action log."""
        ...

    @property
    def alarms(self) -> Alarms:
        """Alarms."""
        ...

    @property
    def backups(self) -> Backups:
        """Acknowledgements and expiries that backups are asked for."""
        ...

    @property
    def snapshots(self) -> Snapshots:
        """Snapshots of clusters."""
        ...

    @property
    def holds(self) -> Holds:
        """Holds of topics."""
        ...

    @property
    def forecasts(self) -> Forecasts:
        """Looks at topics, and forecasts of their growth."""
        ...

    @property
    def quality(self) -> QualityChecks:
        """Quality checks and their marks."""
        ...

    @property
    def books(self) -> BooksRuns:
        """Runs of the books and their marks."""
        ...

    @property
    def pages(self) -> Pages:
        """Queries of the pages, by connections of their own."""
        ...

    @property
    def address(self) -> str:
        """`host:port/database`."""
        ...

    def check(self) -> None:
        """Ask the database one question.

        Raises:
            UnreachableError: it does not answer, or not with Millrace's tables.
        """
        ...

    def close(self) -> None:
        """Give the pool's connections back."""
        ...
