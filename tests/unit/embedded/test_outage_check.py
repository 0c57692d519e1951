from __future__ import annotations

from pathlib import Path

import pytest

from millrace.embedded.doctor import Check, outage_check
from millrace.embedded.servers.watchdog import pager_connections
from millrace.settings import Settings

PAGER = "AIRFLOW_CONN_MILLRACE_PAGER"
WEBHOOK = "{kind: webhook, connection: millrace_pager}"
SMTP = "{kind: airflow.providers.smtp.notifications.smtp.SmtpNotifier, to: a@b.c}"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "include" / "environments").mkdir(parents=True)
    monkeypatch.setenv("MILLRACE_ENVIRONMENT", "embedded")
    return tmp_path


def checked(root: Path, *notifiers: str, known: bool = True) -> Check:
    if notifiers:
        file = root / "include" / "environments" / "embedded.yaml"
        file.write_text(f"notifiers: [{', '.join(notifiers)}]\n")
    return outage_check(Settings(root, lambda name: "{}" if known else None))


def test_the_embedded_stack_pages_nobody_and_says_so(root: Path) -> None:
    for found in (checked(root), checked(root, "{kind: log}")):
        assert found.fine
        assert found.found == "alarms.log only, which pages nobody"


def test_a_notifier_that_needs_airflow_is_refused_by_name(root: Path) -> None:
    for notifiers in ([SMTP], ["{kind: log}", SMTP]):
        found = checked(root, *notifiers)
        assert not found.fine
        assert "SmtpNotifier needs Airflow, so it is not used while the control database is down" in found.found
    found = checked(root, WEBHOOK, SMTP)
    assert found.fine
    assert "webhook millrace_pager" in found.found
    assert "SmtpNotifier needs Airflow, so it is not used while the control database is down" in found.found


def test_a_webhook_whose_connection_only_airflow_knows_is_not_fine(root: Path) -> None:
    found = checked(root, WEBHOOK, known=False)
    assert not found.fine
    assert f"missing outside Airflow: {PAGER}" in found.found


def test_an_environment_with_errors_is_not_fine(root: Path) -> None:
    found = checked(root, "{kind: webhook}")
    assert not found.fine
    assert "has errors" in found.found


def test_up_keeps_the_connections_of_webhooks_and_no_others(root: Path) -> None:
    checked(root, WEBHOOK, SMTP)
    exported, former = {PAGER: "new", "AIRFLOW_CONN_OTHER": "x"}, {PAGER: "old"}
    assert pager_connections(root, exported, former) == {PAGER: "new"}
    assert pager_connections(root, {}, former) == {PAGER: "old"}
    assert pager_connections(root, {}) == {}
