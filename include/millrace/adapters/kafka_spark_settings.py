"""librdkafka's keys in the words of Java's client, as Spark's source takes them."""

from __future__ import annotations

from millrace.domain.kafka_security import Client, mechanism_of, refusals
from millrace.errors import DeclarationError
from millrace.settings import KafkaSettings, file_fault

_HOST_NAME = "ssl.endpoint.identification.algorithm"
_PROBE = "probe"  # librdkafka then searches for the machine's authorities; Java has its own
_SAME = frozenset({"bootstrap.servers", "security.protocol", "client.id", "request.timeout.ms"})
_TRANSLATED = frozenset(
    {
        _HOST_NAME,
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)


def for_spark(settings: KafkaSettings) -> dict[str, str]:
    """Return a Connection's settings in the Java client's keys.

    Guarantees: no secret is in an error's text.

    Raises:
        DeclarationError: Spark's client cannot connect as the Connection says; starting again cannot help.

    Source: librdkafka's CONFIGURATION.md against the Java client's `SaslConfigs` and `SslConfigs`. A host name that is
    not compared is an empty text in Java: with `none` every handshake fails ("Unknown identification algorithm").
    """
    must_serve_spark(settings)
    given = settings.librdkafka
    java = {key: value for key, value in given.items() if key in _SAME}
    if _HOST_NAME in given:
        java[_HOST_NAME] = "" if given[_HOST_NAME] == "none" else given[_HOST_NAME]
    if user := given.get("sasl.username"):
        mechanism, secret = mechanism_of(given), given.get("sasl.password", "")
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        java["sasl.mechanism"] = mechanism
        java["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={_jaas_quoted(user)} password={_jaas_quoted(secret)};"
        )
    authority = given.get("ssl.ca.location")
    if authority and authority != _PROBE:
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if keystore := given.get("ssl.keystore.location"):
        java |= {
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": keystore,
            "ssl.keystore.password": given.get("ssl.keystore.password", ""),
        }
    return java


def must_serve_spark(settings: KafkaSettings) -> None:
    """Do nothing where Spark's client can connect as a Connection says, and may read the files that it names.

    Raises:
        DeclarationError: it cannot; starting again cannot help.
    """
    given = settings.librdkafka
    why = [*refusals(given, Client.SPARK)]
    for key in ("ssl.ca.location", "ssl.keystore.location"):
        path = given.get(key)
        if path and path != _PROBE and (fault := file_fault(path)):
            why.append(f"{key} names {path}, which {fault}")
    if why:
        raise DeclarationError(
            f"Spark cannot connect as the Connection says: {'; '.join(why)}",
            where=f"connection {settings.connection}" if settings.connection else settings.bootstrap_servers,
            next_step="change its extra as docs/reference/connections.md says, then start again",
        )


def librdkafka_alone(settings: KafkaSettings) -> tuple[str, ...]:
    """Return the keys of a Connection that librdkafka reads and Spark's client does not, by name."""
    return tuple(sorted(set(settings.librdkafka) - _SAME - _TRANSLATED))


def _jaas_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
