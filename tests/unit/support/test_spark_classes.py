"""The archive of Spark's classes: whose it is, who uses it, and that tests go on without it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from millrace.embedded.jars.java import Java
from support.checks import spark_classes
from support.stack.embedded import QUICK_JAVA
from support.waiting import Deadline


def java_that_says(folder: Path, text: str) -> Java:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return Java(folder, 17, "a test")


def test_each_java_has_an_archive_of_its_own(tmp_path: Path) -> None:
    paths = [spark_classes.archive_for(java_that_says(tmp_path / text, text)) for text in ("17.0.15", "17.0.16")]
    assert len(set(paths)) == 2
    assert {path.suffix for path in paths} == {".jsa"}


@pytest.fixture
def called(tmp_path: Path) -> Path:
    """A Java of tests around a program that prints its arguments."""
    echo, program = tmp_path / "echo", tmp_path / "java"
    echo.write_text('#!/bin/sh\necho "$*"\n')
    program.write_text(QUICK_JAVA.format(java=echo, archive=tmp_path / "classes.jsa"))
    for each in (echo, program):
        each.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("arguments", "there", "used"),
    [
        (["-cp", "x", "org.apache.spark.deploy.SparkSubmit", "a b"], True, True),
        (["-cp", "x", "org.apache.spark.deploy.SparkSubmit"], False, False),
        (["-cp", "x", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"], True, False),
        (["-cp", "x", "kafka.Kafka", "server.properties"], True, False),
    ],
    ids=["Spark", "Spark, no archive", "what prints Spark's command", "Kafka"],
)
def test_only_sparks_own_jvm_takes_the_archive(called: Path, arguments: list[str], there: bool, used: bool) -> None:
    if there:
        called.with_name("classes.jsa").touch()
    done = subprocess.run([called, *arguments], capture_output=True, text=True, timeout=Deadline.PROCESS.seconds)
    assert ("-XX:SharedArchiveFile=" in done.stdout) is used
    assert "-XX:TieredStopAtLevel=1" in done.stdout
    assert done.stdout.rstrip("\n").endswith(" ".join(arguments))


@pytest.mark.parametrize("fails", ["", "no Python workers"], ids=["a Java that writes none", "a failure"])
def test_what_cannot_be_archived_is_said_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str
) -> None:
    archive = tmp_path / "classes.jsa"
    monkeypatch.setattr(spark_classes, "archive_for", lambda java: archive)
    monkeypatch.setattr(spark_classes, "find_java", lambda folder: None)
    monkeypatch.setattr(spark_classes.signal, "signal", lambda *_: None)

    def record(draft: Path, scratch: Path) -> str:
        if fails:
            draft.touch()  # half of one
        return fails

    monkeypatch.setattr(spark_classes, "record_apart", record)
    spark_classes.main()
    assert f"each JVM loads them by itself: {fails or 'this Java writes none'}" in capsys.readouterr().out
    assert list(tmp_path.glob("classes*")) == []
