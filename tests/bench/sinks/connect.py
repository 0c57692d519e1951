"""Kafka Connect beside a stack: one standalone worker with Debezium's JDBC sink, as a benchmark needs it.

Connect's runtime is among the broker's own jars, so it has the broker's version. The sink's jars are in `LOCK`; they
are fetched, checked and kept as those of the stack are. 3.5.0.Final is the newest stable connector whose dependencies
resolve: 3.6.0.Final asks for a version of hibernate-agroal that is not published. The drivers of other databases are
left out, and what the sink has from its worker: Kafka's classes, Jackson, SLF4J, the compressions.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from millrace.embedded import ports
from millrace.embedded.jars import parts
from millrace.embedded.jars.java import find_java
from millrace.embedded.jars.parts import Jar
from millrace.embedded.layout import cache_folder, write_private
from millrace.embedded.servers.kafka import LOGGING
from support.waiting import Deadline, DeadlinePassedError, eventually, exit_code_of

CONNECTOR = "io.debezium.connector.jdbc.JdbcSinkConnector"
HEAP = "1g"

LOCK = """
0ee97bf32936349d6a4cf6d8428533bf4a4b5b3e7e55fd9a4f19508ce062a775 com.fasterxml.jackson.datatype:jackson-datatype-jsr310:2.19.0
cb868f231c5cceb89d795ea00e6e1b7a93b8f4ac1ce1d8be76dde322dff4a046 com.fasterxml:classmate:1.7.0
4d85a7d4643a22df7e9e21a159e022de462530727443ec83d190321eb305851d com.mchange:c3p0:0.12.0
fd88e385a38df7701177b076e35048a841dc5df1118c6b2d860bba08c41bc0b6 com.mchange:mchange-commons-java:0.4.0
7fd6792361f4dd00f8c56af4a20cecc0066deea4a8f3dec38348af23fc2296ee com.sun.istack:istack-commons-runtime:4.1.2
d1267b742b9a83b5c0c3e24d417f75c93dc5d4640d5fcee7d24390a0ddf96cb3 io.debezium:debezium-api:3.5.0.Final
9430a5bb4dc9f6ee12015c3e3925f14a3e07906ccdf005a295be116ea5e0d5c8 io.debezium:debezium-config:3.5.0.Final
0c8579e75dbe0f4993a87fe8e85baa39b87170412348121dc67837740d080dbf io.debezium:debezium-connect-plugins:3.5.0.Final
68b87943d99eb36c2c9639c132ff3528eed87e057d137df93e60d291db149dd4 io.debezium:debezium-connector-common:3.5.0.Final
ff0a00aa10b4be29ffd98e4a131b8309c85b40b4f464489cf70d3ae614e147ac io.debezium:debezium-connector-jdbc:3.5.0.Final
ac6ec9bbcae42cb5bc05200f9f2c5268d591b6abadc2ec209df7cffdcdc5f5fe io.debezium:debezium-openlineage-api:3.5.0.Final
e961e77a88e21073cb00bc18c4c3088618c033ea48918d61217c3b90da955344 io.debezium:debezium-sink:3.5.0.Final
ca5ba9a7f89b0a3f6f38ea37e88ac77fdc64b508a44ea5fc9b6a19cce22a7234 io.debezium:debezium-util:3.5.0.Final
01b176d718a169263e78290691fc479977186bcc6b333487325084d6586f4627 jakarta.activation:jakarta.activation-api:2.1.3
f7dc98062fccf14126abb751b64fab12c312566e8cbdc8483598bffcea93af7c jakarta.inject:jakarta.inject-api:2.0.1
be8a26b0e75c84c1b7600f759256fbc68d60333d89ec0ce3f784fc3ffa09aa8c jakarta.persistence:jakarta.persistence-api:3.2.0
50c0a7c760c13ae6c042acf182b28f0047413db95b4636fb8879bcffab5ba875 jakarta.transaction:jakarta.transaction-api:2.0.1
6b3b3628b8b4aedda0d24c3354335e985497d8ef3c510b8f3028e920d5b8663d jakarta.ws.rs:jakarta.ws.rs-api:3.1.0
0d6bcfe47763e85047acf7c398336dc84ff85ebcad0a7cb6f3b9d3e981245406 jakarta.xml.bind:jakarta.xml.bind-api:4.0.2
d26382a839cb26d5c62a0b0f04715bcef55a531f96ac6ce40de452a1c0539e70 net.bytebuddy:byte-buddy:1.17.6
da66be0c98acfb29bc708300d05f1a3269c40f9984a4cb9251cf2ba1898d1334 org.antlr:antlr4-runtime:4.10.1
6dd3bcffc22bce83b07376a0e2e094e4964a3195d4118fb43e380ef35436cc1e org.eclipse.angus:angus-activation:2.0.2
ad3fd9bf00de3eda9859f70b6cfb011e2fe9904804e16a2665092888ece0fdca org.glassfish.jaxb:jaxb-core:4.0.5
485d8940e76373a7f300815ea5504bf5b726c234425ad30971019d133124cca4 org.glassfish.jaxb:jaxb-runtime:4.0.5
917355bc451481f30d043b24d123110517966af34383901773882810dca480e5 org.glassfish.jaxb:txw2:4.0.5
bdb42c4979001742ebc098f3b206dd1057dc93be55c50a31c3f027d3eed06412 org.hibernate.models:hibernate-models:1.0.1
9b43cd8c0527334368943666ffb8d7f1cc5fb8d94b551bcf0beaa08463b8f96c org.hibernate.orm:hibernate-c3p0:7.1.0.Final
3d290966bbc074597c26cd2a975827fe37d5fe2951f3394a0cafe9ccf21eee3a org.hibernate.orm:hibernate-core:7.1.0.Final
5e08a4b092dc85b337f0910a740571d8720cfa565fabd880a8caf94a657ca416 org.jboss.logging:jboss-logging:3.6.1.Final
157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460 org.postgresql:postgresql:42.7.7
"""  # noqa: E501
"""What `parts.retrieve(..., transitive=True)` brought for io.debezium:debezium-connector-jdbc, by SHA-256."""


def versions() -> str:
    """Of the worker, the sink and its driver."""
    kafka = next(jar.version for jar in parts.read_lock("kafka") if jar.name == "connect-runtime")
    sink = {jar.name: jar.version for jar in _locked()}
    return (
        f"Kafka Connect {kafka}, Debezium JDBC sink {sink['debezium-connector-jdbc']}, "
        f"Hibernate {sink['hibernate-core']}, pgjdbc {sink['postgresql']}"
    )


def fetch_sink(scratch: Path) -> list[Path]:
    """The sink's jars in the user's cache, each checked; only what is absent is downloaded."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with parts._one_at_a_time(folder / "jars.lock", print):
        if absent := [jar for jar in _locked() if not parts._is_whole(jar, folder)]:
            parts._download([absent], find_java(scratch / "java"), print, folder)
    return [jar.path_in(folder) for jar in _locked()]


def _locked() -> Sequence[Jar]:
    lines = [line.partition(" ") for line in LOCK.split("\n") if line]
    return [Jar(sha256, *coordinate.split(":")) for sha256, _, coordinate in lines]


class Worker:
    """A standalone worker on a free port of 127.0.0.1, running while it is entered; its files are in `scratch`.

    The sink has a class loader of its own there, as it has where somebody unpacks its archive into `plugin.path`.
    """

    def __init__(self, scratch: Path, bootstrap_servers: str, consumer: Mapping[str, str]) -> None:
        self._folder = scratch
        self._consumer = consumer
        self._servers = bootstrap_servers
        self._port = next(port for port in random.SystemRandom().sample(ports.RANGE, 1000) if ports.is_free(port))
        self._rest = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        java = find_java(self._folder / "java")
        broker = parts.fetch(["kafka"], java, print).jars["kafka"]
        plugin = self._folder / "plugins" / "debezium-jdbc"
        plugin.mkdir(parents=True)
        for number, jar in enumerate(fetch_sink(self._folder)):  # two organisations may have a jar of one name
            (plugin / f"{number:02}-{jar.name}").symlink_to(jar)
        write_private(self._folder / "worker.properties", self._properties())
        write_private(self._folder / "log4j2.properties", LOGGING.format(level="INFO", target="SYSTEM_OUT"))
        command = [str(java.program), "-Xms256m", f"-Xmx{HEAP}", "-XX:+UseG1GC", "-Djava.awt.headless=true"]
        command += [f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"]
        command += ["org.apache.kafka.connect.cli.ConnectStandalone", str(self._folder / "worker.properties")]
        environment = os.environ | {"CLASSPATH": os.pathsep.join(map(str, broker))}
        with (self._folder / "worker.log").open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self._folder)
        try:
            eventually(self._answers, within=Deadline.STACK, what="Connect to answer", ignoring=(httpx.TransportError,))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def add(self, name: str, settings: Mapping[str, str]) -> None:
        """Start a connector."""
        answer = self._rest.put(f"/connectors/{name}/config", json=dict(settings))
        assert answer.is_success, f"{answer.text[:1000]}\n{self.log()[-3000:]}"

    def running_tasks(self, name: str) -> int:
        """How many tasks of a connector run.

        Raises:
            AssertionError: one has failed.
        """
        answer = self._rest.get(f"/connectors/{name}/status")
        if not answer.is_success:  # 404 until the connector is known
            return 0
        found: dict[str, Any] = answer.json()
        failed = [part for part in (found["connector"], *found["tasks"]) if part["state"] == "FAILED"]
        assert not failed, f"{json.dumps(failed)[:6000]}"
        return sum(task["state"] == "RUNNING" for task in found["tasks"])

    def log(self) -> str:
        """What the worker has written."""
        return (self._folder / "worker.log").read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"Connect ended:\n{self.log()[-3000:]}"
        return self._rest.get("/").is_success

    def _properties(self) -> str:
        lines = {
            "bootstrap.servers": self._servers,
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.path": str(self._folder / "plugins"),
            "plugin.discovery": "service_load",
            "offset.storage.file.filename": str(self._folder / "offsets"),
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            **{f"consumer.{name}": value for name, value in self._consumer.items()},
        }
        return "".join(f"{name}={value}\n" for name, value in lines.items())

    def _end(self) -> None:
        self._rest.close()
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            exit_code_of(self._process, within=Deadline.SESSION, what="Connect to end")
        except DeadlinePassedError:
            self._process.kill()
            self._process.wait(30)
