"""An authority of a test's own, and a certificate that it signed, as the files that Connections name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificates:
    """PEM files, and the same certificate and key in a keystore."""

    authority: Path
    certificate: Path
    key: Path
    keystore: Path
    keystore_password: str = "keystore-word"

    @classmethod
    def make(cls, folder: Path, *, host: str = "127.0.0.1", user: str = "someone") -> Certificates:
        """Make them.

        Args:
            folder: where the files go.
            host: an address, or a name, that the certificate is for.
            user: the certificate's common name.
        """
        made = cls(*(folder / name for name in ("authority.pem", "certificate.pem", "key.pem", "store.p12")))
        signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = _certificate("an authority of a test", signer, signer, "an authority of a test", ca=True)
        certificate = _certificate(user, key, signer, "an authority of a test", ca=False, host=host)
        made.authority.write_bytes(root.public_bytes(Encoding.PEM))
        made.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        made.key.touch(0o600)
        made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        word = BestAvailableEncryption(made.keystore_password.encode())
        made.keystore.write_bytes(pkcs12.serialize_key_and_certificates(b"own", key, certificate, [root], word))
        return made


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: str,
    *,
    ca: bool,
    host: str = "",
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    if host:
        is_address = host.replace(".", "").isdigit()
        known = x509.IPAddress(ip_address(host)) if is_address else x509.DNSName(host)
        builder = builder.add_extension(x509.SubjectAlternativeName([known]), critical=False)
    return builder.sign(signer, hashes.SHA256())
