"""One table of what each Kafka client does with a Connection: refusals and the reference page come from it.

Rows are what a Connection asks for, in librdkafka's keys. Columns are the clients that Millrace uses, and the stock
command-line tools, which get a properties file of the operator's own.

Source: librdkafka's CONFIGURATION.md and the build options of confluent-kafka's wheel; the Java client's
`SaslConfigs`, `SslConfigs` and `DefaultSslEngineFactory`; `KafkaConnectionManager.DEFAULT_CONFIG` of kafka-python 3.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
HOST_NAME = "ssl.endpoint.identification.algorithm"
VERIFICATION = "enable.ssl.certificate.verification"
_PROBE = "probe"  # librdkafka then searches for the machine's authorities, as it does without a file
_DEFAULT_MECHANISM = "GSSAPI"  # librdkafka's
_BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Client(StrEnum):
    """A client of Kafka, as the reference page names it."""

    LIBRDKAFKA = "librdkafka"
    SPARK = "Spark (Java)"
    PYTHON = "kafka-python"
    TOOLS = "stock tools"


class Way(StrEnum):
    """One thing that a Connection may ask of a client."""

    PLAINTEXT = "no TLS, no SASL"
    TLS = "TLS, the authority in `ssl.ca.location` or the machine's own"
    AUTHORITY_TEXT = "TLS, the authority as text in `ssl.ca.pem`"
    ANY_HOST = "`ssl.endpoint.identification.algorithm: none`"
    UNVERIFIED = "`enable.ssl.certificate.verification: false`"
    CERTIFICATE_FILES = "client certificate in PEM files, `ssl.certificate.location`"
    CERTIFICATE_TEXT = "client certificate as text, `ssl.certificate.pem`"
    KEYSTORE = "client certificate in PKCS#12, `ssl.keystore.location`"
    PLAIN = "SASL `PLAIN`"
    SCRAM_256 = "SASL `SCRAM-SHA-256`"
    SCRAM_512 = "SASL `SCRAM-SHA-512`"
    GSSAPI = "SASL `GSSAPI` (Kerberos)"
    OAUTHBEARER = "SASL `OAUTHBEARER`"


class Tried(StrEnum):
    """How far a test of Millrace's has tried a way, as the reference page says it."""

    BROKER = ""
    HANDSHAKE = "handshake tried"
    NOT = "not tried"


@dataclass(frozen=True, slots=True)
class Answer:
    """A client's answer to one way.

    Attributes:
        why: why it cannot; empty where it can.
        tried: how far a test of Millrace's has tried it.
        notice: how the client does it in another way than the Connection says.
    """

    why: str = ""
    tried: Tried = Tried.NOT
    notice: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"no: {self.why}"
        return ", ".join(filter(None, ("yes", self.tried, self.notice)))


_YES, _TRIED, _HANDSHAKE = Answer(), Answer(tried=Tried.BROKER), Answer(tried=Tried.HANDSHAKE)
_JAVA_VERIFIES = Answer(notice="Java verifies all the same")
_JAVA_PEM = Answer("Java wants certificate and key in one file; use a PKCS#12 keystore")
_JAVA_JAAS = Answer("Spark's apps log in by user and password only")
_PYTHON_FILES = Answer("Millrace gives it PEM files only")
_PYTHON_SASL = Answer("Millrace gives it user and password only")

TABLE: Mapping[Way, tuple[Answer, Answer, Answer, Answer]] = {
    Way.PLAINTEXT: (_TRIED, _TRIED, _TRIED, _TRIED),
    Way.TLS: (_YES, _HANDSHAKE, _YES, _YES),
    Way.AUTHORITY_TEXT: (_YES, _HANDSHAKE, _YES, _YES),
    Way.ANY_HOST: (_YES, _HANDSHAKE, _YES, _YES),
    Way.UNVERIFIED: (_YES, _JAVA_VERIFIES, _YES, _JAVA_VERIFIES),
    Way.CERTIFICATE_FILES: (_YES, _JAVA_PEM, _YES, _YES),
    Way.CERTIFICATE_TEXT: (_YES, _JAVA_PEM, _PYTHON_FILES, _YES),
    Way.KEYSTORE: (_YES, _HANDSHAKE, _PYTHON_FILES, _YES),
    Way.PLAIN: (_YES, _YES, _YES, _YES),
    Way.SCRAM_256: (_YES, _YES, _YES, _YES),
    Way.SCRAM_512: (_YES, _YES, _YES, _YES),
    Way.GSSAPI: (Answer("confluent-kafka's wheel is built without it"), _JAVA_JAAS, _PYTHON_SASL, _YES),
    Way.OAUTHBEARER: (_YES, _JAVA_JAAS, _PYTHON_SASL, _YES),
}
"""The answers of the clients, in the order of `Client`."""


def answer(way: Way, client: Client) -> Answer:
    """Return whether a client can do one thing."""
    return TABLE[way][tuple(Client).index(client)]


def refusals(keys: Mapping[str, str], client: Client) -> tuple[str, ...]:
    """Return why a client cannot connect as a Connection says; nothing where it can.

    Args:
        keys: of the Connection, librdkafka's. No value of a secret is in what is returned.
        client: the client that is to connect.
    """
    protocol = _protocol_of(keys)
    if protocol not in PROTOCOLS:
        return (f"no client knows security.protocol={protocol}: use one of {', '.join(PROTOCOLS)}",)
    found = [f"{way.replace('`', '')}: {why}" for way in _ways(keys, protocol) if (why := answer(way, client).why)]
    if protocol.startswith("SASL"):
        found += _login_faults(keys, client)
    return tuple(found)


def notices(keys: Mapping[str, str], client: Client) -> tuple[str, ...]:
    """Return how a client connects in another way than a Connection says; it may connect all the same.

    Args:
        keys: of the Connection, librdkafka's, in the spelling of `Settings.kafka`.
        client: the client that is to connect.
    """
    found = [(way, answer(way, client).notice) for way in _ways(keys, _protocol_of(keys))]
    return tuple(f"{way.replace('`', '')}: {notice}" for way, notice in found if notice)


def authority_file(keys: Mapping[str, str]) -> str:
    """Return the file of authorities that a Connection names; empty where it names none, or the machine's own."""
    file = keys.get("ssl.ca.location", "")
    return "" if file == _PROBE else file


def mechanism_of(keys: Mapping[str, str]) -> str:
    """Return the SASL mechanism that a Connection names, else librdkafka's own default."""
    return keys.get("sasl.mechanism") or keys.get("sasl.mechanisms") or _DEFAULT_MECHANISM


def _protocol_of(keys: Mapping[str, str]) -> str:
    return keys.get("security.protocol", PROTOCOLS[0]).upper()


def _login_faults(keys: Mapping[str, str], client: Client) -> Iterator[str]:
    mechanism = mechanism_of(keys)
    if not _by_mechanism(mechanism):
        yield f"no client knows sasl.mechanism={mechanism}: use one of {', '.join(_BY_PASSWORD)}"
    elif mechanism in _BY_PASSWORD and client is not Client.TOOLS:
        yield from (f"{mechanism} without {key}" for key in ("sasl.username", "sasl.password") if not keys.get(key))


def _ways(keys: Mapping[str, str], protocol: str) -> Sequence[Way]:
    """Return what a Connection asks for. Settings of TLS and SASL count only where its protocol has them."""
    found: list[Way] = []
    if protocol.endswith("SSL"):
        found += _ways_of_tls(keys)
    if protocol.startswith("SASL"):
        found += _by_mechanism(mechanism_of(keys))
    return found or [Way.PLAINTEXT]


def _by_mechanism(mechanism: str) -> list[Way]:
    return [way for way in Way if way.startswith(f"SASL `{mechanism}`")]


def _ways_of_tls(keys: Mapping[str, str]) -> Iterator[Way]:
    yield Way.AUTHORITY_TEXT if keys.get("ssl.ca.pem") and not authority_file(keys) else Way.TLS
    if keys.get(HOST_NAME) == "none":
        yield Way.ANY_HOST
    if keys.get(VERIFICATION) == "false":
        yield Way.UNVERIFIED
    if keys.get("ssl.certificate.location") or keys.get("ssl.key.location"):
        yield Way.CERTIFICATE_FILES
    if keys.get("ssl.certificate.pem") or keys.get("ssl.key.pem"):
        yield Way.CERTIFICATE_TEXT
    if keys.get("ssl.keystore.location"):
        yield Way.KEYSTORE


def as_markdown() -> str:
    """Return the table as the reference page has it."""
    lines = ["| a Connection asks for | " + " | ".join(Client) + " |", "|---" * (len(Client) + 1) + "|"]
    lines += [f"| {way} | " + " | ".join(map(str, answers)) + " |" for way, answers in TABLE.items()]
    return "\n".join(lines)
