"""`millrace backup restore` at the terminal: what is asked for and printed, how it ends; and a client's settings."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.adapters.kafka.producers.exact import settings_of
from millrace.cli.archive import commands as backup
from millrace.cli.archive import restore
from millrace.domain.archive.restore.records import Placement
from millrace.domain.archive.selection import Selection
from millrace.errors import FencedError, MillraceError, RefusedError, UnreachableError, UsageError
from millrace.settings import KafkaSettings
from millrace.usecases.archive.restore import Request, RestoreProgress
from millrace.usecases.archive.restore_run import Phase, RestoreReport
from support.commands import use_platform

REPORT = RestoreReport("t", "C" * 22, "back", "D" * 22, "abc", 30, 10, 40, 0, 0, ())
ASKED = ("restore", "t", "--into", "back", "--reason", "they want it")


class Asked:
    """Stands in for the use case: remembers what was asked for, and answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: RestoreReport | MillraceError) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        monkeypatch.setattr(restore, "Restore", self._made)
        use_platform(monkeypatch, None, restore)

    def _made(self, platform: object, request: Request, tell: Any, progress: Any) -> Any:
        self.requests.append(request)

        def run() -> RestoreReport:
            progress(RestoreProgress(Phase.RESTORING, 10, 40))
            tell("something about the archive")
            if isinstance(self._answer, MillraceError):
                raise self._answer
            return self._answer

        return SimpleNamespace(run=run)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(backup.app, [*ASKED, *arguments])


def test_options_say_what_and_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, REPORT)
    more = ("--partitions", "key", "--append", "--topic-id", "E" * 22, "--connection", "other_s3", "--kafka", "other")
    done = call("--partition", "1", "--from", "10", "--to", "20", "--key-base64", "AA==", *more)
    assert (done.exit_code, call().exit_code) == (0, 0)
    whole, plain = asked.requests
    assert whole.selection == Selection(1, 10, 20, key=b"\0")
    assert (whole.placement, whole.append, whole.topic_id) == (Placement.KEY, True, "E" * 22)
    assert (whole.store, whole.kafka, whole.reason) == ("other_s3", "other", "they want it")
    assert (plain.selection, plain.placement, plain.append) == (Selection(), Placement.SAME, False)
    assert plain.actor.startswith("cli:")


def test_what_came_of_it_is_said_and_nothing_else_goes_to_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch, REPORT)
    done = call()
    assert done.stdout.splitlines() == [
        f"t ({'C' * 22}) -> back: 30 restored, 10 were there before",
        "  40 read back, as archived",
    ]
    assert done.stderr == "millrace: something about the archive\n"  # no bar where there is no terminal


@pytest.mark.parametrize(
    "more", [{"problems": 2}, {"differences": ("of partition 0 the target has 1 records, the archive 2",)}]
)
def test_what_is_not_whole_ends_with_1(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    report = RestoreReport(**{name: getattr(REPORT, name) for name in REPORT.__slots__} | more)
    Asked(monkeypatch, report)
    done = call("--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["schema"], said["error"]) == (1, "millrace.backup.restore/1", None)
    assert (said["problems"], said["differences"]) == (report.problems, list(report.differences))
    for line in report.differences:
        assert line in done.stderr


@pytest.mark.parametrize("error", [RefusedError, FencedError, UnreachableError, UsageError])
def test_an_error_is_one_document_too(monkeypatch: pytest.MonkeyPatch, error: type[MillraceError]) -> None:
    Asked(monkeypatch, error("what", where="where", next_step="next"))
    done = call("--json")
    assert isinstance(done.exception, error)  # the command line's entry turns it into its exit code
    assert json.loads(done.stdout)["error"] == {"what": "what", "where": "where", "next_step": "next"}


@pytest.mark.parametrize("arguments", [("--from", "10"), ("--key", "a", "--key-base64", "YQ=="), ("--to", "tomorrow")])
def test_nothing_is_begun_where_the_options_make_no_sense(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    asked = Asked(monkeypatch, REPORT)
    assert isinstance(call(*arguments).exception, UsageError)
    assert asked.requests == []


def test_a_reason_is_asked_for() -> None:
    done = CliRunner().invoke(backup.app, ["restore", "t", "--into", "back"])
    assert done.exit_code == 2


def test_the_second_client_gets_the_same_connection() -> None:
    given = {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": "secret",
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "1000",
    }
    assert settings_of(KafkaSettings(given)) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "ann",
        "sasl_plain_password": "secret",
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize("key", ["sasl.oauthbearer.config", "ssl.ca.pem", "enable.ssl.certificate.verification"])
def test_a_connection_that_the_second_client_cannot_use_is_refused_by_name(key: str) -> None:
    with pytest.raises(RefusedError, match=key.replace(".", r"\.")) as refused:
        settings_of(KafkaSettings({"bootstrap.servers": "a:1", key: "s3cret"}))
    assert "s3cret" not in str(refused.value)


def test_a_mechanism_that_the_second_client_cannot_use_is_refused_by_name() -> None:
    given = {"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
    with pytest.raises(RefusedError, match=r"cannot connect: SASL GSSAPI \(Kerberos\)"):
        settings_of(KafkaSettings(given))
