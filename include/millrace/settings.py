"""Airflow Connections as typed settings, and the project's root folder.

Every endpoint and secret is an Airflow Connection. Outside Airflow they are read from the same
`AIRFLOW_CONN_...` variables, in Airflow's JSON form, without importing Airflow; inside Airflow the caller
resolves them through its SDK and hands the JSON form to `Connection.parse`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millrace import ROOT_VARIABLE
from millrace.errors import Code, UnreachableError, UsageError

STATE_FOLDER = ".millrace"
CONNECTION_PREFIX = "AIRFLOW_CONN_"
KAFKA = "millrace_kafka"
"""The usual Connection of a Kafka cluster: that of every topic and group which no declaration places elsewhere."""
TLS_KEYWORDS = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""The keys of a `postgres` Connection's extra that go to libpq."""


def project_root(start: Path | None = None) -> Path:
    """The project's root: `MILLRACE_ROOT`, else the nearest folder upwards that has `include/pipelines`.

    Raises:
        UsageError: the command was called outside any project.
    """
    if named := os.environ.get(ROOT_VARIABLE):
        return Path(named).resolve()
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "include" / "pipelines").is_dir():
            return folder
    raise UsageError(
        "this folder is not in a Millrace project",
        where=str(here),
        next_step=f"change to the folder that has include/pipelines, or set {ROOT_VARIABLE} to it",
        code=Code.NO_PROJECT,
    )


def read_environment_file(path: Path) -> dict[str, str]:
    """The `KEY=value` lines of a file; values are verbatim to the end of the line. Empty where there is no file."""
    if not path.exists():
        return {}
    pairs = (line.partition("=") for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
    return {key: value for key, _, value in pairs if not key.startswith("#")}


@dataclass(frozen=True, slots=True)
class Connection:
    """One Airflow Connection. `password` and `extra` may hold secrets, so neither is part of its printed form."""

    name: str
    kind: str
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, object] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, name: str, text: str) -> Connection:
        """A Connection from Airflow's JSON form.

        Raises:
            UsageError: the text is not that form (its content is never shown: it holds secrets).
        """
        try:
            document = json.loads(text)
            extra = document.get("extra") or {}
            extra = json.loads(extra) if isinstance(extra, str) else extra
            port = document.get("port")
            return cls(
                name=name,
                kind=str(document.get("conn_type") or ""),
                host=str(document.get("host") or ""),
                port=int(port) if port else None,
                login=str(document.get("login") or ""),
                password=str(document.get("password") or ""),
                schema=str(document.get("schema") or ""),
                extra=dict(extra),
            )
        except (ValueError, AttributeError, TypeError):
            raise UsageError(
                "the connection is not in Airflow's JSON form",
                where=variable_name(name),
                next_step='write it as {"conn_type": ..., "host": ..., "login": ..., "extra": {...}}',
                code=Code.WRONG_CONNECTION,
            ) from None


EXTRA_READ: Mapping[str, tuple[str, ...]] = {
    "postgres": TLS_KEYWORDS,
    "aws": (
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "service_config",
        "endpoint_url",
        "region_name",
    ),
    "spark": (),
}
"""The keys that are read of a Connection's extra, by type. librdkafka reads all of a `kafka` Connection."""


def ignored_extra(connection: Connection) -> tuple[str, ...]:
    """Return the keys of a Connection's extra that nothing reads, by name."""
    read = EXTRA_READ.get(connection.kind)
    return tuple(sorted(set(connection.extra).difference(read))) if read is not None else ()


def variable_name(connection: str) -> str:
    """The environment variable Airflow reads a connection from."""
    return CONNECTION_PREFIX + connection.upper()


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to reach a Kafka cluster, in librdkafka's own keys (`bootstrap.servers`, `security.protocol`, ...)."""

    librdkafka: Mapping[str, str] = field(repr=False)
    connection: str = ""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port[,host:port]`."""
        return self.librdkafka["bootstrap.servers"]


_TRUTHS = {"true": "true", "t": "true", "1": "true", "false": "false", "f": "false", "0": "false"}


def _in_one_spelling(extra: Mapping[str, object]) -> dict[str, str]:
    """Return a Connection's extra as librdkafka's keys. Each value that clients compare has one spelling.

    A key whose value is null counts as not given.

    Source: librdkafka's `rdkafka_conf.c` reads words of a choice in any case and with blanks around them, and a truth
    as `true`, `t`, `1`, `false`, `f` or `0` in any case.
    """
    keys = {key: str(value) for key, value in extra.items() if value is not None}
    spelling: Mapping[str, Callable[[str], str]] = {
        "security.protocol": lambda word: word.strip().upper(),
        "ssl.endpoint.identification.algorithm": lambda word: word.strip().lower(),
        "enable.ssl.certificate.verification": lambda word: _TRUTHS.get(word.lower(), word),
    }
    return {key: spelling[key](value) if key in spelling else value for key, value in keys.items()}


def file_fault(key: str, path: str) -> str:
    """Return why the file that a key of a Connection names cannot be read; empty where it can.

    Guarantees: a value that is no path, as the text of a private key, is not shown.
    """
    try:
        with Path(path).open("rb"):
            return ""
    except (OSError, ValueError) as error:
        why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        return f"{_named(key, path)} cannot be read ({why})"


def _named(key: str, path: str) -> str:
    return f"{key} names {path}, which" if path.startswith("/") and path.isprintable() else f"the file of {key}"


def _key_fault(key: str, path: str) -> str:
    """Return why libpq refuses a private key's file for who else may read it; empty where it does not.

    Source: `initialize_SSL` of libpq's `fe-secure-openssl.c`: nobody but the owner, and the group too where root owns.
    """
    found = Path(path).stat()
    others = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if found.st_uid == 0 else stat.S_IRWXG)
    if not found.st_mode & others:
        return ""
    return f"{_named(key, path)} is open to others; libpq allows 0600 at most, or 0640 if root owns it"


_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_LIBPQ_SYSTEM = "system"  # for sslrootcert: the machine's authorities


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """How to reach one PostgreSQL database.

    Attributes:
        tls: `TLS_KEYWORDS` and their values, as far as the Connection has them; libpq's own defaults for the others.
    """

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls: tuple[tuple[str, str], ...] = ()

    def keywords(self) -> dict[str, str | int]:
        """Keyword arguments of `psycopg.connect`."""
        return {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            "password": self.password,
            **dict(self.tls),
        }


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How to reach one bucket of an S3 server.

    Attributes:
        access_key: empty means botocore's own search for one: variables, files, the machine's role.
        endpoint_url: None means the provider's own.
        region: None means botocore's own search for one (variables, the profile), else `us-east-1`.
        session_token: of temporary keys; whoever wrote it into the connection renews it.
    """

    access_key: str
    secret_key: str = field(repr=False)
    endpoint_url: str | None = None
    region: str | None = None
    bucket: str = "millrace"
    session_token: str = field(default="", repr=False)


def _tls_of(connection: Connection) -> tuple[tuple[str, str], ...]:
    found = {key: str(connection.extra[key]) for key in TLS_KEYWORDS if connection.extra.get(key)}
    if found.get("sslmode", _TLS_MODES[0]) not in _TLS_MODES:
        raise UsageError(
            "libpq does not know the value of sslmode",
            where=f"connection {connection.name}",
            next_step=f"use one of {', '.join(_TLS_MODES)}",
            code=Code.WRONG_CONNECTION,
        )
    for key, path in found.items():
        if key == "sslmode" or (key, path) == ("sslrootcert", _LIBPQ_SYSTEM):
            continue
        fault = file_fault(key, path) or (_key_fault(key, path) if key == "sslkey" else "")
        if fault:
            raise UnreachableError(
                fault,
                where=f"connection {connection.name}",
                next_step="put the file there and let the user of Millrace read it, or correct the Connection's extra",
                code=Code.WRONG_CONNECTION,
            )
    return tuple(found.items())


@dataclass(frozen=True, slots=True)
class Settings:
    """Where everything is: the project's root and a way to look a Connection up by its name.

    `lookup` returns the JSON form of a Connection, or None where there is none.
    """

    root: Path
    lookup: Callable[[str], str | None] = field(repr=False)

    def connection(self, name: str) -> Connection:
        """The Connection of this name.

        Raises:
            UnreachableError: there is none, so the server behind it cannot be reached.
        """
        text = self.lookup(name)
        if text is None:
            raise UnreachableError(
                f"connection {name} is not defined",
                where=variable_name(name),
                next_step="start the embedded stack with `./millrace up`, or define the Connection in Airflow and "
                "export it in JSON form under this variable",
                code=Code.WRONG_CONNECTION,
            )
        return Connection.parse(name, text)

    def kafka(self, name: str = KAFKA) -> KafkaSettings:
        """Settings of a `kafka` Connection, whose extra holds librdkafka keys."""
        connection = self.connection(name)
        keys = _in_one_spelling(connection.extra)
        if "bootstrap.servers" not in keys:
            raise UsageError(
                "the kafka connection has no bootstrap.servers in its extra",
                where=variable_name(name),
                next_step='add {"bootstrap.servers": "host:9092"} to its extra',
                code=Code.WRONG_CONNECTION,
            )
        return KafkaSettings(keys, name)

    def postgres(self, name: str) -> PostgresSettings:
        """Settings of a `postgres` Connection.

        Raises:
            UsageError: a TLS mode that libpq does not know.
            UnreachableError: a file for TLS cannot be read now: libpq would go on without a client certificate whose
                file is missing. Or others may read the private key, which libpq refuses.
        """
        connection = self.connection(name)
        return PostgresSettings(
            host=connection.host,
            port=connection.port or 5432,
            database=connection.schema or connection.login,
            user=connection.login,
            password=connection.password,
            tls=_tls_of(connection),
        )

    def s3(self, name: str = "millrace_s3") -> S3Settings:
        """Settings of an `aws` Connection.

        Source: `provide_bucket_name` (hooks/s3.py) and `AwsConnectionWrapper` (utils/connection_wrapper.py) of
        Airflow's amazon provider: keys in login and password, else in the extra; what is said of s3 alone wins.
        """
        connection = self.connection(name)
        extra = connection.extra
        services = extra.get("service_config")
        own = services.get("s3") if isinstance(services, Mapping) else None
        own = own if isinstance(own, Mapping) else {}
        access_key, secret_key = connection.login, connection.password
        if not (access_key and secret_key):
            access_key, secret_key = (
                str(extra.get(f"aws_{key}") or "") for key in ("access_key_id", "secret_access_key")
            )
        endpoint = own.get("endpoint_url") or extra.get("endpoint_url")
        return S3Settings(
            access_key=access_key,
            secret_key=secret_key,
            endpoint_url=str(endpoint) if endpoint else None,
            region=str(extra.get("region_name") or "") or None,
            bucket=str(own.get("bucket_name") or "millrace"),
            session_token=str(extra.get("aws_session_token") or ""),
        )

    @property
    def state_folder(self) -> Path:
        """Where everything the running stack writes lives."""
        return self.root / STATE_FOLDER


def open_settings(root: Path | None = None) -> Settings:
    """Settings from the process's environment, completed by the embedded stack's `.millrace/env`.

    A variable that is set in the environment wins over the file.
    """
    folder = root or project_root()
    from_file = read_environment_file(folder / STATE_FOLDER / "env")

    def lookup(name: str) -> str | None:
        variable = variable_name(name)
        return os.environ.get(variable) or from_file.get(variable)

    return Settings(root=folder, lookup=lookup)
