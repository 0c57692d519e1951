"""An `aws` Connection is read as Airflow reads it; nobody at its address is no missing object. Starts nothing."""

from __future__ import annotations

import json
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.adapters.s3.client import CONNECT_SECONDS, Bucket, _is_near
from millrace.adapters.s3.failures import where
from millrace.adapters.s3.store import S3Store
from millrace.errors import MillraceError, UnreachableError, UsageError
from millrace.settings import S3Settings, Settings
from millrace.wiring import open_platform
from support.waiting import Deadline, at_once

CALLS: dict[str, Callable[[S3Store], object]] = {
    "create": lambda store: store.create("a", b"a"),
    "create in parts": lambda store: store.create("a", bytes(6 * 1024 * 1024)),
    "get": lambda store: store.get("a"),
    "get_range": lambda store: store.get_range("a", 0, 1),
    "head": lambda store: store.head("a"),
    "list": lambda store: [*store.list("a")],
    "folders": lambda store: [*store.folders("a")],
    "delete": lambda store: store.delete(["a"]),
    "prove": lambda store: store.prove_create_only(),
}


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that is bound and not listening: nobody else gets it, and nobody answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{free.getsockname()[1]}"


def told_by(settings: S3Settings) -> MillraceError:
    """What a read says, where it gets no answer."""
    with pytest.raises(MillraceError) as told:
        S3Store(settings, attempts=1).get("a")
    return told.value


def test_nobody_there_is_unreachable(nobody: str) -> None:
    store = S3Store(S3Settings("key", "a-secret", nobody), attempts=2, largest_put=1024)
    for call in CALLS.values():
        with pytest.raises(UnreachableError, match="does not answer") as told:
            call(store)
        assert "refused" in str(told.value)
        assert "a-secret" not in "".join(traceback.format_exception(told.value))


def test_a_host_that_is_not_there_and_an_address_that_is_none() -> None:
    with pytest.raises(UnreachableError, match="does not answer"):
        S3Store(S3Settings("key", "secret", "http://no-such-host.invalid:1"), attempts=1).get("a")
    for none in ("nothing", "http://[::1", "http://", "http://host:port", "ftp://host", "http://bad host:1"):
        with pytest.raises(UsageError, match="endpoint"):
            S3Store(S3Settings("key", "secret", none)).get("a")


@pytest.mark.parametrize("secret", ["user:a-password@", "a-password@", ":a-password@", "user:a-pass[word]@"])
def test_an_address_with_a_password_is_refused_without_showing_it(secret: str) -> None:
    with pytest.raises(UsageError, match="endpoint") as told:
        S3Store(S3Settings("key", "secret", f"http://{secret}127.0.0.1:1"))
    assert "a-pass" not in "".join(traceback.format_exception(told.value))


def test_a_cause_that_holds_the_secret_is_left_out() -> None:
    settings = S3Settings("key", "no-such-host", "http://no-such-host.invalid:1")  # so the cause's text holds it
    assert "***" in told_by(settings).what
    assert told_by(settings).__cause__ is None
    assert "no-such-host.invalid" in "".join(
        traceback.format_exception(told_by(replace(settings, secret_key="another")))
    )


def region_of(settings: S3Settings) -> str:
    bucket = Bucket(settings, attempts=1)
    with pytest.raises(UnreachableError):
        bucket.call("head_object", Key="a")
    return str(bucket.settings.region)


def test_the_region_is_the_connections_else_the_machines(
    nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = S3Settings("key", "secret", nobody)
    (tmp_path / "config").write_text("[default]\nregion = eu-north-1\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert region_of(settings) == "us-east-1"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert region_of(settings) == "eu-north-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-2")
    assert region_of(settings) == "eu-west-2"
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert region_of(settings) == "eu-west-3"
    assert region_of(replace(settings, region="eu-west-1")) == "eu-west-1"


def test_the_environment_does_not_move_the_address(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", nobody)
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody)
    bucket = Bucket(S3Settings("key", "secret", region="eu-west-1"))
    assert bucket.client().meta.endpoint_url == "https://s3.eu-west-1.amazonaws.com"
    assert bucket.where == "s3://millrace (eu-west-1)"


def test_a_profile_that_is_not_there_is_named(nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    told = told_by(S3Settings("", "", nobody))
    assert isinstance(told, UnreachableError)
    assert "not-there" in told.what
    assert "AWS_PROFILE" in told.next_step


def test_a_body_on_a_fresh_connection_may_pause_for_longer_than_a_connection_takes() -> None:
    assert CONNECT_SECONDS >= 20  # urllib3 holds both against the same bound
    assert Bucket(S3Settings("key", "secret")).client().meta.config.connect_timeout == CONNECT_SECONDS


def test_the_connection_is_read_as_airflow_does(tmp_path: Path) -> None:
    def settings(**document: Any) -> S3Settings:
        text = json.dumps({"conn_type": "aws", **document})
        return Settings(tmp_path, lambda _: text).s3()

    assert settings() == S3Settings("", "", None, None, "millrace", "")
    own = {"bucket_name": "archive", "endpoint_url": "http://s3-only"}
    extra = {"endpoint_url": "http://all", "region_name": "eu-west-1", "aws_session_token": "token-1"}
    full = settings(login="key", password="secret", extra={**extra, "service_config": {"s3": own}})
    assert full == S3Settings("key", "secret", "http://s3-only", "eu-west-1", "archive", "token-1")
    assert settings(extra={"endpoint_url": "http://all", "service_config": {"s3": None}}).endpoint_url == "http://all"
    kept = settings(extra={"aws_access_key_id": "key", "aws_secret_access_key": "secret"})
    assert (kept.access_key, kept.secret_key) == ("key", "secret")
    assert "token-1" not in repr(full)
    assert where(settings()) == "s3://millrace"
    assert where(full) == "http://s3-only/archive"


def test_a_proxy_is_not_asked_for_what_only_this_network_knows() -> None:
    near = ["http://127.0.0.1:9", "http://localhost:9", "http://s3:9000", "http://[::1]:9"]
    far = ["http://10.0.0.1:9", "https://s3.example.org", None]
    assert [_is_near(S3Settings("", "", each)) for each in near + far] == [True] * 4 + [False] * 3


def test_a_store_is_opened_once_for_each_connection(tmp_path: Path) -> None:
    connection = json.dumps({"conn_type": "aws", "login": "k", "password": "s"})
    platform = open_platform(Settings(tmp_path, lambda _: connection))
    assert platform.objects.store() is platform.objects.store("millrace_s3")
    assert platform.objects.store("another") is not platform.objects.store()


def test_threads_get_the_same_store(tmp_path: Path) -> None:
    """Each thread has looked before the first one has a store."""
    both = threading.Barrier(2)

    def lookup(_: str) -> str:
        both.wait(Deadline.THREAD.seconds)
        return json.dumps({"conn_type": "aws", "login": "k", "password": "s"})

    platform = open_platform(Settings(tmp_path, lookup))
    one, other = at_once([platform.objects.store] * 2, within=Deadline.THREAD, what="two threads to get a store")
    assert one is other
