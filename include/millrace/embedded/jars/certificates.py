"""Which certificate authorities the bundled Java trusts: those of its own list, and the machine's."""

from __future__ import annotations

import os
import re
import ssl
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
)
"""Where distributions keep what they trust. A Python that brings its own OpenSSL does not know of it."""

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_BY_HASH = re.compile(r"[0-9a-f]{8}\.\d+")


def write_trust_store(own_list: Path, target: Path) -> None:
    """Write what a bundled Java is to trust: all of its own list, and all that the machine trusts.

    Args:
        own_list: the `lib/security/cacerts` of that Java, a PKCS #12 file without a password.
        target: the trust store to write, a PKCS #12 file without a password; replaced in one step.

    Raises:
        ValueError: Java's own list cannot be read.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, pkcs12

    with warnings.catch_warnings():  # an old authority whose serial number breaks a rule of today
        warnings.filterwarnings("ignore", message="Parsed a serial number")
        own = [one.certificate for one in pkcs12.load_pkcs12(own_list.read_bytes(), None).additional_certs]
        trusted = {one.public_bytes(Encoding.DER): one for one in [*own, *_machines()]}
    # Java takes a later entry of the same name for the same entry
    entries = [pkcs12.PKCS12Certificate(one, str(place).encode()) for place, one in enumerate(trusted.values())]
    content = _without_mac(pkcs12.serialize_java_truststore(entries, NoEncryption()))
    descriptor, partial = tempfile.mkstemp(prefix=target.name + ".", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(partial, target)
    except OSError:
        os.unlink(partial)
        raise


def _without_mac(pfx: bytes) -> bytes:
    """The file without its checksum under the empty password, so that Java takes any password, as for its own list.

    Source: RFC 7292, 4: a sequence of version, contents and an optional MacData.
    """
    start, _ = _value_of(pfx, 0)
    _, version_end = _value_of(pfx, start)
    _, contents_end = _value_of(pfx, version_end)
    body = pfx[start:contents_end]
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
    return pfx[:1] + bytes([0x80 | len(length)]) + length + body  # DER's long form: a list is never under 128 bytes


def _value_of(der: bytes, at: int) -> tuple[int, int]:
    """Where the value of the DER element at this place begins and ends."""
    first = der[at + 1]
    octets = first & 0x7F if first & 0x80 else 0
    begin = at + 2 + octets
    length = int.from_bytes(der[at + 2 : begin], "big") if octets else first
    return begin, begin + length


def _machines() -> Iterator[x509.Certificate]:
    from cryptography import x509

    for text in sorted({found for path in _files() for found in _PEM.findall(_content(path))}):
        try:
            yield x509.load_pem_x509_certificate(text)
        except (ValueError, x509.InvalidVersion):  # somebody's broken file; whatever else is there counts
            continue


def _files() -> Iterator[Path]:
    """The machine's bundles, what SSL_CERT_FILE and SSL_CERT_DIR name, or else what OpenSSL was built with.

    Of OpenSSL's own folder only what it reads itself, files named by a hash: elsewhere in it servers keep their own.
    """
    built_in = ssl.get_default_verify_paths()
    yield from (Path(path) for path in (*BUNDLES, os.environ.get("SSL_CERT_FILE") or built_in.openssl_cafile))
    named = os.environ.get("SSL_CERT_DIR")
    for folder in (named or built_in.openssl_capath).split(os.pathsep):
        try:
            yield from (Path(folder, name) for name in os.listdir(folder) if named or _BY_HASH.fullmatch(name))
        except OSError:  # not there, or not for this user to read
            continue


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:  # not for this user to read: not trusted by it either
        return b""
