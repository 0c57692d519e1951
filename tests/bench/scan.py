"""Program: scan and decode a topic to nowhere with the stream's own settings, once for each line on standard input.

Arguments: project root, stream, a scratch folder. A line is a JSON object of end offsets and start offsets by
partition; the answer is one JSON line with records, seconds and CPU seconds of this process tree.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil

from millrace import declarations
from millrace.adapters.kafka.log import KafkaLog
from millrace.runtime.life.session import open_session
from millrace.runtime.stream.source import as_raw, decoded, read_options
from millrace.settings import open_settings


def main(root: Path, qualified: str, scratch: Path) -> None:
    settings = open_settings(root)
    pipeline = declarations.load_pipeline(root, qualified.partition(".")[0], None)
    stream = pipeline.stream(qualified.partition(".")[2])
    kafka = settings.kafka(pipeline.kafka)
    jars = [Path(line) for line in (settings.state_folder / "spark-jars").read_text().splitlines()]
    session = open_session(stream, 0, jars, scratch)
    (topic,) = stream.reads
    topic_id = KafkaLog(kafka, client_id="bench").partitions(stream.reads)[0].topic_id
    print("ready", flush=True)
    for line in sys.stdin:
        ranges = json.loads(line)
        bounds = {
            "startingOffsets": json.dumps({topic: ranges["first"]}),
            "endingOffsets": json.dumps({topic: ranges["next"]}),
        }
        raw = as_raw(session.read.format("kafka").options(**read_options(kafka, stream), **bounds).load())
        before, began = cpu_seconds(), time.monotonic()
        decoded(raw, pipeline.topics_of(stream)[topic], topic_id).write.format("noop").mode("overwrite").save()
        print(json.dumps({"seconds": time.monotonic() - began, "cpu_seconds": cpu_seconds() - before}), flush=True)


def cpu_seconds() -> float:
    """Of this process, Spark's JVM and its Python workers, those that ended among them."""
    mine = psutil.Process()
    total = 0.0
    for process in [mine, *mine.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
