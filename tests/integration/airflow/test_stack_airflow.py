"""The embedded Airflow as an operator, a viewer and a port scanner meet it."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from millrace.embedded import ports
from millrace.embedded.processes import Identity, PartRecord
from millrace.embedded.stack import PARTS
from support.waiting import Deadline

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack


def post(stack: Stack, user: str, password: str) -> int:
    """The status of a log-in."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{ports.read(stack.layout)['airflow']}/auth/token",
        data=json.dumps({"username": user, "password": password}).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=Deadline.AIRFLOW.seconds) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("user", ["admin", "operator", "viewer"])
def test_each_user_logs_in_with_the_generated_password_only(airflow: Stack, user: str) -> None:
    passwords = json.loads(airflow.layout.airflow_passwords.read_text())
    assert post(airflow, user, passwords[user]) == 201
    assert post(airflow, user, "admin") == 401


def processes(stack: Stack) -> list[psutil.Process]:
    """All processes of the stack that hold something open: each part's first one and everything below it."""
    found = []
    for name in (name for part in PARTS.values() for name in part.program_names):
        record = PartRecord.read(stack.layout, name)
        if record and record.leader.is_alive():
            leader = psutil.Process(record.leader.pid)
            found += [leader, *leader.children(recursive=True)]
    return found


def test_every_listener_is_on_the_loopback_address(stack: Stack) -> None:
    addresses = []
    for process in processes(stack):
        with suppress(psutil.NoSuchProcess):  # a process between two tasks
            listening = [one for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
            addresses += [one.laddr.ip for one in listening]
    assert addresses
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}
    assert socket.gethostbyname("localhost") == "127.0.0.1"


def test_no_command_line_holds_a_secret(stack: Stack) -> None:
    document = json.loads(stack.layout.credentials_file.read_text())
    secrets = [value for value in document.values() if isinstance(value, str)]
    secrets += [value for values in document.values() if isinstance(values, dict) for value in values.values()]
    assert len(secrets) > 8
    lines = []
    for process in processes(stack):
        with suppress(psutil.NoSuchProcess):
            lines.append(" ".join(process.cmdline()))
    assert len(lines) >= len([name for part in PARTS.values() for name in part.program_names])
    for line in lines:
        assert not [secret for secret in secrets if secret in line], line


def test_airflow_does_not_know_the_control_databases_owner(airflow: Stack) -> None:
    from millrace.airflow.shared.connections_file import ConnectionsFile

    record = PartRecord.read(airflow.layout, "airflow-triggerer")
    assert record
    assert Identity.of(record.leader.pid) == record.leader
    environment = psutil.Process(record.leader.pid).environ()
    assert not [name for name in environment if name.startswith("AIRFLOW_CONN_")]
    assert "PYTHONPATH" not in environment
    backend = ConnectionsFile(**json.loads(environment["AIRFLOW__SECRETS__BACKEND_KWARGS"]))
    assert json.loads(backend.get_conn_value("millrace_control") or "")["login"] == "millrace_control"
    assert backend.get_conn_value("millrace_control_owner") is None
