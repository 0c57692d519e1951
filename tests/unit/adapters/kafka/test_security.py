"""One table of what Kafka clients do with a Connection, held against the clients, refusals and the reference page."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from millrace.adapters.kafka.settings.python import for_kafka_python
from millrace.adapters.kafka.settings.spark import for_spark, librdkafka_alone
from millrace.cli.declaration import commands as spec_commands
from millrace.domain.declaration.kafka_security import Client, Way, answer, as_markdown, notices, refusals
from millrace.domain.streams.supervision import HOPELESS, ExitReason
from millrace.embedded import doctor
from millrace.errors import DeclarationError, UnreachableError, UsageError
from millrace.runtime.main import exit_reason
from millrace.settings import KafkaSettings, Settings
from support.declarations import RETURNS, SHOP, example_project, valid_project
from support.stack.certificates import Certificates
from support.waiting import Deadline

REPOSITORY = Path(__file__).parents[4]
SECRET = "s3cret-word"
LOGIN = {"sasl.username": "ann", "sasl.password": SECRET}
OIDC = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "ann",
    "sasl.oauthbearer.client.secret": SECRET,
    "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/",
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("made here"))  # a path with a blank


def keys_of(way: Way, made: Certificates) -> Mapping[str, str]:
    """A Connection that asks for one thing."""
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(made.authority)}
    login = {"security.protocol": "SASL_PLAINTEXT", **LOGIN}
    return {"bootstrap.servers": "127.0.0.1:1"} | {
        Way.PLAINTEXT: {},
        Way.TLS: tls,
        Way.AUTHORITY_TEXT: {"security.protocol": "SSL", "ssl.ca.pem": made.authority.read_text()},
        Way.ANY_HOST: {**tls, "ssl.endpoint.identification.algorithm": "none"},
        Way.UNVERIFIED: {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"},
        Way.CERTIFICATE_FILES: {
            **tls,
            "ssl.certificate.location": str(made.certificate),
            "ssl.key.location": str(made.key),
        },
        Way.CERTIFICATE_TEXT: {
            **tls,
            "ssl.certificate.pem": made.certificate.read_text(),
            "ssl.key.pem": made.key.read_text(),
        },
        Way.KEYSTORE: {
            **tls,
            "ssl.keystore.location": str(made.keystore),
            "ssl.keystore.password": made.keystore_password,
        },
        Way.PLAIN: {**login, "sasl.mechanism": "PLAIN"},
        Way.SCRAM_256: {**login, "sasl.mechanisms": "SCRAM-SHA-256"},
        Way.SCRAM_512: {**login, "sasl.mechanism": "SCRAM-SHA-512"},
        Way.GSSAPI: {"security.protocol": "SASL_PLAINTEXT"},
        Way.OAUTHBEARER: {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **OIDC},
    }[way]


@pytest.mark.parametrize("way", Way)
def test_a_client_is_made_exactly_where_the_table_says_that_it_can(way: Way, certificates: Certificates) -> None:
    settings = KafkaSettings(keys_of(way, certificates), "lake_kafka")
    made = {
        Client.LIBRDKAFKA: lambda: AdminClient({**settings.librdkafka, "log_level": 0}),
        Client.SPARK: lambda: for_spark(settings),
        Client.PYTHON: lambda: for_kafka_python(settings),
    }
    for client, make in made.items():
        if not answer(way, client).why:
            assert make() is not None
            assert refusals(settings.librdkafka, client) == ()
            continue
        with pytest.raises((KafkaException, DeclarationError, UsageError)) as refused:
            make()
        assert SECRET not in str(refused.value)
        assert len(refusals(settings.librdkafka, client)) == 1


def test_the_reference_page_has_the_table() -> None:
    assert f"\n\n{as_markdown()}\n\n" in (REPOSITORY / "docs/reference/connections.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "SASL OAUTHBEARER: Spark's apps log in by",
        ),
        ({"security.protocol": "SASL_SSL"}, "SASL GSSAPI (Kerberos): Spark's apps log in by"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"},
            "no client knows sasl.mechanism=AWS_MSK_IAM",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            "PLAIN without sasl.username; PLAIN without sasl",
        ),
        (
            {"security.protocol": "SSL", "ssl.certificate.location": "/c.pem"},
            "Java wants certificate and key in one file",
        ),
        ({"security.protocol": "TLS"}, "no client knows security.protocol=TLS"),
    ],
)
def test_a_connection_that_spark_cannot_use_is_hopeless_and_named(more: Mapping[str, str], why: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        for_spark(KafkaSettings({"bootstrap.servers": "a:1", **more}, "lake_kafka"))
    assert why in refused.value.what
    assert refused.value.where == "connection lake_kafka"
    assert exit_reason(refused.value) in HOPELESS


@pytest.mark.parametrize("key", ["ssl.ca.location", "ssl.keystore.location"])
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/not here/ca.pem", "{key} names /not here/ca.pem, which cannot be read (No such file or directory)"),
        (f"-----BEGIN {SECRET}\n/", "the file of {key} cannot be read (No such file or directory)"),
    ],
)
def test_an_app_is_started_again_where_a_file_is_not_there_yet(key: str, path: str, told: str) -> None:
    with pytest.raises(UnreachableError) as refused:
        for_spark(KafkaSettings({"bootstrap.servers": "a:1", key: path}, "lake_kafka"))
    assert refused.value.what == told.format(key=key)
    assert refused.value.where == "connection lake_kafka"
    assert exit_reason(refused.value) not in HOPELESS


def of_extra(**extra: object) -> KafkaSettings:
    """The settings of a Connection with this extra; `_` stands for a dot."""
    keys = {"bootstrap.servers": "a:1"} | {key.replace("_", "."): value for key, value in extra.items()}
    return Settings(Path("/"), {"here": json.dumps({"conn_type": "kafka", "extra": keys})}.get).kafka("here")


@pytest.mark.parametrize("none", ["none", "NONE", " None"])
def test_no_client_compares_host_names_however_none_is_spelled(none: str) -> None:
    settings = of_extra(security_protocol="ssl", ssl_endpoint_identification_algorithm=none)
    assert for_spark(settings)["ssl.endpoint.identification.algorithm"] == ""
    assert not for_kafka_python(settings)["ssl_context"].check_hostname
    assert AdminClient({**settings.librdkafka, "log_level": 0}) is not None


@pytest.mark.parametrize("false", [False, "false", "False", "f", "F", "0", 0])
def test_verification_is_off_however_false_is_spelled(false: object) -> None:
    settings = of_extra(security_protocol=" Ssl", enable_ssl_certificate_verification=false)
    assert for_kafka_python(settings)["ssl_context"].verify_mode is ssl.CERT_NONE
    assert for_spark(settings) == {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    [notice] = notices(settings.librdkafka, Client.SPARK)
    assert notice == "enable.ssl.certificate.verification: false: Java verifies all the same"
    assert AdminClient({**settings.librdkafka, "log_level": 0}) is not None


def test_null_counts_as_not_given() -> None:
    settings = of_extra(security_protocol="SSL", ssl_endpoint_identification_algorithm=None, ssl_ca_location=None)
    assert settings.librdkafka == {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    assert for_kafka_python(settings)["ssl_context"].check_hostname


def test_probe_means_the_machines_own_authorities() -> None:
    settings = of_extra(security_protocol="SSL", ssl_ca_location="probe")
    assert for_spark(settings) == {"bootstrap.servers": "a:1", "security.protocol": "SSL"}
    assert for_kafka_python(settings)["ssl_context"].verify_mode is ssl.CERT_REQUIRED


def test_java_gets_authorities_as_text_where_no_file_is_named(certificates: Certificates) -> None:
    text = certificates.authority.read_text()
    java = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
    for more in ({}, {"ssl_ca_location": "probe"}):
        found = for_spark(of_extra(security_protocol="SSL", ssl_ca_pem=text, **more))
        assert found == {"bootstrap.servers": "a:1", "security.protocol": "SSL", **java}
    both = for_spark(of_extra(security_protocol="SSL", ssl_ca_pem=text, ssl_ca_location=str(certificates.authority)))
    assert both["ssl.truststore.location"] == str(certificates.authority)
    assert "ssl.truststore.certificates" not in both


def test_java_gets_a_keystore_with_its_type_and_password(certificates: Certificates) -> None:
    found = for_spark(KafkaSettings(keys_of(Way.KEYSTORE, certificates)))
    assert {key: value for key, value in found.items() if "keystore" in key} == {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(certificates.keystore),
        "ssl.keystore.password": certificates.keystore_password,
    }


def test_the_stock_tools_may_log_in_by_a_file_of_the_operators_own() -> None:
    keys = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    assert refusals(keys, Client.TOOLS) == ()
    assert len(refusals(keys, Client.PYTHON)) == 2


def test_settings_of_tls_and_sasl_count_only_where_the_protocol_has_them() -> None:
    keys = {"bootstrap.servers": "a:1", "ssl.certificate.location": "/c.pem", "sasl.mechanism": "OAUTHBEARER"}
    assert for_spark(KafkaSettings(keys)) == {"bootstrap.servers": "a:1"}


def test_spark_gets_the_connection_in_javas_words(certificates: Certificates) -> None:
    authority = str(certificates.authority)
    keys = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'an"n',
        "sasl.password": SECRET,
        "ssl.ca.location": authority,
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "1000",
    }
    assert for_spark(KafkaSettings(keys)) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="an\\"n" password="{SECRET}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority,
        "ssl.endpoint.identification.algorithm": "",
    }
    assert librdkafka_alone(KafkaSettings(keys)) == ("socket.timeout.ms",)
    https = {"bootstrap.servers": "a:1", "ssl.endpoint.identification.algorithm": "https"}
    assert for_spark(KafkaSettings(https)) == https


def kafka_variable(**more: str) -> dict[str, str]:
    extra = {"bootstrap.servers": "127.0.0.1:1", **{key.replace("_", "."): value for key, value in more.items()}}
    return {"AIRFLOW_CONN_MILLRACE_KAFKA": json.dumps({"conn_type": "kafka", "extra": extra})}


def test_a_start_ends_at_once_with_an_exit_code_that_supervision_does_not_try_again(tmp_path: Path) -> None:
    root = example_project(tmp_path)
    variables = kafka_variable(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_password=SECRET)
    control = json.dumps({"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "a", "schema": "b"})
    app = ("--stream", "shop.purchases", "--epoch", "1", "--instance", "i")
    done = subprocess.run(
        [sys.executable, REPOSITORY / "spark_apps/stream.py", *app],
        env=os.environ | variables | {"MILLRACE_ROOT": str(root), "AIRFLOW_CONN_MILLRACE_CONTROL": control},
        capture_output=True,
        text=True,
        timeout=Deadline.PROCESS.seconds,
        check=False,
    )
    assert done.returncode == ExitReason.DECLARATION, done.stdout + done.stderr
    assert (
        "connection millrace_kafka: Spark cannot connect with the keys of this Connection: SASL OAUTHBEARER"
        in done.stdout
    )
    assert SECRET not in done.stdout + done.stderr


def test_spec_check_refuses_what_it_can_see_and_names_what_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = valid_project(tmp_path)
    monkeypatch.setenv("MILLRACE_ROOT", str(root))
    done = CliRunner().invoke(spec_commands.app, ["check", "--json"])
    said = json.loads(done.stdout)
    assert (done.exit_code, said["findings"]) == (0, [])
    assert said["not_asked"] == [
        "connection millrace_kafka is not defined here: its security settings were not checked"
    ]
    for variable, value in kafka_variable(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI").items():
        monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(spec_commands.app, ["check", "--json"])
    said = json.loads(done.stdout)
    assert (done.exit_code, said["not_asked"]) == (1, [])
    places = {(found["file"], found["line"], found["field"]) for found in said["findings"]}
    assert places == {(RETURNS, 1, "kafka"), (SHOP, 4, "kafka")}
    assert all("Spark cannot connect by millrace_kafka: SASL GSSAPI" in found["what"] for found in said["findings"])


def test_spec_check_warns_where_java_verifies_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ROOT", str(valid_project(tmp_path)))
    more = {"security_protocol": "SSL", "enable_ssl_certificate_verification": "F"}
    for variable, value in kafka_variable(**more).items():
        monkeypatch.setenv(variable, value)
    done = CliRunner().invoke(spec_commands.app, ["check", "--json"])
    said = json.loads(done.stdout)
    assert done.exit_code == 0
    assert {each["severity"] for each in said["findings"]} == {"warning"}
    assert any(each["what"].endswith("Java verifies all the same") for each in said["findings"])


def test_doctor_refuses_what_spark_cannot_use_before_it_asks_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_password": SECRET}
    for variable, value in kafka_variable(**more).items():
        monkeypatch.setenv(variable, value)
    [check] = [check for check in doctor.examine(tmp_path) if check.name == "millrace_kafka"]
    assert not check.fine
    assert check.found.startswith("Spark cannot connect with the keys of this Connection: SASL OAUTHBEARER")
    assert SECRET not in check.found
