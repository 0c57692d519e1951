"""Three brokers on this machine, one of them also the controller, for what a single one cannot show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millrace.embedded.kafka import LOGGING
from millrace.embedded.program import Program
from millrace.embedded.stack import Stack
from millrace.settings import KafkaSettings
from support.waiting import Deadline, eventually

CLUSTER_ID = "bWlsbHJhY2UtdGhyZWUtYg"
HEAP = "-Xmx256m"


@dataclass
class Broker:
    """One of the three; `command` starts it."""

    node: int
    port: int
    command: list[str]
    environment: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not ready then."""
        with (self.folder / "out").open("ab") as out:
            self.process = subprocess.Popen(self.command, env=self.environment, stdout=out, stderr=out)

    def kill(self) -> None:
        """End it without a word."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def hang(self) -> None:
        """It takes connections, and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After `hang`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@dataclass
class ThreeBrokers:
    """The cluster. Broker 1 is the controller, so it stays."""

    brokers: dict[int, Broker]

    @property
    def settings(self) -> KafkaSettings:
        """Every broker's address."""
        return KafkaSettings({"bootstrap.servers": ",".join(f"127.0.0.1:{b.port}" for b in self.brokers.values())})

    def wait_for(self, count: int) -> None:
        """Until so many brokers are in the cluster."""
        client = AdminClient({**self.settings.librdkafka, "log_level": 0})

        def nodes() -> bool:
            return len(client.describe_cluster(request_timeout=5).result(10).nodes) == count

        what = f"{count} brokers in the cluster"
        eventually(nodes, within=Deadline.SERVER, what=what, ignoring=(KafkaException,))


@contextmanager
def three_brokers(kafka: Stack, folder: Path) -> Iterator[ThreeBrokers]:
    """Three brokers, started with the Java and the jars of a stack that has run; ended with the block."""
    program = Program.read(kafka.layout, "kafka")
    java, environment = program.command[0], {**os.environ, **program.environment}
    ports = _free_ports(4)
    made: dict[int, Broker] = {}
    try:
        for node in (1, 2, 3):
            made[node] = _broker(node, ports, java, environment, folder)
            made[node].start()
        cluster = ThreeBrokers(made)
        cluster.wait_for(3)
        yield cluster
    finally:
        for broker in made.values():
            broker.kill()


def _broker(node: int, ports: list[int], java: str, environment: dict[str, str], folder: Path) -> Broker:
    own = folder / f"broker-{node}"
    own.mkdir()
    (own / "log4j2.properties").write_text(LOGGING.format(level="WARN", target="SYSTEM_OUT"))
    lines = {
        "process.roles": "broker,controller" if node == 1 else "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"1@127.0.0.1:{ports[0]}",
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[node]}"
        + (f",CONTROLLER://127.0.0.1:{ports[0]}" if node == 1 else ""),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[node]}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(own / "data"),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "12",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
    (own / "server.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    logging = f"-Dlog4j2.configurationFile={own / 'log4j2.properties'}"
    format_it = [java, HEAP, logging, "kafka.tools.StorageTool", "format", f"--cluster-id={CLUSTER_ID}"]
    subprocess.run(
        [*format_it, "-c", str(own / "server.properties")],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=Deadline.COMMAND.seconds,
    )
    command = [java, HEAP, logging, "kafka.Kafka", str(own / "server.properties")]
    return Broker(node, ports[node], command, environment, own)


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different: held together until all are known."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found
