"""The jars of the broker, the object store and Spark's Kafka connector, held to a committed lock.

Each set has a lock file `SET.lock` beside this module, one line a jar:
`sha256 organisation:name:version[:classifier]`. Jars come through the Ivy that PySpark carries, so no build tool is
needed; they are kept in the user's cache folder, shared between checkouts, and checked against the lock on every start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

import psutil
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_incrementing

from millrace.embedded.jars.java import BUNDLED, Java
from millrace.embedded.layout import Layout, cache_folder, write_private
from millrace.errors import Code, PartFailedError, UnreachableError

SETS = ("kafka", "s3proxy", "spark-connector")
JARS_PER_IVY = 31
"""One Ivy process fetches its jars one after the other, so a large set is split among several."""
TRIES = 3
TRY_SECONDS = 600.0
"""How long one Ivy process may take; the next goes on from what it has fetched."""
SILENT_SECONDS = 60
"""How long a repository may say nothing. Ivy alone would wait for ever."""
PAUSE_SECONDS = 3.0
"""Before the second try; twice as much before the third."""


_CAUSE = re.compile(r"^\s*(?:Server access error|SERVER ERROR|\[FAILED|Java did not end).*", re.MULTILINE)
"""What of Ivy's many lines says why."""


class _NotDownloadedError(UnreachableError):
    """Jars that could not be downloaded, with what the downloader printed."""

    quotes_log = True
    usual_code = Code.DOWNLOAD_FAILED


class _MayPassError(_NotDownloadedError):
    """The download failed by something that may be over a little later."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked jar."""

    sha256: str
    organisation: str
    name: str
    version: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """The file's name in the cache folder."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + ".jar"

    def path_in(self, cache: Path) -> Path:
        """Where the jar is kept."""
        return cache / "jars" / self.organisation / self.file_name


@dataclass(frozen=True, slots=True)
class Fetched:
    """The jars of some sets, and the seconds that passed while downloading (0 when all were there)."""

    jars: dict[str, list[Path]]
    download_seconds: float


def read_lock(jar_set: str) -> list[Jar]:
    """The jars of one set, in the lock's order."""
    lines = _lock_file(jar_set).read_text(encoding="utf-8").splitlines()
    jars = []
    for line in lines:
        if line and not line.startswith("#"):
            sha256, _, coordinate = line.partition(" ")
            jars.append(Jar(sha256, *coordinate.strip().split(":")))
    return jars


def write_spark_jars(layout: Layout, jars: Sequence[Path]) -> None:
    """Write down, for the streaming apps, where Spark's jars lie."""
    write_private(layout.spark_jars_file, "".join(f"{jar}\n" for jar in jars))


def fetch(sets: Sequence[str], java: Java, tell: Callable[[str], None], cache: Path | None = None) -> Fetched:
    """Bring the jars of these sets into the cache, side by side, each checked by its SHA-256.

    A file in the cache with another checksum is fetched again, once.

    Args:
        sets: names out of `SETS`.
        java: what Ivy runs on.
        tell: is given a line of progress now and then, from several threads.
        cache: the cache folder, the user's own unless given.

    Raises:
        PartFailedError: a fetched file has another checksum than the lock says; it is named and not kept.
        UnreachableError: the jars could not be downloaded.
    """
    folder = cache or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {name: read_lock(name) for name in sets}
    started = time.monotonic()
    with _one_at_a_time(folder / "jars.lock", tell):
        absent = [[jar for jar in jars if not _is_whole(jar, folder)] for jars in wanted.values()]
        if any(absent):
            _download(absent, java, tell, folder)
    seconds = time.monotonic() - started if any(absent) else 0.0
    return Fetched({name: [jar.path_in(folder) for jar in jars] for name, jars in wanted.items()}, seconds)


def _download(absent: Sequence[Sequence[Jar]], java: Java, tell: Callable[[str], None], folder: Path) -> None:
    """Fetch what is absent, each set apart: two versions of one jar in one Ivy run evict each other."""
    batches = [jars[at : at + JARS_PER_IVY] for jars in absent for at in range(0, len(jars), JARS_PER_IVY)]
    total = sum(len(jars) for jars in absent)
    done = 0

    def one_more(_name: str) -> None:
        nonlocal done
        done += 1
        tell(f"downloading jars: {done} of {total}")

    with ThreadPoolExecutor(len(batches)) as pool:
        for future in [pool.submit(_fetch_batch, batch, java, folder, one_more, tell) for batch in batches]:
            future.result()


def _fetch_batch(
    batch: Sequence[Jar], java: Java, folder: Path, one_more: Callable[[str], None], tell: Callable[[str], None]
) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
        fetched = retrieve(batch, java, Path(scratch), one_more, tell)
        for jar in batch:
            found = fetched / f"{jar.organisation}@{jar.file_name}"
            _must_match(jar, found)
            target = jar.path_in(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(found, target)


def retrieve(
    jars: Sequence[Jar],
    java: Java,
    scratch: Path,
    one_more: Callable[[str], None],
    tell: Callable[[str], None] = lambda _line: None,
    *,
    transitive: bool = False,
) -> Path:
    """Run Ivy for these jars with a cache of its own; returns the folder of `ORGANISATION@NAME-VERSION.jar` files.

    Where the network may be at fault, or Ivy does not end, it is run again, `TRIES` times in all: it takes up what it
    has in its cache. `tell` is given a line before each further try.

    Raises:
        PartFailedError: the disk is full, or a jar has another checksum than its repository publishes.
        UnreachableError: Ivy ended without having all of them.
    """
    (scratch / "settings.xml").write_text(_settings(scratch / "cache", poms=transitive), encoding="utf-8")
    (scratch / "ivy.xml").write_text(_module(jars, transitive=transitive), encoding="utf-8")
    out = scratch / "out"
    pattern = f"{out}/[organisation]@[artifact]-[revision](-[classifier]).[ext]"
    command = [str(java.program), "-Xmx256m", f"-Divy.default.ivy.user.dir={scratch / 'user'}", *_proxy_options()]
    command += ["-cp", _ivy_class_path(), "org.apache.ivy.Main", "-settings", str(scratch / "settings.xml")]
    command += ["-ivy", str(scratch / "ivy.xml"), "-confs", "default", "-retrieve", pattern]

    def say(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        told = error.what.splitlines()[0].rstrip(":") if isinstance(error, UnreachableError) else ""
        tell(f"{told}; try {state.attempt_number + 1} of {TRIES} in {state.upcoming_sleep:.0f} s")

    Retrying(
        retry=retry_if_exception_type(_MayPassError),
        stop=stop_after_attempt(TRIES),
        wait=wait_incrementing(PAUSE_SECONDS, PAUSE_SECONDS),
        before_sleep=say,
        reraise=True,
    )(_run_ivy, command, out, java, one_more)
    return out


def _run_ivy(command: Sequence[str], out: Path, java: Java, one_more: Callable[[str], None]) -> None:
    """Run Ivy once, for `TRY_SECONDS` at most. A try that was killed may have left half a file in `out`."""
    shutil.rmtree(out, ignore_errors=True)
    tail: deque[str] = deque(maxlen=2000)
    late = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        timer = threading.Timer(TRY_SECONDS, _kill, (process, late))
        timer.start()
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                if "[SUCCESSFUL ]" in line:
                    one_more(line)
            process.wait()
        finally:
            timer.cancel()
    if process.returncode == 0 and out.is_dir():
        return
    if late.is_set():
        tail.append(f"Java did not end within {TRY_SECONDS:g} s and was stopped")
    raise _not_fetched(tail, java, process.returncode if not late.is_set() else 0)


def _kill(process: subprocess.Popen[str], late: threading.Event) -> None:
    """End a Java that is late, and what it started: JAVA_HOME may hold a script that waits for the Java it calls."""
    late.set()
    with suppress(psutil.NoSuchProcess):
        tree = psutil.Process(process.pid)
        for part in [*tree.children(recursive=True), tree]:
            with suppress(psutil.NoSuchProcess):
                part.kill()


def _not_fetched(tail: Iterable[str], java: Java, code: int) -> PartFailedError | UnreachableError:
    """The error behind an Ivy that failed, by what it printed and how it ended."""
    whole = "\n".join(line for line in tail if line.strip() and not line.strip().startswith(".."))
    text = whole[-2000:]
    if "No space left on device" in whole:
        return PartFailedError(
            "the disk is full", where=str(cache_folder()), next_step="free some space, then run the command again"
        )
    if "unable to find valid certification path" in whole:
        return _NotDownloadedError(
            f"the jars could not be downloaded: {java.source} does not trust the repository's certificate "
            f"authority:\n{text}",
            where=f"the Maven repository, for the Java in {java.home}",
            next_step=_trusting(java),
            code=Code.DOWNLOAD_FAILED,
        )
    if re.search(r": invalid (sha\d+|md5): ", whole):
        return PartFailedError(
            f"a downloaded jar has another checksum than its repository publishes; it was not kept:\n{text}",
            where="the Maven repository",
            next_step="download from another network: something between this machine and the repository changes files",
            code=Code.DOWNLOAD_FAILED,
        )
    # A Java that was told to end (its code is then 128 and the signal, or the signal below 0) shall stay ended.
    kind = _NotDownloadedError if code < 0 or code > 128 else _MayPassError
    cause = _CAUSE.search(whole)
    return kind(
        f"the jars could not be downloaded{': ' + cause[0].strip() if cause else ''}:\n{text}",
        where="the Maven repository",
        next_step="check the network (and HTTPS_PROXY), then run the same command again: finished downloads are kept",
    )


def _trusting(java: Java) -> str:
    if java.source == BUNDLED:
        return (
            "if this network has its own authority, name its certificate file in SSL_CERT_FILE, or add it to this "
            "machine's certificates (Debian: as a .crt file in /usr/local/share/ca-certificates, then "
            "update-ca-certificates). Then run the same command again"
        )
    return (
        "if this network has its own authority, add its certificate to the list of that Java "
        f"(`{java.home}/bin/keytool -importcert -cacerts -alias our-network -file AUTHORITY.crt`), "
        "then run the same command again"
    )


def _must_match(jar: Jar, found: Path) -> None:
    if not found.exists():
        raise UnreachableError(
            "the jar was not downloaded",
            where=jar.file_name,
            next_step="run the command again",
            code=Code.DOWNLOAD_FAILED,
        )
    actual = _sha256(found)
    if actual != jar.sha256:
        raise PartFailedError(
            f"the downloaded file has SHA-256 {actual}, but the lock names {jar.sha256}; it was not kept",
            where=jar.file_name,
            next_step="download from another network before you trust either: something between this machine and the "
            "repository changes files, or the lock is wrong",
            code=Code.DOWNLOAD_FAILED,
        )


def _is_whole(jar: Jar, folder: Path) -> bool:
    path = jar.path_in(folder)
    return path.exists() and _sha256(path) == jar.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _lock_file(jar_set: str) -> Path:
    return Path(__file__).with_name(f"{jar_set}.lock")


def _settings(cache: Path, *, poms: bool) -> str:
    """Ivy's settings: its built-in public repository, a cache of our own; without POMs where the lock knows it all."""
    silent = SILENT_SECONDS * 1000
    resolver = f'<ibiblio name="public" m2compatible="true" usepoms="{str(poms).lower()}" timeoutConstraint="silent"/>'
    return (
        '<ivysettings><settings defaultResolver="public"/><timeout-constraints>'
        f'<timeout-constraint name="silent" connectionTimeout="{silent}" readTimeout="{silent}"/>'
        "</timeout-constraints>"
        f"<caches defaultCacheDir={quoteattr(str(cache))}/>"
        f"<resolvers>{resolver}</resolvers>"
        "</ivysettings>"
    )


def _module(jars: Sequence[Jar], *, transitive: bool) -> str:
    lines = [
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
        '<info organisation="millrace" module="parts"/><configurations><conf name="default"/></configurations>',
        "<dependencies>",
    ]
    for jar in jars:
        which = f"org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)}"
        if transitive:
            lines.append(f'<dependency {which} conf="default->default(compile),runtime"/>')
            continue
        classifier = f" m:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
        artifact = f'<artifact name={quoteattr(jar.name)} type="jar" ext="jar"{classifier}/>'
        lines.append(f'<dependency {which} transitive="false" conf="default->*">{artifact}</dependency>')
    return "\n".join([*lines, "</dependencies></ivy-module>"])


def _ivy_class_path() -> str:
    found = find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise PartFailedError(
            "pyspark is not installed", where="pyspark", next_step="run `./millrace up`", code=Code.MISSING_PROGRAM
        )
    jars = Path(next(iter(found.submodule_search_locations))) / "jars"
    return os.pathsep.join(str(path) for name in ("ivy-", "commons-cli-") for path in jars.glob(f"{name}*.jar"))


def _proxy_options() -> list[str]:
    """Java does not read HTTPS_PROXY, so say it in Java's words. A proxy with a password is not supported here."""
    from urllib.parse import urlsplit

    proxy = urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or "")
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


@contextmanager
def _one_at_a_time(lock: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Two checkouts may start at the same time: the second waits for the first one's download."""
    with lock.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting for another checkout to download the same jars")
            fcntl.flock(stream, fcntl.LOCK_EX)
        for leftover in lock.parent.glob("fetch-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        yield
