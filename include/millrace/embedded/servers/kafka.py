"""The embedded Kafka: one node that is broker and controller (KRaft), on 127.0.0.1."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from millrace.embedded import ports
from millrace.embedded.layout import write_private
from millrace.embedded.servers.part import NotReadyError, Site
from millrace.embedded.servers.program import Program
from millrace.errors import PartFailedError

TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""Kafka's own command line tools, under the names its distribution gives them."""

LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.target={target}
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level={level}
rootLogger.appenderRef.console.ref=console
"""


class Kafka:
    """One broker. Topics are only ever made on purpose; internal topics are small and not replicated."""

    name = "kafka"
    port_names: tuple[str, ...] = ("kafka", "kafka_controller")
    program_names: tuple[str, ...] = ("kafka",)
    patience = timedelta(seconds=90)

    def prepare(self, site: Site, tell: Callable[[str], None]) -> None:
        """Write the broker's properties, format its folder on the first start, wrap the command line tools."""
        folder = self._folder(site)
        folder.mkdir(parents=True, exist_ok=True)
        write_private(folder / "server.properties", properties(site, folder / "data"))
        write_private(folder / "log4j2.properties", LOGGING.format(level="INFO", target="SYSTEM_OUT"))
        write_private(folder / "tools-log4j2.properties", LOGGING.format(level="WARN", target="SYSTEM_ERR"))
        if not (folder / "data" / "meta.properties").exists():
            tell("kafka: formatting its storage")
            shutil.rmtree(folder / "data", ignore_errors=True)
            self._format(site)
        self._wrap_tools(site)

    def programs(self, site: Site) -> list[Program]:
        """The broker."""
        folder = self._folder(site)
        assert site.java is not None
        command = broker_command(str(site.java.program), folder)
        return [Program("kafka", command, environment={"CLASSPATH": _class_path(site)})]

    def probe(self, site: Site) -> str:
        """Ask the broker to describe its cluster."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        address = site.address("kafka")
        if ports.is_free(site.ports["kafka"]):  # the client would wait out its timeout before it said so
            raise NotReadyError(f"nothing listens on {address} yet")
        client = AdminClient({"bootstrap.servers": address, "log_level": 0}, logger=_silent())
        try:
            cluster = client.describe_cluster(request_timeout=4).result(timeout=5)
        except (KafkaException, TimeoutError) as error:
            raise NotReadyError(f"no answer on {address}: {error}") from error
        expected = self._cluster_id(site)
        if cluster.cluster_id != expected:
            raise NotReadyError(f"another cluster ({cluster.cluster_id}, not {expected}) answers on {address}")
        return f"cluster {cluster.cluster_id}, {len(cluster.nodes)} broker"

    def complete(self, site: Site, tell: Callable[[str], None]) -> None:
        """Nothing: topics are made by plans."""

    def _folder(self, site: Site) -> Path:
        return site.layout.state / "kafka"

    def _cluster_id(self, site: Site) -> str:
        text = (self._folder(site) / "data" / "meta.properties").read_text(encoding="utf-8")
        found = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
        return found.group(1) if found else ""

    def _format(self, site: Site) -> None:
        assert site.java is not None
        cluster_id = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        command = [str(site.java.program), "-Xmx256m", "kafka.tools.StorageTool", "format"]
        command += [f"--cluster-id={cluster_id}", "-c", str(self._folder(site) / "server.properties")]
        logging = f"-Dlog4j2.configurationFile={self._folder(site) / 'tools-log4j2.properties'}"
        command[1:1] = [logging]
        environment = os.environ | {"CLASSPATH": _class_path(site)}
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise PartFailedError(
                f"Kafka's storage could not be formatted:\n{(answer.stdout + answer.stderr)[-2000:]}",
                where=str(self._folder(site)),
                next_step="read the message above; `./millrace down --wipe` deletes all data for a new start",
            )

    def _wrap_tools(self, site: Site) -> None:
        assert site.java is not None
        logging = self._folder(site) / "tools-log4j2.properties"
        for name, main_class in TOOLS.items():
            script = (
                "#!/bin/sh\n"
                f"CLASSPATH={shlex.quote(_class_path(site))} exec {shlex.quote(str(site.java.program))} -Xmx256m "
                f'{shlex.quote(f"-Dlog4j2.configurationFile={logging}")} {main_class} "$@"\n'
            )
            write_private(site.layout.tools / name, script)
            (site.layout.tools / name).chmod(0o700)


def broker_command(java: str, folder: Path) -> list[str]:
    """What starts a broker with the `server.properties` and `log4j2.properties` of a folder."""
    command = [java, "-Xms128m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true"]
    command += [f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
    return [*command, "kafka.Kafka", str(folder / "server.properties")]


def properties(site: Site, data: Path) -> str:
    """The broker's properties. Its controller is reached by nobody but itself.

    Args:
        site: whose broker.
        data: the folder of its logs.
    """
    broker, controller = site.ports["kafka"], site.ports["kafka_controller"]
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{site.listen}:{broker},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://{site.address('kafka')}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "8",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "8",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "2",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
    return "".join(f"{key}={value}\n" for key, value in lines.items())


def _class_path(site: Site) -> str:
    return os.pathsep.join(str(jar) for jar in site.jars["kafka"])


def _silent() -> object:
    """A logger that keeps librdkafka's connection messages off the terminal: the probe says what it met."""
    import logging

    logger = logging.getLogger("millrace.embedded.servers.kafka.probe")
    logger.disabled = True
    return logger
