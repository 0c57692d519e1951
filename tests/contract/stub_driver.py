"""A stand-in for a stream's driver: does what its first argument says. Nothing of Millrace is imported."""

import os
import signal
import subprocess
import sys
import time

SLEEP = [sys.executable, "-c", "import time\nwhile True: time.sleep(60)"]


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


def fork_bomb() -> None:
    """A child that forks without end; killing what a list shows never catches all of it."""
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                os.setsid()
            time.sleep(0.02)


def main(behaviour: str) -> int:
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
    if behaviour == "bomb":
        fork_bomb()
    print("ready", flush=True)
    if behaviour == "die-leaving-family":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
