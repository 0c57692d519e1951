"""`millrace spec`, as called: what is printed, exit codes, and that a new pipeline is sound at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from millrace import declarations
from millrace.cli import main
from millrace.domain.declaration.pipeline import ValueSchema
from millrace.runtime.formats.json.decoder import Decoder
from support.declarations import PRODUCTION, RETURNS, SHOP, replace_once, valid_project
from support.waiting import Deadline

NOT_HERE = "connection millrace_kafka is not defined here: its security settings were not checked\n"
REPOSITORY = Path(__file__).parents[4]


@dataclass(frozen=True)
class Done:
    """The exit code and the output of one call of the command line."""

    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., Done]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return valid_project(tmp_path)


@pytest.fixture
def call(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`millrace spec` in this process: a new one imports for most of a second what this one has."""
    monkeypatch.setenv("MILLRACE_ROOT", str(root))
    monkeypatch.chdir(root)
    monkeypatch.setattr(main, "_log_to_stderr", lambda: None)  # would outlive the test

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["millrace", "spec", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main.main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return call


def _call_in_its_own_process(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millrace.cli.main", "spec", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={"PYTHONPATH": str(REPOSITORY / "include"), "PATH": "/usr/bin:/bin", "MILLRACE_ROOT": str(root)},
        timeout=Deadline.COMMAND.seconds,
    )


def test_check_of_a_sound_project_ends_with_0(root: Path) -> None:
    done = _call_in_its_own_process(root, "check")

    assert (done.returncode, done.stdout) == (0, f"{NOT_HERE}2 pipelines: no errors, no warnings\n")


def test_check_prints_every_finding_and_ends_with_1(root: Path, call: Call) -> None:
    replace_once(root / SHOP, "owner: commerce-data", "ownr: commerce-data")
    replace_once(root / RETURNS, "table: returns.items", "table: items")

    done = call("check")

    assert done.returncode == 1
    assert f"{SHOP}:2: ownr: `ownr` is not a field here\n  next: did you mean `owner`?\n" in done.stdout
    assert f"{RETURNS}:11: streams.items.writes.postgres.table: `items` is not" in done.stdout
    assert done.stdout.endswith("2 pipelines: 3 errors, no warnings\n")


def test_check_as_json_is_one_document(root: Path, call: Call) -> None:
    replace_once(root / SHOP, "partitions: 4\n    replication", "partitions: 1\n    replication")

    done = call("check", "--json")

    document = json.loads(done.stdout)
    assert (done.returncode, document["schema"], document["pipelines"]) == (
        0,
        "millrace.spec.check/1",
        ["returns", "shop"],
    )
    (warning,) = document["findings"]
    assert (warning["severity"], warning["file"], warning["line"]) == ("warning", SHOP, 7)


def test_show_tells_where_each_value_comes_from(call: Call) -> None:
    done = call("show", "shop", "--environment", "production", "--json")

    values = {each["field"]: each for each in json.loads(done.stdout)["values"]}
    assert values["topics.shop.purchases.partitions"] == {
        "field": "topics.shop.purchases.partitions",
        "value": "12",
        "origin": "environment",
        "file": PRODUCTION,
        "line": 5,
    }
    assert (values["streams.purchases.trigger"]["value"], values["streams.purchases.trigger"]["line"]) == ("2s", 31)
    assert values["streams.customers.trigger"]["origin"] == "default"
    assert values["streams.purchases.resources.memory"]["value"] == "2GiB"
    assert values["streams.customers.reads"]["line"] == 40


def test_show_tells_how_a_topic_is_backed_up(root: Path, call: Call) -> None:
    replace_once(root / SHOP, "    cleanup: delete\n", "    cleanup: delete\n    backup: {every: 60s, keep: 10y}\n")

    shown = json.loads(call("show", "shop", "--environment", "production", "--json").stdout)["values"]

    about = {each["field"].rpartition(".")[2]: each for each in shown if ".backup." in each["field"]}
    assert {name: (each["value"], each["origin"]) for name, each in about.items()} == {
        "every": ("1m", "declaration"),
        "max_lag": ("10m", "default"),
        "keep": ("10y", "declaration"),
    }


def test_the_json_schema_takes_a_backup_and_no_wrong_one(root: Path, call: Call) -> None:
    checker = Draft202012Validator(json.loads(call("schema").stdout))
    document = YAML(typ="safe", pure=True).load((root / SHOP).read_text(encoding="utf-8"))
    topic = document["topics"]["shop.purchases"]

    for written, wrong in (
        ({}, 0),
        ({"every": "60s", "max_lag": "10m", "keep": "10y"}, 0),
        ({"keep": "unlimited"}, 0),
        ({"keep": "ten years"}, 1),
        ({"each": "60s"}, 1),
    ):
        topic["backup"] = written
        assert len(list(checker.iter_errors(document))) == wrong, written


def test_show_tells_what_a_record_without_a_value_is(root: Path, call: Call) -> None:
    replace_once(root / SHOP, "    value:\n", "    value:\n      tombstones: delete\n")

    shown = json.loads(call("show", "shop", "--environment", "production", "--json").stdout)["values"]

    about = {each["field"]: each for each in shown if each["field"].endswith(".tombstones")}
    assert {name: (each["value"], each["origin"], each["line"]) for name, each in about.items()} == {
        "topics.shop.purchases.value.tombstones": ("quarantine", "default", None),
        "topics.shop.customers.value.tombstones": ("delete", "declaration", 19),
    }


def test_the_json_schema_takes_tombstones_and_no_wrong_ones(root: Path, call: Call) -> None:
    checker = Draft202012Validator(json.loads(call("schema").stdout))
    document = YAML(typ="safe", pure=True).load((root / SHOP).read_text(encoding="utf-8"))

    for written, wrong in (("delete", 0), ("quarantine", 0), ("ignore", 1), (True, 1)):
        document["topics"]["shop.customers"]["value"]["tombstones"] = written
        assert len(list(checker.iter_errors(document))) == wrong, written


def test_show_tells_what_is_expected_of_a_topic(root: Path, call: Call) -> None:
    expected = "{rate: 500/s, record: 250B, growth: 5%/month}"
    replace_once(root / SHOP, "    cleanup: delete\n", f"    cleanup: delete\n    expect: {expected}\n")

    shown = json.loads(call("show", "shop", "--environment", "production", "--json").stdout)["values"]

    about = {each["field"].rpartition(".")[2]: each for each in shown if ".expect." in each["field"]}
    assert {name: (each["value"], each["line"]) for name, each in about.items()} == {
        "rate": ("500/s", 11),
        "record": ("250B", 11),
        "growth": ("5%/month", 11),
    }


def test_the_json_schema_takes_an_expectation_and_no_wrong_one(root: Path, call: Call) -> None:
    checker = Draft202012Validator(json.loads(call("schema").stdout))
    document = YAML(typ="safe", pure=True).load((root / SHOP).read_text(encoding="utf-8"))
    topic = document["topics"]["shop.purchases"]

    for written, wrong in (
        ({"rate": "500/s", "record": "250B", "growth": "-0.5%/month"}, 0),
        ({"growth": "5%/year"}, 0),
        ({}, 1),
        ({"rate": 500}, 1),
        ({"rate": "500/sec"}, 1),
        ({"growth": "5%"}, 1),
    ):
        topic["expect"] = written
        assert len(list(checker.iter_errors(document))) == wrong, written


def test_show_tells_the_key_of_a_sink_that_upserts_and_of_no_other(root: Path, call: Call) -> None:
    replace_once(root / SHOP, "table: shop.customers}", "table: shop.customers, mode: upsert, key: [id, name]}")

    shown = json.loads(call("show", "shop", "--json").stdout)["values"]

    about = {each["field"]: (each["value"], each["line"]) for each in shown if each["field"].endswith("postgres.key")}
    assert about == {"streams.customers.writes.postgres.key": ("id, name", 41)}


def test_the_json_schema_takes_the_key_of_a_sink_and_no_wrong_one(root: Path, call: Call) -> None:
    checker = Draft202012Validator(json.loads(call("schema").stdout))
    document = YAML(typ="safe", pure=True).load((root / SHOP).read_text(encoding="utf-8"))
    sink = document["streams"]["customers"]["writes"]["postgres"]
    sink["mode"] = "upsert"

    for written, wrong in (
        (["id"], 0),
        ([f"c{number}" for number in range(16)], 0),
        ([f"c{number}" for number in range(17)], 1),
        ([], 1),
        (["id", "id"], 1),
        (["_offset"], 1),
        ("id", 1),
    ):
        sink["key"] = written
        assert len(list(checker.iter_errors(document))) == wrong, written


def test_show_of_no_pipeline_is_a_usage_error(call: Call) -> None:
    done = call("show", "shopp")

    assert done.returncode == 2
    assert done.stderr.endswith("pipeline `shopp` does not exist [unknown-name]\n  next: did you mean `shop`?\n")


def test_the_json_schema_accepts_what_is_sound_and_refuses_unknown_fields(root: Path, call: Call) -> None:
    checker = Draft202012Validator(json.loads(call("schema").stdout))
    of_environment = Draft202012Validator(json.loads(call("schema", "--of-environment").stdout))
    load = YAML(typ="safe", pure=True).load

    for file, validator in ((SHOP, checker), (RETURNS, checker), (PRODUCTION, of_environment)):
        document = load((root / file).read_text(encoding="utf-8"))
        assert list(validator.iter_errors(document)) == []
        assert len(list(validator.iter_errors({**document, "unknown": 1}))) == 1


def test_a_new_pipeline_is_sound_at_once(root: Path, call: Call) -> None:
    done = call("new", "orders", "--owner", 'the "orders" team')

    assert done.returncode == 0, done.stderr
    assert declarations.check(root, "embedded") == ()
    orders = declarations.load_pipeline(root, "orders")
    assert orders.owner == 'the "orders" team'
    assert (
        (root / "dags/orders.py")
        .read_text(encoding="utf-8")
        .endswith('from millrace.airflow.pipeline import pipeline_dags\n\nglobals().update(pipeline_dags("orders"))\n')
    )
    for file in root.rglob("*.py"):
        compile(file.read_text(encoding="utf-8"), str(file), "exec")


def test_the_sample_records_of_a_new_pipeline_fit_its_schema(root: Path, call: Call) -> None:
    call("new", "orders")
    located = spec_from_file_location("orders_sample", root / "sources/orders_sample.py")
    assert located is not None
    assert located.loader is not None
    program = module_from_spec(located)
    located.loader.exec_module(program)
    records = list(program.records())
    value = declarations.load_pipeline(root, "orders").topic("orders.events").value
    assert isinstance(value, ValueSchema)

    decoded = Decoder(value, key_required=True).decode(
        [each.value for each in records],
        [each.key for each in records],
        [each.timestamp_milliseconds for each in records],
    )

    assert len(records) == 1000
    assert [error for error in decoded.errors if error] == []


def test_a_new_pipeline_may_read_a_topic_that_is_there(root: Path, call: Call) -> None:
    done = call("new", "audit", "--reads", "shop.purchases")

    assert done.returncode == 0, done.stderr
    audit = declarations.load_pipeline(root, "audit")
    assert [topic.name for topic in audit.references] == ["shop.purchases"]
    assert not (root / "sources/audit_sample.py").exists()
    assert len((root / "include/pipelines/audit.yaml").read_text(encoding="utf-8").splitlines()) <= 10


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        pytest.param(["Shop"], 2, id="no name"),
        pytest.param(["millrace"], 2, id="reserved name"),
        pytest.param(["shop"], 4, id="exists"),
        pytest.param(["other", "--reads", "shop.purchase"], 2, id="undeclared topic"),
        pytest.param(["other", "--owner", " "], 2, id="no owner"),
    ],
)
def test_a_new_pipeline_that_cannot_be_changes_nothing(root: Path, call: Call, arguments: list[str], code: int) -> None:
    before = sorted(root.rglob("*"))

    done = call("new", *arguments)

    assert done.returncode == code
    assert "\n  next: " in done.stderr
    assert sorted(root.rglob("*")) == before


def test_what_the_guide_shows_is_sound(root: Path) -> None:
    guide = (REPOSITORY / "docs/guide/declaration.md").read_text(encoding="utf-8")
    shop, environment = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (root / SHOP).write_text(shop, encoding="utf-8")
    (root / PRODUCTION).write_text(environment, encoding="utf-8")

    assert declarations.check(root, "production") == ()
    assert declarations.load_pipeline(root, "shop", "production").topic("shop.purchases").partitions == 12


def test_the_example_of_this_repository_is_sound() -> None:
    assert declarations.check(REPOSITORY, "embedded") == ()
    shop = declarations.load_pipeline(REPOSITORY, "shop", "embedded")
    assert [topic.replication for topic in shop.topics] == [1]
    assert [str(column.sql_type) for column in shop.topic("shop.purchases").value.columns][-1] == "DECIMAL(12,2)"  # type: ignore[union-attr]
