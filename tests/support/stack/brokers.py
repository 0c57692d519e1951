"""A cluster of small brokers that are controllers too, to be killed, stopped and brought back one by one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from millrace.embedded.servers.kafka import LOGGING
from millrace.settings import KafkaSettings
from support.stack.embedded import quick_java
from support.waiting import Deadline, exit_code_of

NODES = (1, 2, 3)
SESSION_MS = 4000


class Brokers:
    """Topics and internal topics have one replica each, so that a broker takes what is its own away with it."""

    def __init__(
        self, folder: Path, jars: list[Path], nodes: Sequence[int] = NODES, more: Mapping[str, object] | None = None
    ) -> None:
        self._folder = folder
        self._nodes = nodes
        self._more = more or {}
        self._java = str(quick_java() / "bin" / "java")
        self._environment = os.environ | {"CLASSPATH": os.pathsep.join(map(str, jars))}
        self._ports = _free_ports(2 * len(nodes))
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def settings(self) -> KafkaSettings:
        return KafkaSettings({"bootstrap.servers": ",".join(f"127.0.0.1:{self._ports[n - 1]}" for n in self._nodes)})

    def format(self) -> None:
        cluster = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        for node in self._nodes:
            at = self._folder / str(node)
            at.mkdir()
            (at / "server.properties").write_text(self._properties(node))
            (at / "log4j2.properties").write_text(LOGGING.format(level="WARN", target="SYSTEM_OUT"))
            tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}"]
            command = [self._java, "-Xmx128m", *tool, "-c", str(at / "server.properties")]
            subprocess.run(
                command, env=self._environment, check=True, capture_output=True, timeout=Deadline.COMMAND.seconds
            )

    def start(self, node: int) -> None:
        at = self._folder / str(node)
        command = [self._java, "-Xmx256m", f"-Dlog4j2.configurationFile={at / 'log4j2.properties'}"]
        with (at / "out").open("ab") as out:
            self._running[node] = subprocess.Popen(
                [*command, "kafka.Kafka", str(at / "server.properties")],
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def data(self, node: int) -> Path:
        return self._folder / str(node) / "data"

    def kill(self, node: int) -> None:
        process = self._running.pop(node)
        process.kill()  # also one that was stopped
        exit_code_of(process, within=Deadline.KILLED, what=f"the end of broker {node}")

    def stop(self, node: int) -> None:
        """Let it take connections and answer nothing."""
        self._running[node].send_signal(signal.SIGSTOP)

    def go_on(self, node: int) -> None:
        self._running[node].send_signal(signal.SIGCONT)

    def end(self) -> None:
        for node in list(self._running):
            self.kill(node)

    def _properties(self, node: int) -> str:
        broker, controller = self._ports[node - 1], self._ports[len(self._nodes) + node - 1]
        lines = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": ",".join(
                f"{n}@127.0.0.1:{self._ports[len(self._nodes) + n - 1]}" for n in self._nodes
            ),
            "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data(node),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 12,
            "group.initial.rebalance.delay.ms": 0,
            "broker.session.timeout.ms": SESSION_MS,
            "log.cleaner.dedupe.buffer.size": 16777216,
            "num.io.threads": 2,
            "num.network.threads": 2,
            **self._more,
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        return [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@contextmanager
def three_brokers(folder: Path, jars: list[Path]) -> Iterator[Brokers]:
    """All three started; ended with the block, however that ends."""
    with _started(Brokers(folder, jars), NODES) as made:
        yield made


@contextmanager
def one_broker(folder: Path, jars: list[Path], **settings: object) -> Iterator[Brokers]:
    """One, with settings of its own (`_` for `.`); ended with the block, however that ends."""
    more = {name.replace("_", "."): value for name, value in settings.items()}
    with _started(Brokers(folder, jars, (1,), more), (1,)) as made:
        yield made


@contextmanager
def _started(made: Brokers, nodes: Sequence[int]) -> Iterator[Brokers]:
    try:
        made.format()
        for node in nodes:
            made.start(node)
        yield made
    finally:
        made.end()
