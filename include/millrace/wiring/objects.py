"""Buckets, built by Connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.adapters.quality.evidence import QualityEvidence
    from millrace.ports.objects import ObjectStore

HASTY_SECONDS = 5  # for one request to a bucket that can be left unanswered


def hasty_store(settings: Settings, connection: str, *, attempts: int) -> ObjectStore:
    """Return a bucket whose requests have few seconds each.

    Args:
        settings: the installation's.
        connection: the bucket's.
        attempts: how often a request is sent.
    """
    from millrace.adapters.s3.store import S3Store

    return S3Store(settings.s3(connection), attempts=attempts, read_seconds=HASTY_SECONDS)


@dataclass(frozen=True)
class ObjectAdapters:
    """Buckets by `aws` Connections (`ports.platform.Objects`)."""

    settings: Settings
    _stores: dict[str, ObjectStore] = field(default_factory=dict, repr=False)

    def store(self, connection: str = "millrace_s3") -> ObjectStore:
        """Return a bucket; the same one to every thread."""
        if connection not in self._stores:
            from millrace.adapters.s3.store import S3Store

            self._stores.setdefault(connection, S3Store(self.settings.s3(connection)))  # one, also for two threads
        return self._stores[connection]

    def quality_evidence(self, connection: str = "millrace_s3") -> QualityEvidence:
        """Return the evidence of quality checks in a bucket."""
        from millrace.adapters.quality.evidence import QualityEvidence

        return QualityEvidence(self.store(connection))
