"""The Connections that `doctor` looks at: the usual ones, and those that declarations name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.embedded import doctor
from support.declarations import SHOP, example_project, replace_once

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
REFUSED = "Spark cannot connect with the keys of this Connection: SASL OAUTHBEARER"


def project(folder: Path, *, streams: bool = True) -> Path:
    root = example_project(folder, backup=streams, streams=streams)
    replace_once(root / SHOP, "kafka: millrace_kafka\n", "kafka: lake_kafka\n")
    return root


def set_connection(monkeypatch: pytest.MonkeyPatch, name: str, kind: str, **extra: object) -> None:
    text = json.dumps({"conn_type": kind, "host": "127.0.0.1", "port": 1, "login": "u", "extra": extra})
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", text)


def checks_of(root: Path) -> dict[str, doctor.Check]:
    """Every check by its name, of which there is one each."""
    found = doctor.examine(root)
    names = [check.name for check in found if check.name != "disk"]
    assert len(names) == len(set(names))
    return {check.name: check for check in found}


def test_each_connection_that_a_declaration_names_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = project(tmp_path)
    replace_once(root / SHOP, "connection: millrace_sink,", "connection: lake_sink,")
    set_connection(monkeypatch, "lake_kafka", "kafka", **{"bootstrap.servers": "127.0.0.1:1", **SASL})
    set_connection(monkeypatch, "lake_sink", "postgres", sslkey="/not there/key.pem")
    found = checks_of(root)
    assert found["lake_kafka"].found.startswith(REFUSED)
    assert found["lake_sink"].found.startswith("sslkey names /not there/key.pem, which cannot be read")
    assert found["millrace_kafka"].origin == "nowhere"
    assert "declarations" not in found


def test_a_cluster_without_streams_need_not_serve_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_connection(monkeypatch, "lake_kafka", "kafka", **{"bootstrap.servers": "127.0.0.1:1", **SASL})
    found = checks_of(project(tmp_path, streams=False))["lake_kafka"]
    assert not found.fine  # nobody answers there
    assert "Spark" not in found.found


@pytest.mark.parametrize("broken", [SHOP, "include/environments/embedded.yaml"])
def test_a_broken_declaration_is_named_and_stops_no_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setenv("MILLRACE_ENVIRONMENT", "embedded")
    root = project(tmp_path)
    (root / broken).write_text("a: [\n")
    found = checks_of(root)
    assert not found["declarations"].fine
    assert "run `millrace spec check`" in found["declarations"].found
    assert set(doctor.CONNECTIONS) <= set(found)
