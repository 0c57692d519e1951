"""A stand-in for a stream's driver: does what its first argument says. Nothing of Millrace is imported.

However it is used, it is at most `CHAIN_LENGTH` processes and a handful, and each of them ends by itself.
"""

import os
import signal
import subprocess
import sys
import time

LIFE_SECONDS = 300
CHAIN_LENGTH = 100
CHAIN_STEP_SECONDS = 0.3  # half a minute in all: a machine that is busy elsewhere still sees it grow
CHAIN_LIFE_SECONDS = 60
SLEEP = [sys.executable, "-c", f"import time\ntime.sleep({LIFE_SECONDS})"]


def stop_on_sigterm(code: int = 0) -> None:
    def end(number: int, frame: object) -> None:
        print("stopping as asked", flush=True)
        os._exit(code)

    signal.signal(signal.SIGTERM, end)


def worker_in_its_own_group() -> None:
    """What pyspark.daemon does: a grandchild that left group and session and lost its parent."""
    subprocess.Popen(
        [sys.executable, "-c", f"import subprocess\nsubprocess.Popen({SLEEP!r}, start_new_session=True)"]
    ).wait()


def fork_chain() -> None:
    """A child that forks the next one and lives on, and so on: the newest is never in a list made before.

    Each process forks once, so that there are `CHAIN_LENGTH` at most, whatever the machine does meanwhile.
    """
    for _ in range(CHAIN_LENGTH):
        if os.fork():
            return  # lives on as its caller does
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(CHAIN_LIFE_SECONDS)  # an alarm does not pass on to a child
        time.sleep(CHAIN_STEP_SECONDS)


def main(behaviour: str) -> int:
    signal.alarm(LIFE_SECONDS)
    print(f"behaviour {behaviour}", flush=True)
    if behaviour.startswith("exit:"):
        return int(behaviour.removeprefix("exit:"))
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        stop_on_sigterm()
    if behaviour in ("family", "deaf", "die-leaving-family"):
        subprocess.Popen(SLEEP)
        subprocess.Popen(SLEEP, process_group=0)
        worker_in_its_own_group()
    first = os.getpid()
    if behaviour == "chain":
        fork_chain()
    if os.getpid() == first:
        print("ready", flush=True)
    if behaviour == "die-leaving-family":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LIFE_SECONDS)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
