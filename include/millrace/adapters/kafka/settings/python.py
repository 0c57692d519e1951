"""librdkafka's keys in kafka-python's words."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from millrace.domain.declaration.kafka_security import (
    HOST_NAME,
    VERIFICATION,
    Client,
    authority_file,
    mechanism_of,
    refusals,
)
from millrace.errors import Code, UsageError
from millrace.settings import KafkaSettings

_SSL_KEYS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.crl.location",
        HOST_NAME,
    }
)


def for_kafka_python(settings: KafkaSettings) -> dict[str, Any]:
    """Security settings of kafka-python's clients; addresses, names and time-outs are the caller's.

    Guarantees: no secret is in an error's text.

    Raises:
        UsageError: a key or a file of the Connection cannot be used with this client; it is named.

    Source: librdkafka's CONFIGURATION.md; `KafkaConnectionManager.DEFAULT_CONFIG` of kafka-python 3.0.
    """
    keys, where = settings.librdkafka, settings.bootstrap_servers
    if why := refusals(keys, Client.PYTHON):
        raise _unusable(where, "; ".join(why), "change its extra as docs/reference/connections.md says")
    protocol = keys.get("security.protocol", "plaintext").upper()
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.startswith("SASL"):
        found |= {
            "sasl_mechanism": mechanism_of(keys),
            "sasl_plain_username": keys["sasl.username"],
            "sasl_plain_password": keys["sasl.password"],
        }
    if protocol.endswith("SSL"):
        found["ssl_context"] = _context(keys, where)
    return found


def _context(keys: Mapping[str, str], where: str) -> ssl.SSLContext:
    for name in sorted(keys):
        if name.startswith("ssl.") and name not in _SSL_KEYS:
            raise _unusable(
                where, name, "name PEM files in ssl.ca.location, ssl.certificate.location, ssl.key.location"
            )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = keys.get(HOST_NAME) != "none"
    if keys.get(VERIFICATION) == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _trust(context, keys, where)
    if certificate := keys.get("ssl.certificate.location"):
        secret = keys.get("ssl.key.password", "")  # never None: OpenSSL would ask the terminal for it
        try:
            context.load_cert_chain(certificate, keys.get("ssl.key.location"), secret)
        except (OSError, ValueError) as error:
            files = "ssl.certificate.location, ssl.key.location or ssl.key.password"
            raise _unusable(where, f"{files} ({type(error).__name__})", "check that both are PEM files") from None
    return context


def _trust(context: ssl.SSLContext, keys: Mapping[str, str], where: str) -> None:
    authority, text, revoked = authority_file(keys), keys.get("ssl.ca.pem"), keys.get("ssl.crl.location")
    name = "ssl.ca.location" if authority else "ssl.ca.pem"
    try:
        if authority or text:
            context.load_verify_locations(cafile=authority or None, cadata=text or None)
        else:
            context.load_default_certs()
        if revoked:
            name = "ssl.crl.location"
            context.load_verify_locations(cafile=revoked)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except (OSError, ValueError) as error:
        raise _unusable(where, f"{name} ({type(error).__name__})", "check that it is a PEM file") from None


def _unusable(where: str, what: str, next_step: str) -> UsageError:
    return UsageError(
        f"a Kafka client cannot be created from the connection's properties: {what}",
        where=where,
        next_step=next_step,
        code=Code.WRONG_CONNECTION,
    )
