"""What of the machine's certificates counts for the bundled Java, and what somebody's broken file does to it."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, pkcs12
from cryptography.x509.oid import NameOID

from millrace.embedded.jars import certificates
from millrace.embedded.jars.certificates import write_trust_store

VERSION_3 = bytes.fromhex("a003020102")


def authority(name: str) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(called).issuer_name(called).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(key, hashes.SHA256())


def pem(name: str) -> bytes:
    return authority(name).public_bytes(Encoding.PEM)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that trusts nobody yet; the folder that its OpenSSL was built with."""
    own = [pkcs12.PKCS12Certificate(authority("java's own"), b"own")]
    (tmp_path / "cacerts").write_bytes(pkcs12.serialize_java_truststore(own, NoEncryption()))
    folder = tmp_path / "certs"
    folder.mkdir()
    built_in = SimpleNamespace(openssl_cafile=str(tmp_path / "none"), openssl_capath=str(folder))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: built_in)
    monkeypatch.setattr(certificates, "BUNDLES", (str(tmp_path / "bundle"),))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    return folder


def trusted(folder: Path) -> set[str]:
    target = folder.parent / "store.p12"
    write_trust_store(folder.parent / "cacerts", target)
    assert [path.name for path in folder.parent.glob("store.p12*")] == ["store.p12"]
    assert target.stat().st_mode & 0o777 == 0o600
    store = pkcs12.load_pkcs12(target.read_bytes(), None)
    return {
        str(one.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        for one in store.additional_certs
    }


def test_javas_own_and_the_machines_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.parent / "bundle").write_bytes(pem("bundle 1") + b"# a word\n" + pem("bundle 2"))
    assert trusted(machine) == {"java's own", "bundle 1", "bundle 2"}
    named = machine.parent / "named.pem"
    named.write_bytes(pem("named"))
    monkeypatch.setenv("SSL_CERT_FILE", str(named))
    assert trusted(machine) == {"java's own", "bundle 1", "bundle 2", "named"}


def test_the_certificate_of_a_server_beside_the_authorities_is_no_authority(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "localhost.crt").write_bytes(pem("a server"))
    (machine / "0a775a30.0").write_bytes(pem("an authority"))
    assert trusted(machine) == {"java's own", "an authority"}
    monkeypatch.setenv("SSL_CERT_DIR", f"{machine.parent / 'not there'}{os.pathsep}{machine}")
    assert trusted(machine) == {"java's own", "an authority", "a server"}


def test_what_is_broken_does_not_hide_what_is_whole(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pem("whole")
    no_certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    der = authority("of another age").public_bytes(Encoding.DER)
    version_2 = ssl.DER_cert_to_PEM_cert(der.replace(VERSION_3, VERSION_3[:-1] + b"\x01", 1)).encode()
    with pytest.raises(x509.InvalidVersion):
        x509.load_pem_x509_certificate(version_2)
    (machine.parent / "bundle").write_bytes(pem("cut short")[:200] + b"\n" + no_certificate + version_2 + whole)
    (machine / "12345678.0").symlink_to(machine / "gone")
    (machine / "12345678.1").mkdir()
    os.mkfifo(machine / "12345678.2")
    assert trusted(machine) == {"java's own", "whole"}


def test_a_folder_that_may_not_be_read_is_passed_over(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(certificates.os, "listdir", refuse)
    assert trusted(machine) == {"java's own"}


def test_javas_own_list_that_cannot_be_read_is_said_and_leaves_nothing(machine: Path) -> None:
    (machine.parent / "cacerts").write_bytes(b"no PKCS 12")
    with pytest.raises(ValueError, match="PKCS12"):
        write_trust_store(machine.parent / "cacerts", machine.parent / "store.p12")
    assert not list(machine.parent.glob("store.p12*"))
