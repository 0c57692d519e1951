"""The last lines of a driver's log as people may see them in Airflow: with the secrets of its connections masked."""

from __future__ import annotations

from airflow.sdk.log import redact

from millrace.errors import MillraceError
from millrace.ports.platform import Platform
from millrace.usecases.streams.look import connections_of

LINES = 20


def last_words(platform: Platform, stream: str, epoch: int) -> str:
    """What a driver said last, and where all of it stands.

    Guarantees: every connection the stream declares is looked up through Airflow's SDK first, which tells the
    secrets masker its secrets. Where that cannot be, no line is shown.
    """
    whole = f"The whole log: `millrace streams logs {stream} --epoch {epoch}`"
    lines = platform.apps.last_lines(stream, epoch, LINES)
    if not lines:
        return f"The driver's log is empty. {whole}"
    try:
        for name in connections_of(platform, stream):
            platform.settings.connection(name)
    except MillraceError as error:
        return f"The end of the driver's log is not shown, because its secrets are not known: {error}\n{whole}"
    return str(redact("\n".join(["The end of the driver's log:", *lines, whole])))
