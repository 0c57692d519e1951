"""The bundled Java behind a network with a certificate authority of its own: jars from a server that it signed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from millrace.embedded.jars import certificates, parts
from millrace.embedded.jars.java import BUNDLED, Java, find_java
from millrace.embedded.jars.parts import Jar
from millrace.errors import UnreachableError
from support.waiting import Deadline, joined

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java that lives for two seconds."""
JAR = Jar("0" * 64, "org.example", "thing", "1.0")
CONTENT = b"what the repository has"


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A network's own authority, and a server's certificate signed by it beside."""
    root_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The network's own authority")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "repository")])

    def signed(subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(root).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        return builder.add_extension(extension, critical=False).sign(root_key, hashes.SHA256())

    own = tmp_path / "authority.crt"
    own.write_bytes(signed(root, root_key, x509.BasicConstraints(True, None)).public_bytes(Encoding.PEM))
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    key = server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = signed(server, server_key, names).public_bytes(Encoding.PEM)
    (tmp_path / "server.pem").write_bytes(key + certificate)
    return own


@pytest.fixture
def repository(tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Maven repository with one jar behind that certificate, asked in place of the public one."""
    jar = tmp_path / "repository" / "org" / "example" / "thing" / "1.0" / "thing-1.0.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(CONTENT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.with_name("server.pem"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "repository")))
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    settings = parts._settings
    root = f'm2compatible="true" root="https://127.0.0.1:{server.server_port}/"'
    monkeypatch.setattr(
        parts, "_settings", lambda cache, *, poms: settings(cache, poms=poms).replace('m2compatible="true"', root)
    )
    yield
    server.shutdown()
    server.server_close()
    joined(serving, within=Deadline.THREAD, what="the repository to end")


def bundled_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """What a machine without any Java gets."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK, prepend=" ")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    java = find_java(folder / "a java's home")
    assert java.source == BUNDLED
    return java


def fetched(java: Java, folder: Path) -> list[Path]:
    """What Ivy brings, asked for the one jar."""
    scratch = folder / "scratch"
    scratch.mkdir()
    return [path for path in parts.retrieve([JAR], java, scratch, lambda _: None).iterdir() if path.is_file()]


@pytest.mark.parametrize(
    "named_by",
    [
        "SSL_CERT_FILE",
        pytest.param("SSL_CERT_DIR", marks=pytest.mark.full),  # unit/embedded/jars/test_certificates.py reads both
        pytest.param("the machine's bundle", marks=pytest.mark.full),
    ],
)
@pytest.mark.usefixtures("repository")
def test_what_the_machine_trusts_the_bundled_java_trusts_too(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    if named_by == "SSL_CERT_FILE":
        monkeypatch.setenv(named_by, str(authority))
    elif named_by == "SSL_CERT_DIR":
        folder = tmp_path / "authorities"
        folder.mkdir()
        (folder / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        (folder / "ours.pem").write_bytes(authority.read_bytes())
        monkeypatch.setenv(named_by, f"{tmp_path / 'not there'}:{folder}")
    else:
        monkeypatch.setattr(certificates, "BUNDLES", (str(authority),))
    [jar] = fetched(bundled_java(tmp_path, monkeypatch), tmp_path)
    assert jar.read_bytes() == CONTENT


@pytest.mark.usefixtures("repository")
def test_a_trust_stores_password_that_the_caller_has_set_does_no_harm(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's own list opens with any; so must the one that is put in its place."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Djavax.net.ssl.trustStorePassword=changeit")
    assert fetched(bundled_java(tmp_path, monkeypatch), tmp_path)


@pytest.mark.usefixtures("repository")
def test_an_authority_that_nobody_named_is_what_the_message_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = bundled_java(tmp_path, monkeypatch)
    with pytest.raises(UnreachableError, match="does not trust the repository's certificate") as met:
        fetched(java, tmp_path)
    assert "SSL_CERT_FILE" in met.value.next_step
    assert str(java.home) in met.value.where
