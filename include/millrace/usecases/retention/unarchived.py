"""How long what a backup has not archived yet stays in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.domain.declaration.pipeline import BackupApp
from millrace.domain.groups.commits import archived_to
from millrace.domain.retention.headroom import Headroom

if TYPE_CHECKING:
    from millrace.ports.platform import Platform


def of_backup(platform: Platform, kafka: str, app: BackupApp) -> Headroom | None:
    """The record that may be deleted first of those that the group's commits do not call archived; None: none may.

    Args:
        platform: the adapters.
        kafka: the Connection of the app's cluster.
        app: the backup.

    Raises:
        UnreachableError: a broker does not answer.
        DataLossError: records were deleted while they were looked at.
    """
    log = platform.kafka.logs(kafka)
    partitions = log.partitions(app.reads)
    return platform.kafka.unread(kafka).least(archived_to(partitions, log.committed(app.group, partitions)))
