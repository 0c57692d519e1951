"""librdkafka's keys in the words of Java's client, as Spark's source takes them."""

from __future__ import annotations

from millrace.domain.declaration.kafka_security import HOST_NAME, Client, authority_file, mechanism_of, refusals
from millrace.errors import Code, DeclarationError, UnreachableError
from millrace.settings import KafkaSettings, file_fault

_SAME = frozenset({"bootstrap.servers", "security.protocol", "client.id", "request.timeout.ms"})
_TRANSLATED = frozenset(
    {
        HOST_NAME,
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)


def for_spark(settings: KafkaSettings) -> dict[str, str]:
    """Return a Connection's settings in the Java client's keys.

    Guarantees: no secret is in an error's text.

    Raises:
        DeclarationError: Spark's client cannot connect as the Connection says; starting again cannot help.
        UnreachableError: a file that the Connection names cannot be read now.

    Source: librdkafka's CONFIGURATION.md against the Java client's `SaslConfigs` and `SslConfigs`; authorities as text
    are KIP-651's, and Java refuses them beside a file, so the file wins. A host name that is
    not compared is an empty text in Java: with `none` every handshake fails ("Unknown identification algorithm").
    """
    must_serve_spark(settings)
    given = settings.librdkafka
    java = {key: value for key, value in given.items() if key in _SAME}
    if HOST_NAME in given:
        java[HOST_NAME] = "" if given[HOST_NAME] == "none" else given[HOST_NAME]
    if user := given.get("sasl.username"):
        mechanism, secret = mechanism_of(given), given.get("sasl.password", "")
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        java["sasl.mechanism"] = mechanism
        java["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f"username={_jaas_quoted(user)} password={_jaas_quoted(secret)};"
        )
    if authority := authority_file(given):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    elif text := given.get("ssl.ca.pem"):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
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
        UnreachableError: a file cannot be read now, as on a mount that is not there yet.
    """
    given = settings.librdkafka
    where = f"connection {settings.connection}" if settings.connection else settings.bootstrap_servers
    if why := refusals(given, Client.SPARK):
        raise DeclarationError(
            f"Spark cannot connect with the keys of this Connection: {'; '.join(why)}",
            where=where,
            next_step="change its extra as docs/reference/connections.md says, then start again",
            code=Code.WRONG_CONNECTION,
        )
    files = {"ssl.ca.location": authority_file(given), "ssl.keystore.location": given.get("ssl.keystore.location")}
    if faults := [fault for key, path in files.items() if path and (fault := file_fault(key, path))]:
        raise UnreachableError(
            "; ".join(faults),
            where=where,
            next_step="put the file there and let the user of Millrace read it, or correct the Connection's extra",
            code=Code.WRONG_CONNECTION,
        )


def librdkafka_alone(settings: KafkaSettings) -> tuple[str, ...]:
    """Return the keys of a Connection that librdkafka reads and Spark's client does not, by name."""
    return tuple(sorted(set(settings.librdkafka) - _SAME - _TRANSLATED))


def _jaas_quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
