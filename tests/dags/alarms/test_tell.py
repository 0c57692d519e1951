"""When a run of `millrace.alarms` is red, on a control database in memory."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from millrace.domain.alarms.alarm import Alarm
from millrace.domain.alarms.extent import Extent
from millrace.domain.declaration.pipeline import Environment, Notifier
from support.fakes.streams import Clock, FakePlatform

PAGER = "test_tell_alarms.Pager"


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePlatform:
    made = FakePlatform(tmp_path, Clock(datetime.now(UTC)))
    environment = Environment("production", (Notifier("log"), Notifier(PAGER)))
    monkeypatch.setattr("millrace.airflow.shared.settings.airflow_platform", lambda: made)
    monkeypatch.setattr("millrace.usecases.declaration.environment.environment_of", lambda root: environment)
    return made


class Pager:
    """A notifier that fails while `error` is set."""

    error: Exception | None = None

    def __call__(self, alarm: Alarm) -> None:
        if self.error:
            raise self.error


def tell(monkeypatch: pytest.MonkeyPatch, pager: Pager) -> str:
    """Run the task; why it failed, empty where it succeeded."""
    from airflow.sdk.exceptions import AirflowFailException

    from millrace.airflow.alarms.operators import TellAlarms

    monkeypatch.setattr("millrace.airflow.alarms.operators._airflow_notifier", lambda notifier, context: pager)
    context: Any = {}
    try:
        TellAlarms(task_id="tell").execute(context)
    except AirflowFailException as error:
        return str(error)
    return ""


def test_a_run_is_red_for_a_breach_and_for_a_notifier_that_fails_and_green_for_a_retry_that_delivers(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager = Pager()
    pager.error = ConnectionError("no route")
    platform.alarms.open("stream.died", "shop.purchases", "epoch 1 ended")
    assert "not delivered by test_tell_alarms.Pager: ConnectionError: no route; retried at" in tell(monkeypatch, pager)
    platform.clock.pass_seconds(60)
    assert "no route" in tell(monkeypatch, pager)
    pager.error = None
    platform.clock.pass_seconds(300)
    assert tell(monkeypatch, pager) == ""
    assert platform.alarms.rows[0].told_at is not None


HEARD: list[str] = []


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> str:
    """The import path of an Airflow notifier with a template; Airflow must not be imported at collection."""
    from airflow.sdk.bases.notifier import BaseNotifier

    class Recorder(BaseNotifier):
        template_fields = ("text",)

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

        def notify(self, context: Any) -> None:
            HEARD.append(self.text)

    monkeypatch.setattr(sys.modules[__name__], "Recorder", Recorder, raising=False)
    HEARD.clear()
    return f"{__name__}.Recorder"


def failed_run() -> str:
    """Run the task, which fails; why."""
    from airflow.sdk.exceptions import AirflowFailException

    from millrace.airflow.alarms.operators import TellAlarms

    with pytest.raises(AirflowFailException) as failed:
        TellAlarms(task_id="tell").execute(cast(Any, {}))
    return str(failed.value)


def test_a_notifier_of_airflow_sees_what_an_alarm_grew_to_in_its_template(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    notifier = Notifier(recorder, (("text", "{{ alarm.detail }}: {{ reason }}"),))
    environment = Environment("production", (notifier,))
    monkeypatch.setattr("millrace.usecases.declaration.environment.environment_of", lambda root: environment)
    for measure in (10, 9_000_000):
        platform.alarms.open("backup.lost", "orders", f"{measure:,} lost", Extent(measure))
        failed_run()
        platform.clock.pass_seconds(3600)
    assert HEARD == [
        "10 lost: backup.lost of orders: 10 lost",
        "9,000,000 lost: backup.lost of orders: 9,000,000 lost (raised again: from 10 to 9,000,000 offsets)",
    ]


def test_a_notifier_of_airflow_gets_foreign_text_as_one_printable_line_and_the_exact_subject(
    platform: FakePlatform, monkeypatch: pytest.MonkeyPatch, recorder: str
) -> None:
    text = "{{ reason }}|{{ exception }}|{{ alarm.subject }}"
    environment = Environment("production", (Notifier(recorder, (("text", text),)),))
    monkeypatch.setattr("millrace.usecases.declaration.environment.environment_of", lambda root: environment)
    subject = "app\nall is well\x1b[2J"
    platform.alarms.open("reader.headroom", subject, "5 min\nleft")
    why = failed_run()
    line = "reader.headroom of app\\nall is well\\x1b[2J: 5 min\\nleft"
    assert why == line
    assert [line, line, subject] == [part for heard in HEARD for part in heard.split("|")]
