"""A driver without Spark, Kafka or sink: it claims its epoch, gives heartbeats, and ends as asked after a moment.

Claim, status and heartbeat are the product's own. A project has it as `spark_apps/stream.py`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from datetime import timedelta
from types import FrameType

from millrace.adapters.apps.host import make_host
from millrace.adapters.control.store import ControlStore
from millrace.domain.streams.supervision import ExitReason, Phase
from millrace.runtime.life.heartbeat import Heartbeat
from millrace.runtime.life.pulse import Pulse
from millrace.settings import open_settings, project_root

LIFE_SECONDS = 600
BATCH_SECONDS = 0.3


def main() -> int:
    signal.alarm(LIFE_SECONDS)
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    parser = argparse.ArgumentParser()
    parser.add_argument("--stream")
    parser.add_argument("--epoch", type=int)
    parser.add_argument("--instance")
    named = parser.parse_args()
    settings = open_settings(project_root())
    control, host = ControlStore(settings.postgres("millrace_control")), make_host(settings.root)
    if not control.streams.claim(named.stream, named.epoch, named.instance, host.identity):
        return ExitReason.CLAIM_LOST
    folder = settings.state_folder / "streams" / named.stream / str(named.epoch)
    pulse = Pulse(folder / "status.json", timedelta(minutes=2))

    def beat() -> None:
        phase, step = pulse.doing
        if not control.hosts.beat(named.stream, named.epoch, named.instance, host, phase=phase, step=step):
            stop.set()

    heartbeat = Heartbeat(beat)
    heartbeat.start()
    pulse.phase(Phase.RUNNING)
    stop.wait()
    pulse.phase(Phase.DRAINING)
    threading.Event().wait(BATCH_SECONDS)  # the batch in flight takes so long
    pulse.phase(Phase.ENDED)
    heartbeat.close()
    pulse.close()
    return ExitReason.STOPPED


if __name__ == "__main__":
    sys.exit(main())
