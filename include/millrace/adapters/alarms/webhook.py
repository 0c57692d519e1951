"""Documents sent by HTTP POST to the address of an `http` Connection, which is a secret as a whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from millrace.errors import Code, UnreachableError, UsageError
from millrace.settings import Connection, variable_name

PHASE_SECONDS = 10.0
"""For each of connecting, sending and waiting for the answer."""


def post(connection: Connection, document: Mapping[str, object]) -> None:
    """Send a document as JSON; any status from 200 to 299 means that it arrived.

    Follows no redirect, and reads nothing of the answer but its status.

    Guarantees: the address stands in no error and no log. It may end with a token that lets anybody post.

    Raises:
        UsageError: the Connection is no `http` one with a usable address.
        UnreachableError: it was not taken: no connection, or another status.
        TimeoutError: there was no answer in time; the document may have arrived.
        ConnectionError: the connection was lost before the answer; the document may have arrived.
    """
    where = f"connection {connection.name}"
    url = address(connection)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs the address of each request
    headers = {str(name): str(value) for name, value in connection.extra.items()}
    login = (connection.login, connection.password) if connection.login else None
    failed = ""
    try:
        with (
            httpx.Client(timeout=PHASE_SECONDS, follow_redirects=False, auth=login) as client,
            client.stream("POST", url, json=dict(document), headers=headers) as answer,
        ):
            if not answer.is_success:
                failed = f"it answers {answer.status_code}"
    except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
        raise TimeoutError(f"no answer from {where}: {type(error).__name__}") from None
    except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError) as error:
        raise ConnectionError(f"no answer from {where}: {type(error).__name__}") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError) as error:  # their texts may hold the address
        failed = f"it cannot be reached: {type(error).__name__}"
    if failed:
        raise UnreachableError(f"the webhook did not accept the alarm: {failed}", where=where)


def address(connection: Connection) -> str:
    """Return where an `http` Connection leads.

    `host` is a whole address with its path, or a host's name, which `schema` (missing: `https`) and `port` complete.
    Without a `login`, the `password` is the secret end of the path, as in Airflow's hooks for webhooks.

    Raises:
        UsageError: it is of another type, or has no usable host.
    """
    base = connection.host if "://" in connection.host else f"{connection.schema or 'https'}://{connection.host}"
    if connection.port and "://" not in connection.host:
        base += f":{connection.port}"
    if connection.password and not connection.login:
        base = f"{base.rstrip('/')}/{connection.password.lstrip('/')}"
    if connection.kind != "http" or not _is_usable(base):
        raise UsageError(
            "the connection of a webhook needs the type `http` and an address by http or https",
            where=variable_name(connection.name),
            next_step='write it as {"conn_type": "http", "host": "https://HOST/PATH", "password": "..."}',
            code=Code.WRONG_CONNECTION,
        )
    return base


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
