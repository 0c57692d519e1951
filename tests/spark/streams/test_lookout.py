"""Whether Spark's JVM answers: a real one, stopped and let go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millrace.adapters.apps.status import beat_of
from millrace.domain.streams.supervision import Phase
from millrace.domain.streams.vitals import Trouble, trouble
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millrace.runtime.life.pulse import Pulse


@pytest.fixture
def pulse(tmp_path: Path) -> Iterator[Pulse]:
    from millrace.runtime.life.pulse import Pulse

    made = Pulse(tmp_path / "status.json", timedelta(seconds=2))
    made.phase(Phase.RUNNING)
    yield made
    made.close()


def test_a_jvm_that_was_stopped_is_told_from_a_driver_that_was(
    spark: SparkSession, pulse: Pulse, tmp_path: Path
) -> None:
    from millrace.runtime.life.lookout import Lookout

    def seen() -> Trouble | None:
        """As at the very last beat: this process is well."""
        beat = beat_of(json.loads((tmp_path / "status.json").read_text()))
        assert beat is not None
        return trouble(beat.vitals(phase="running", now=beat.at))

    jvm = spark.sparkContext._gateway.proc.pid
    Lookout(pulse).watch_jvm(spark)
    os.kill(jvm, signal.SIGSTOP)
    try:
        found = eventually(seen, within=Deadline.SPARK, what="the JVM to be missed")
    finally:
        os.kill(jvm, signal.SIGCONT)
    assert found.restart
    assert "Spark's JVM does not answer its driver" in found.why
    eventually(lambda: seen() is None, within=Deadline.SPARK, what="the JVM's answer")
