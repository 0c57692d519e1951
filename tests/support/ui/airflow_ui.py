"""The stack's Airflow as its users meet it: its REST API after a log-in, and the processes behind it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from millrace.embedded import ports
from millrace.embedded.processes import PartRecord
from support.checks.budget import Kind, spend
from support.waiting import Deadline, eventually

if TYPE_CHECKING:
    from millrace.embedded.stack import Stack

API = "/api/v2"


class AirflowUser:
    """A user of the stack's Airflow, logged in by password.

    Args:
        stack: the stack, with Airflow running.
        name: `admin`, `operator` or `viewer`.
    """

    def __init__(self, stack: Stack, name: str = "admin") -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{ports.read(stack.layout)['airflow']}"
        self.password = str(json.loads(stack.layout.airflow_passwords.read_text())[name])
        self._client = httpx.Client(base_url=self.url, timeout=Deadline.AIRFLOW.seconds, trust_env=False)
        answer = self._client.post("/auth/token", json={"username": name, "password": self.password})
        answer.raise_for_status()
        self._client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Any call, with its answer whatever that is."""
        return self._client.request(method, API + path, json=body)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A call that must succeed."""
        answer = self.request(method, path, body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def page(self, path: str) -> httpx.Response:
        """A page that is no part of the REST API, with its answer whatever that is."""
        return self._client.get(path)

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The runs of a DAG, newest first."""
        found: list[dict[str, Any]] = self.call("GET", f"/dags/{dag_id}/dagRuns?limit=100&order_by=-run_after")[
            "dag_runs"
        ]
        return found

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """One task of one run."""
        found: dict[str, Any] = self.call("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}")
        return found

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int | None = None) -> str:
        """A task's log as one text: that of its newest try, or of another."""
        return json.dumps(self._events(dag_id, run_id, task_id, attempt))

    def errors(self, dag_id: str, run_id: str, task_id: str) -> list[str]:
        """The lines of the log of a task's newest try that are errors."""
        events = self._events(dag_id, run_id, task_id)
        return [str(event["event"]) for event in events if event.get("level") == "error"]

    def _events(self, dag_id: str, run_id: str, task_id: str, attempt: int | None = None) -> list[dict[str, Any]]:
        if attempt is None:  # of a task that was queued when its scheduler died, Airflow knows no first try
            attempt = max(1, self.task(dag_id, run_id, task_id)["try_number"])
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}/logs/{attempt}?full_content=true"
        found: list[dict[str, Any]] = self.call("GET", path)["content"]
        return found

    def watching(self, dag_id: str, *, not_run: str = "") -> dict[str, Any] | None:
        """The task `running` of the present watch, once a living triggerer has it; None before that.

        Args:
            dag_id: a stream's DAG.
            not_run: a run that is over: only another one counts.
        """
        for run in self.runs(dag_id):
            if run["state"] == "running" and run["dag_run_id"] != not_run:
                task = self.task(dag_id, run["dag_run_id"], "running")
                return task if task["state"] == "deferred" and task["triggerer_job"] else None
        return None

    def run(self, dag_id: str, conf: Mapping[str, str]) -> dict[str, Any]:
        """Trigger a DAG and wait until the run has ended."""
        spend(Kind.DAG_RUNS)
        body = {"logical_date": None, "conf": dict(conf)}
        run_id = self.call("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"]
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id)}"

        def ended() -> dict[str, Any] | None:
            found: dict[str, Any] = self.call("GET", path)
            return found if found["state"] in ("success", "failed") else None

        found = eventually(ended, within=Deadline.AIRFLOW, what=f"the end of {dag_id} {run_id}")
        assert found
        return found

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has read the file of a DAG, also one that was away before."""

        def known() -> bool:
            answer = self.request("GET", f"/dags/{dag_id}")
            return answer.is_success and not answer.json()["is_stale"]

        eventually(known, within=Deadline.AIRFLOW, what=f"Airflow to read {dag_id}")


def leader_of(stack: Stack, program: str) -> int:
    """The process id of one of Airflow's components, by the stack's own record."""
    record = PartRecord.read(stack.layout, program)
    assert record
    assert record.leader.is_alive(), f"{program} does not run"
    return record.leader.pid


def kill_group(stack: Stack, program: str) -> int:
    """Kill -9 one of Airflow's components with its whole process group; the process id it had."""
    spend(Kind.SERVER_RESTARTS)
    pid = leader_of(stack, program)
    os.killpg(os.getpgid(pid), signal.SIGKILL)
    return pid


def put(path: Path, text: str) -> None:
    """Write a file of a project in one step: the DAG processor may be reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
