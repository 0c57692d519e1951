"""`millrace backup audit|coverage|acknowledge`, as called: exit codes, documents, and what is refused."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from millrace.adapters.archive.audits.auditor import Auditor
from millrace.adapters.archive.audits.evidence import EvidenceStore
from millrace.adapters.archive.reading import ArchiveReader
from millrace.cli.archive import audit as commands
from millrace.cli.archive import commands as backup
from millrace.domain.alarms.extent import Extent
from millrace.domain.archive.audits.acknowledgement import Acknowledgement
from millrace.errors import MillraceError, RefusedError, UnreachableError, UsageError
from support.archive.audits.in_memory import HERE, NOON, Audits
from support.commands import use_platform
from support.declarations import example_project
from support.fakes.platform import GroupedPlatform
from support.fakes.streams import Clock, FakeAlarms

WHY = ("--reason", "deleted by hand")


class World(GroupedPlatform):
    """The example's archive in memory, as the commands meet it."""

    def __init__(self, root: Path) -> None:
        self.settings = SimpleNamespace(root=root)
        self.audits = Audits()
        self.asked: list[Acknowledgement] = []
        self.alarms = FakeAlarms(Clock(NOON))
        self.away: MillraceError | None = None

    def archive_reader(self, connection: str) -> ArchiveReader:
        if self.away is not None:
            raise self.away
        return ArchiveReader(self.audits.archive.store)

    def archive_evidence(self, connection: str) -> EvidenceStore:
        return EvidenceStore(self.audits.archive.store)

    def archive_claims(self, app: object, kafka: str) -> Any:
        return SimpleNamespace(topic_ids=lambda topic: set())

    def archive_auditor(self, app: object, kafka: str) -> Auditor:
        return self.audits.auditor()

    @property
    def control(self) -> Any:
        backups = SimpleNamespace(
            known=lambda here: list(self.asked), acknowledge=lambda asked, about: self.asked.extend(asked)
        )
        return SimpleNamespace(backups=backups, alarms=self.alarms)

    def lose(self, number: int, partition: int) -> str:
        key = self.audits.archive.key(number, partition)
        del self.audits.objects[key]
        return key


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(example_project(tmp_path))
    use_platform(monkeypatch, world, commands, settings=world.settings)
    return world


def call(*arguments: str) -> Result:
    return CliRunner().invoke(backup.app, arguments)


def ended(done: Result) -> int:
    return done.exception.exit_code if isinstance(done.exception, MillraceError) else done.exit_code


def test_a_proven_archive_ends_with_0_and_names_its_evidence(world: World) -> None:
    done = call("audit")
    assert (ended(done), done.stderr) == (0, "")
    assert "proven" in done.stdout
    [line] = [line for line in done.stdout.splitlines() if line.strip().startswith("evidence: ")]
    assert line.split()[-1] in world.audits.objects


def test_a_fault_ends_with_1_is_named_and_has_an_alarm_until_it_is_acknowledged(world: World) -> None:
    key = world.lose(2, 1)
    done = call("audit", HERE.topic, "--deep", "--json")
    document = json.loads(done.stdout)
    assert (ended(done), document["schema"]) == (1, "millrace.backup.audit/1")
    [breach] = document["audits"][0]["audit"]["breaches"]
    assert (breach["kind"], breach["key"], breach["partition"]) == ("broken", key, 1)
    assert [(alarm.kind, alarm.extent) for alarm in world.alarms.list()] == [("backup.broken", Extent(1))]
    assert ended(call("coverage")) == 1
    told = call("acknowledge", HERE.topic, "1", "0-100", *WHY)
    assert (ended(told), "partition 1 [20, 30): asked of shop.backup" in told.stdout) == (0, True)
    world.audits.now += timedelta(hours=1)
    assert ended(call("audit", "--deep")) == 0
    assert world.alarms.list() == ()


def test_a_store_that_does_not_answer_is_no_verdict(world: World) -> None:
    world.away = UnreachableError("nobody answers", where="the store")
    done = call("audit")
    assert (ended(done), "nobody answers" in done.stderr) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("audit", "other"), UsageError),
        (("acknowledge", "other", "0", "0-1", *WHY), UsageError),
        (("acknowledge", HERE.topic, "0", "0-100", *WHY), RefusedError),
        (("acknowledge", HERE.topic, "0", "5-5", *WHY), UsageError),
        (("acknowledge", HERE.topic, "0", "05", *WHY), UsageError),
        (("acknowledge", HERE.topic, "0", *WHY), UsageError),
        (("acknowledge", HERE.topic, "0", "0-1", "--manifest", "3", *WHY), UsageError),
        (("acknowledge", HERE.topic, "--manifest", "3", *WHY), RefusedError),
        (("acknowledge", HERE.topic, "0", "0-1", "--topic-id", "B" * 22, *WHY), UsageError),
    ],
)
def test_what_is_not_meant_or_not_at_fault_is_refused(
    world: World, arguments: tuple[str, ...], error: type[MillraceError]
) -> None:
    done = call(*arguments)
    assert type(done.exception) is error, done.output
    assert world.asked == []


def test_an_acknowledgement_has_a_reason(world: World) -> None:
    assert ended(call("acknowledge", HERE.topic, "0", "0-1")) == 2
    assert ended(call("acknowledge", HERE.topic, "0", "0-1", "--reason", " ")) == 2


def test_the_page_is_written_of_one_archive(world: World, tmp_path: Path) -> None:
    assert ended(call("coverage", "--page", str(tmp_path / "page.html"))) == 0
    assert HERE.topic in (tmp_path / "page.html").read_text(encoding="utf-8")
    refused = call("coverage", "--page", str(tmp_path / "no" / "page.html"))
    assert isinstance(refused.exception, RefusedError)
