from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from millrace.adapters.alarms import webhook as adapter
from millrace.domain.alarms.alarm import Alarm
from millrace.domain.declaration.pipeline import Notifier
from millrace.errors import MillraceError, UnreachableError, UsageError
from millrace.settings import Connection, Settings
from millrace.usecases.alarms.notifiers import webhook_notifier
from millrace.wiring import open_platform
from support.alarms.webhooks import Webhook, webhook

SECRET = "T00/B00/XXX"
ALARM = Alarm(7, "stream.died", "shop.purchases", "epoch 3 ended: failed (1)", datetime.now(UTC), None, None)


@pytest.fixture
def pager() -> Iterator[Webhook]:
    with webhook() as found:
        yield found


def tell(pager: Webhook, tmp_path: Path, **fields: object) -> None:
    text = json.dumps({"conn_type": "http", "host": pager.address + "/hook", "password": SECRET, **fields})
    platform = open_platform(Settings(tmp_path, {"millrace_pager": text}.get))
    webhook_notifier(platform, Notifier("webhook", (("connection", "millrace_pager"),)))(ALARM)


def test_a_webhook_gets_the_alarm_and_a_sentence_at_its_secret_address(pager: Webhook, tmp_path: Path) -> None:
    tell(pager, tmp_path, extra={"X-Team": "data"})
    [(path, headers, document)] = pager.posts
    assert path == f"/hook/{SECRET}"
    assert headers["X-Team"] == "data"
    assert (document["schema"], document["id"], document["closed_at"]) == ("millrace.alarm/1", 7, None)
    assert document["text"] == "Millrace: stream.died of shop.purchases: epoch 3 ended: failed (1)"


def test_a_login_is_sent_beside_the_address_and_not_in_it(pager: Webhook, tmp_path: Path) -> None:
    tell(pager, tmp_path, login="anna")
    [(path, headers, _)] = pager.posts
    assert path == "/hook"
    assert headers["Authorization"].startswith("Basic ")


@pytest.mark.parametrize("status", [302, 404, 500])
def test_another_status_is_an_error_that_names_the_status_and_not_the_address(
    pager: Webhook, tmp_path: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    pager.status = status
    with caplog.at_level(logging.INFO), pytest.raises(UnreachableError) as caught:
        tell(pager, tmp_path)
    assert len(pager.posts) == 1
    assert str(status) in str(caught.value)
    for text in (str(caught.value), repr(caught.value.__context__), caplog.text):
        assert SECRET not in text
        assert pager.address not in text


def test_no_server_is_an_error_that_names_its_class_and_not_the_address(pager: Webhook, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        tell(pager, tmp_path, host="http://127.0.0.1:1/hook")
    assert "ConnectError" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_server_that_does_not_answer_ends_the_post(
    pager: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "PHASE_SECONDS", 0.2)
    pager.silent = True
    with pytest.raises(TimeoutError) as caught:
        tell(pager, tmp_path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"conn_type": "slack"},
        {"host": ""},
        {"host": "ftp://host/x"},
        {"host": "https://[::1"},
        {"host": "http://a:b:c"},
    ],
)
def test_an_address_that_leads_nowhere_is_refused_without_showing_it(
    pager: Webhook, tmp_path: Path, fields: dict[str, str]
) -> None:
    with pytest.raises(MillraceError) as caught:
        tell(pager, tmp_path, **fields)
    assert isinstance(caught.value, UsageError)
    assert SECRET not in str(caught.value)


def test_a_host_is_completed_by_schema_and_port() -> None:
    assert adapter.address(Connection("pager", "http", "hooks", 8443)) == "https://hooks:8443"
    assert adapter.address(Connection("pager", "http", "hooks", schema="http")) == "http://hooks"
