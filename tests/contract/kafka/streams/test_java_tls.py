"""Java's client, which Spark's source is, makes a TLS connection by what a Connection becomes in its words.

No broker speaks TLS here: a front does, so a handshake and the first request are what is shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.adapters.kafka.settings.spark import for_spark
from millrace.embedded.stack import Stack
from millrace.settings import KafkaSettings
from support.stack.certificates import Certificates
from support.stack.tls_front import TlsFront, tls_front
from support.waiting import Deadline, eventually


@contextmanager
def java_client(stack: Stack, settings: Mapping[str, str], folder: Path) -> Iterator[None]:
    """A stock tool that tries to connect until the test is done."""
    file = folder / "client.properties"
    escaped = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in settings.items()}
    file.write_text("".join(f"{key}={value}\n" for key, value in escaped.items()), encoding="utf-8")
    tool = stack.layout.tools / "kafka-get-offsets"
    order = [tool, "--bootstrap-server", settings["bootstrap.servers"], "--command-config", file]
    process = subprocess.Popen(order, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(Deadline.KILLED.seconds)


def heard_or_refused(front: TlsFront) -> bool:
    eventually(
        lambda: front.heard.is_set() or front.refused, within=Deadline.COMMAND, what="a handshake of Java's client"
    )
    return front.heard.is_set()


@pytest.mark.parametrize(("algorithm", "connects"), [("none", True), ("https", False)])
def test_a_host_name_is_compared_unless_the_connection_says_none(
    kafka: Stack, tmp_path: Path, algorithm: str, connects: bool
) -> None:
    made = Certificates.make(tmp_path, host="elsewhere.example")
    host, _, port = kafka.settings().kafka().bootstrap_servers.partition(":")
    with tls_front(made, (host, int(port))) as front:
        given = {
            "bootstrap.servers": f"127.0.0.1:{front.port}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(made.authority),
            "ssl.endpoint.identification.algorithm": algorithm,
        }
        with java_client(kafka, for_spark(KafkaSettings(given)), tmp_path):
            assert heard_or_refused(front) is connects


def test_a_keystore_proves_who_the_client_is(kafka: Stack, tmp_path: Path) -> None:
    made = Certificates.make(tmp_path, user="ann")
    host, _, port = kafka.settings().kafka().bootstrap_servers.partition(":")
    with tls_front(made, (host, int(port)), wants_certificate=True) as front:
        given = {
            "bootstrap.servers": f"127.0.0.1:{front.port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(made.authority),
            "ssl.keystore.location": str(made.keystore),
            "ssl.keystore.password": made.keystore_password,
        }
        with java_client(kafka, for_spark(KafkaSettings(given)), tmp_path):
            assert heard_or_refused(front)
        assert "ann" in front.users


def test_an_authority_as_text_is_trusted(kafka: Stack, tmp_path: Path) -> None:
    made = Certificates.make(tmp_path)
    host, _, port = kafka.settings().kafka().bootstrap_servers.partition(":")
    with tls_front(made, (host, int(port))) as front:
        given = {
            "bootstrap.servers": f"127.0.0.1:{front.port}",
            "security.protocol": "SSL",
            "ssl.ca.pem": made.authority.read_text(),
        }
        with java_client(kafka, for_spark(KafkaSettings(given)), tmp_path):
            assert heard_or_refused(front)
