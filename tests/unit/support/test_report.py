"""Which failures may be tried again, by the kind of the error alone."""

from __future__ import annotations

import subprocess
import urllib.error

import httpx
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from millrace.errors import DataLossError, FencedError, UnreachableError
from support.checks.report_plugin import is_passing
from support.waiting import Deadline, DeadlinePassedError


@pytest.mark.parametrize(
    "error",
    [
        DeadlinePassedError(Deadline.SERVER, "a server", None),
        DeadlinePassedError(Deadline.AIRFLOW, "a watch", None),
        subprocess.TimeoutExpired("millrace", 3),
        UnreachableError("it does not answer"),
        ConnectionRefusedError(),
        TimeoutError(),
        httpx.ReadTimeout("too slow"),
        psycopg.OperationalError("connection refused"),
        KafkaException(KafkaError(KafkaError._TRANSPORT)),
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        urllib.error.URLError("refused"),
    ],
    ids=repr,
)
def test_waits_and_unreachable_servers_may_pass(error: Exception) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("1 == 2"),
        DeadlinePassedError(Deadline.STREAM, "all rows", None),
        subprocess.CalledProcessError(1, "false"),
        DataLossError("rows are lost"),
        FencedError("a newer epoch"),
        psycopg.errors.UniqueViolation("twice"),
        psycopg.errors.LockNotAvailable("locked"),
        KafkaException(KafkaError(KafkaError.FENCED_INSTANCE_ID)),
        httpx.HTTPStatusError("500", request=httpx.Request("GET", "http://a"), response=httpx.Response(500)),
        KeyError("row"),
    ],
    ids=repr,
)
def test_what_says_that_something_is_wrong_may_not(error: Exception) -> None:
    assert not is_passing(error)
