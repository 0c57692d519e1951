"""The Compose file is what the embedded stack is, and carries no secret; who gets which secret is told by it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from millrace.adapters.apps.processes import NAMESPACE_FILE, mark_namespace
from millrace.cli.main import build
from millrace.embedded import environment
from millrace.embedded.compose import file as compose
from millrace.embedded.compose import images
from millrace.embedded.compose import secrets as compose_secrets
from millrace.embedded.credentials import Credentials
from millrace.embedded.layout import Layout
from millrace.embedded.ports import NAMES
from millrace.embedded.servers import kafka
from millrace.embedded.servers.airflow import Airflow
from millrace.embedded.servers.part import Site
from millrace.embedded.servers.postgres import DATABASES, SETTINGS
from millrace.errors import RefusedError, UsageError
from millrace.settings import STATE_FOLDER, Connection, Settings, read_environment_file
from millrace.wiring import open_platform
from support.stack.embedded import CHECKOUT

WHO_GETS = {
    "kafka": set(),
    "postgres": {"postgres-password"},
    "s3": {"s3proxy.properties"},
    "setup": {"credentials.json", "connections-owner"},
    "airflow-api-server": {"airflow.cfg", "airflow-passwords.json", "connections-look"},
    "airflow-dag-processor": {"airflow.cfg"},
    "streams": {"airflow.cfg", "connections"},
    "example": {"airflow-passwords.json", "connections-look"},
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load(compose.compose_file())
    return loaded


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of a test, which the command line takes for the one it is in."""
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    return tmp_path


def secret_words(credentials: Credentials) -> list[str]:
    databases, users = credentials.database_passwords, credentials.airflow_passwords
    keys = (credentials.airflow_jwt_secret, credentials.airflow_fernet_key, credentials.airflow_api_key)
    return [*databases.values(), *users.values(), *keys, credentials.s3_key, credentials.s3_secret]


@pytest.mark.parametrize("name", compose.generated_files())
def test_the_committed_files_are_what_the_command_writes(name: str) -> None:
    assert (CHECKOUT / name).read_text(encoding="utf-8") == compose.generated_files()[name], "run `./millrace compose`"


def test_it_is_the_same_text_each_time_though_keys_are_made_anew() -> None:
    assert compose.generated_files() == compose.generated_files()


def test_airflow_has_the_embedded_one_s_variables_with_other_places(document: dict[str, Any], tmp_path: Path) -> None:
    ports = {name: 20000 + number for number, name in enumerate(NAMES)}
    embedded = Airflow().configuration(Site(Layout(tmp_path), ports, Credentials.make()))
    for name in ("airflow-api-server", "airflow-dag-processor", "streams", "setup"):
        given = document["services"][name]["environment"]
        assert set(given) == {*embedded, "NO_PROXY", "no_proxy", "MILLRACE_ENVIRONMENT"}
        different = {variable for variable in embedded if embedded[variable] != given[variable]}
        places = {"HOME", "FOLDER", "FILE", "KWARGS", "URL", "HOST", "PORT"}
        assert {variable.rpartition("_")[2] for variable in different} <= places, different


def test_every_container_that_reads_declarations_is_told_the_environment_s_name(document: dict[str, Any]) -> None:
    ours = {name: service for name, service in document["services"].items() if "PROJECT_NAME" in service["image"]}
    told = {name for name, service in ours.items() if "MILLRACE_ENVIRONMENT" in service.get("environment", {})}
    assert told == set(ours) - {"s3"}


def test_servers_have_the_embedded_ones_settings_with_other_places(document: dict[str, Any], tmp_path: Path) -> None:
    ports = {name: 20000 + number for number, name in enumerate(NAMES)}
    embedded = kafka.properties(Site(Layout(tmp_path), ports, Credentials.make()), tmp_path)
    content = document["configs"]["kafka-server"]["content"]
    mine, theirs = (dict(line.split("=", 1) for line in text.splitlines()) for text in (embedded, content))
    places = {"controller.quorum.voters", "listeners", "advertised.listeners", "log.dirs"}
    assert {name: value for name, value in mine.items() if name not in places} == {
        name: value for name, value in theirs.items() if name not in places
    }
    assert set(mine) == set(theirs)
    command = document["services"]["postgres"]["command"]
    assert {*command[2::2]} == {f"{name}={value}" for name, value in SETTINGS.items() if "listen" not in name and value}


def test_each_service_gets_the_secrets_it_works_with_and_no_other(document: dict[str, Any]) -> None:
    given = {
        name: {secret if isinstance(secret, str) else secret["source"] for secret in service.get("secrets", [])}
        for name, service in document["services"].items()
    }
    assert given == WHO_GETS
    assert set(document["secrets"]) == set().union(*WHO_GETS.values())


def test_no_secret_stands_in_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Credentials.make()
    monkeypatch.setattr(compose.Credentials, "make", lambda: made)  # whatever it writes, it writes of these
    words = secret_words(made)
    assert len(words) == 14
    texts = compose_secrets.texts(made)
    assert [word for word in words if not any(word in text for text in texts.values())] == []
    for name, text in compose.generated_files().items():
        assert [word for word in words if word in text] == [], name


def test_secrets_are_closed_to_this_machine_s_users_and_open_to_a_container_s(project: Path) -> None:
    folder, new = compose_secrets.write(project)
    assert new
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o444}
    assert {path.name for path in folder.iterdir()} == {secret.name for secret in compose_secrets.ALL}
    assert STATE_FOLDER not in folder.parts  # `down --wipe` must not take what volumes were made with


def test_passwords_stay_what_they_are_and_a_lost_file_is_made_again_of_them(project: Path) -> None:
    folder, _ = compose_secrets.write(project)
    before = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    (folder / "connections").unlink()
    (folder / "airflow.cfg").chmod(0o600)  # a former try was ended here
    _, new = compose_secrets.write(project)
    assert not new
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o444}


def test_only_the_set_up_knows_the_owner_and_only_the_streams_container_may_start_one(project: Path) -> None:
    folder, _ = compose_secrets.write(project)
    known = {
        name: read_environment_file(folder / name) for name in ("connections", "connections-owner", "connections-look")
    }
    owner = environment.OWNER_ONLY
    assert [name for name, variables in known.items() if owner in variables] == ["connections-owner"]
    spark = environment.variable_name("millrace_spark")
    hosts = {name: Connection.parse("millrace_spark", variables[spark]).host for name, variables in known.items()}
    assert hosts == {"connections": "local", "connections-owner": "local", "connections-look": "streams"}
    assert read_environment_file(folder / "connections")[environment.JAVA_VARIABLE] == str(images.JAVA_HOME)


def test_the_connections_lead_to_the_services_and_each_role_to_its_database(
    project: Path, document: dict[str, Any]
) -> None:
    folder, _ = compose_secrets.write(project)
    variables = read_environment_file(folder / "connections-owner")
    settings = Settings(project, lambda name: variables.get(environment.variable_name(name)))
    assert settings.kafka().bootstrap_servers == "kafka:9092"
    assert settings.s3().endpoint_url == "http://s3:9000"
    reached = {name: settings.postgres(f"millrace_{name}") for name in ("control", "control_owner", "sink")}
    assert {each.host for each in reached.values()} == {"postgres"}
    assert {each.database for each in reached.values()} <= set(DATABASES)
    assert {"kafka", "s3", "postgres"} <= set(document["services"])
    for name in ("connections", "connections-look"):  # a backup writes to the archive, the example proves it
        theirs = read_environment_file(folder / name)
        store = Settings(project, lambda name, theirs=theirs: theirs.get(environment.variable_name(name))).s3()
        assert (store.endpoint_url, store.bucket) == (settings.s3().endpoint_url, settings.s3().bucket)
    looking = read_environment_file(folder / "connections-look")
    elsewhere = open_platform(Settings(project, lambda name: looking.get(environment.variable_name(name))))
    with pytest.raises(UsageError, match="a Spark at `streams` is not supported yet"):
        elsewhere.apps.runner()


def test_what_a_driver_said_is_read_also_where_no_stream_may_be_started(project: Path) -> None:
    spark = json.dumps({"conn_type": "spark", "host": compose_secrets.ELSEWHERE})
    looking = open_platform(Settings(project, {"millrace_spark": spark}.get))
    log = project / STATE_FOLDER / "streams" / "shop.purchases" / "7" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n", encoding="utf-8")
    assert looking.apps.last_lines("shop.purchases", 7, 1) == ["two"]
    with pytest.raises(UsageError):
        looking.apps.runner()  # also once that was read


def test_who_is_in_another_process_namespace_is_refused_the_runner(project: Path) -> None:
    (project / STATE_FOLDER).mkdir()
    here = open_platform(Settings(project, lambda _name: None))
    here.apps.runner()  # an embedded stack notes nothing
    mark_namespace(project)
    here.apps.runner()
    file = project / NAMESPACE_FILE
    file.write_text(file.read_text(encoding="utf-8").replace("pid:[", "pid:[9"), encoding="utf-8")
    for opened in (here.apps.runner, here.apps.recomputation):
        with pytest.raises(RefusedError, match="another container"):
            opened()


def test_nothing_but_the_project_goes_into_an_image() -> None:
    lines = [line for line in images.dockerignore().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert not sent & {STATE_FOLDER, ".venv", "docker", "."}
    for text in (images.airflow_dockerfile(), images.spark_dockerfile()):
        copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
        assert {name.split("/")[0] for names in copied for name in names} <= sent
        assert text.endswith(f"USER {images.USER}\n")


def test_each_image_is_built_once_by_the_first_service_that_uses_it(document: dict[str, Any]) -> None:
    ours = {name: service for name, service in document["services"].items() if "PROJECT_NAME" in service["image"]}
    assert {name for name, service in ours.items() if "build" in service} == {"setup", "s3"}
    assert {service["image"] for name, service in ours.items() if name in ("setup", "s3")} == {
        service["image"] for service in ours.values()
    }
    assert all(("build" in service) != (service.get("pull_policy") == "never") for service in ours.values())


def test_a_broker_s_container_is_made_anew_when_its_properties_change(
    document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "KAFKA_DATA", Path("/elsewhere"))
    changed = YAML(typ="safe").load(compose.compose_file())
    assert changed["services"]["kafka"]["labels"] != document["services"]["kafka"]["labels"]


@pytest.mark.parametrize("name", ["streams", "example"])
def test_who_runs_apps_and_who_judges_them_start_once_their_servers_answer(document: dict[str, Any], name: str) -> None:
    waited = {after: how["condition"] for after, how in document["services"][name]["depends_on"].items()}
    assert {waited[server] for server in ("kafka", "s3")} == {"service_healthy"}


def test_what_stays_up_keeps_a_bounded_log(document: dict[str, Any]) -> None:
    lasting = {name for name, service in document["services"].items() if service["restart"] != "no"}
    assert {
        name for name, service in document["services"].items() if "max-size" in str(service.get("logging"))
    } == lasting


def test_the_two_images_begin_with_the_same_steps() -> None:
    airflow, spark = images.airflow_dockerfile().splitlines(), images.spark_dockerfile().splitlines()
    installs = next(number for number, line in enumerate(airflow) if "./millrace run" in line)
    assert airflow[: installs + 1] == spark[: installs + 1]


def test_the_command_writes_once_and_checks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ROOT", str(project))

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        answer = CliRunner().invoke(build(["compose"]), ["compose", *options, "--json"])
        return answer.exit_code, json.loads(answer.stdout)

    code, said = run("--check")
    assert (code, said["fine"]) == (1, False)
    assert not (project / compose.FILE).exists()
    code, said = run()
    assert code == 0
    assert said["files"] == dict.fromkeys(compose.generated_files(), "written") | {"docker/secrets/": "passwords made"}
    assert run("--check")[0] == 0
    (project / compose.FILE).write_text("services: {}\n", encoding="utf-8")
    assert run("--check")[0] == 1
    assert run()[1]["files"][compose.FILE] == "written"
    assert (project / compose.FILE).read_text(encoding="utf-8") == compose.compose_file()
