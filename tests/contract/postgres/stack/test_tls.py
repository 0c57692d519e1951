"""The TLS keys of a `postgres` Connection reach libpq, by every way that Millrace connects.

The embedded server is built without TLS, so a front speaks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from millrace.adapters.control.store import ControlStore
from millrace.adapters.postgres.connection import connect
from millrace.adapters.sinks.postgres.reader import SinkReader
from millrace.embedded import doctor
from millrace.embedded.stack import Stack
from millrace.errors import MillraceError, UnreachableError
from millrace.settings import PostgresSettings, Settings
from support.stack.certificates import Certificates
from support.stack.tls_front import tls_front

_HERE = "millrace_sink"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("with a blank"), user="ann")


def named(to: PostgresSettings, port: int, **extra: str) -> Settings:
    """Settings with this database under one name."""
    document = {
        "conn_type": "postgres",
        "host": to.host,
        "port": port,
        "login": to.user,
        "password": to.password,
        "schema": to.database,
        "extra": extra,
    }
    return Settings(Path("/"), {_HERE: json.dumps(document)}.get)


def _by_control(settings: PostgresSettings) -> None:
    ControlStore(settings).streams.all_progress()


def _by_sink(settings: PostgresSettings) -> None:
    connect(settings, "test").close()


def _by_reader(settings: PostgresSettings) -> None:
    SinkReader(settings).columns("nobody.there")


def _by_doctor(settings: PostgresSettings) -> None:
    psycopg.connect(**settings.keywords()).close()  # type: ignore[arg-type]


WAYS: tuple[Callable[[PostgresSettings], None], ...] = (_by_control, _by_sink, _by_reader, _by_doctor)


@pytest.mark.parametrize("way", WAYS)
def test_a_server_is_verified_as_the_connection_says(
    postgres: Stack, made: Certificates, tmp_path: Path, way: Callable[[PostgresSettings], None]
) -> None:
    to = postgres.settings().postgres("millrace_control")
    with tls_front(made, (to.host, to.port), asks_first=True, wants_certificate=True) as front:
        files = {"sslrootcert": str(made.authority), "sslcert": str(made.certificate), "sslkey": str(made.key)}
        way(named(to, front.port, sslmode="verify-full", **files).postgres(_HERE))
        assert set(front.users) == {"ann"}
        (tmp_path / "other").mkdir()
        stranger = Certificates.make(tmp_path / "other").authority
        with pytest.raises((MillraceError, psycopg.OperationalError), match="SSL error"):
            way(named(to, front.port, sslmode="verify-full", **files | {"sslrootcert": str(stranger)}).postgres(_HERE))


def test_another_hosts_certificate_is_refused_by_verify_full(postgres: Stack, tmp_path: Path) -> None:
    to = postgres.settings().postgres("millrace_control")
    made = Certificates.make(tmp_path, host="elsewhere.example")
    with tls_front(made, (to.host, to.port), asks_first=True) as front:
        _by_control(named(to, front.port, sslmode="verify-ca", sslrootcert=str(made.authority)).postgres(_HERE))
        with pytest.raises(UnreachableError, match=r"elsewhere\.example"):
            _by_control(named(to, front.port, sslmode="verify-full", sslrootcert=str(made.authority)).postgres(_HERE))


@pytest.mark.parametrize("way", WAYS)
def test_a_server_without_tls_is_refused_where_the_connection_wants_it(
    postgres: Stack, made: Certificates, way: Callable[[PostgresSettings], None]
) -> None:
    to = postgres.settings().postgres("millrace_control")
    wanted = named(to, to.port, sslmode="verify-full", sslrootcert=str(made.authority)).postgres(_HERE)
    with pytest.raises((MillraceError, psycopg.OperationalError), match="server does not support SSL"):
        way(wanted)
    way(replace(wanted, tls=()))


def test_doctor_names_what_is_ignored_of_an_extra(
    postgres: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    to = postgres.settings().postgres("millrace_control")
    extra = {"sslmode": "prefer", "sslpassword": "s3cret-word", "options": "-c search_path=x"}
    text = named(to, to.port, **extra).lookup(_HERE)
    assert text is not None
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_SINK", text)
    [check] = [check for check in doctor.examine(tmp_path) if check.name == _HERE]
    assert check.fine
    assert check.found.endswith("; ignored keys of its extra: options, sslpassword")
    assert "s3cret-word" not in check.found
