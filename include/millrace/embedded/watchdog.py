"""The watchdog's program: `python -m millrace.embedded.watchdog`, in a project's folder or with MILLRACE_ROOT.

One runs on each host, under a supervisor. It imports neither Airflow nor Spark, and needs no server to start.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from millrace.adapters.alarms.outage import OutageFiles
from millrace.domain.alarms.outage import OUTAGE_AFTER
from millrace.domain.declaration.pipeline import CONTROL
from millrace.errors import Code, MillraceError, RefusedError, UsageError
from millrace.settings import open_settings
from millrace.usecases.alarms.watchdog import LOOK_EVERY, UsableNotifiers, Watchdog, Watched, look_at
from millrace.usecases.declaration.environment import environment_of
from millrace.wiring import open_platform

LOCK = "watchdog.lock"
AFTER_VARIABLE = "MILLRACE_OUTAGE_AFTER_SECONDS"


def main(variables: Mapping[str, str]) -> int:
    """Look until the process is ended; the exit code where it cannot begin."""
    os.umask(0o077)
    try:
        run(variables)
    except MillraceError as error:
        print(f"millrace: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(variables: Mapping[str, str]) -> None:
    """Look at the control database every ten seconds, for ever.

    Raises:
        RefusedError: another watchdog of this project is at work.
        UnreachableError: there is no Connection `millrace_control`.
        UsageError: this is not inside a project, or a variable is wrong.
    """
    settings = open_settings()
    after = _outage_after(variables)
    settings.state_folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(settings.state_folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)  # held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RefusedError(
            "another watchdog of this project runs already",
            where=str(settings.state_folder / LOCK),
            next_step="stop this one; the embedded stack has its own watchdog",
            code=Code.ALREADY_EXISTS,
        ) from None
    database = settings.postgres(CONTROL)
    platform = open_platform(settings)
    watched = Watched(
        subject=f"{database.host}:{database.port}/{database.database}",
        host=socket.gethostname(),
        look=lambda: look_at(platform),
        notifiers=UsableNotifiers(platform, lambda: environment_of(settings.root), _say),
        say=_say,
        outage_after=after,
    )
    watchdog = Watchdog(watched, OutageFiles(settings.state_folder))
    pause = min(LOOK_EVERY, after) / timedelta(seconds=1)
    while True:
        watchdog.look()
        time.sleep(pause)


def _outage_after(variables: Mapping[str, str]) -> timedelta:
    text = variables.get(AFTER_VARIABLE) or str(OUTAGE_AFTER.total_seconds())
    try:
        seconds = float(text)
        if 1 <= seconds <= 3600:
            return timedelta(seconds=seconds)
    except ValueError:
        pass
    raise UsageError(
        "the time is not a number from 1 to 3600",
        where=AFTER_VARIABLE,
        next_step="set a number, or remove the variable: the default is 60",
        code=Code.WRONG_TIME,
    )


def _say(text: str) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(os.environ))
