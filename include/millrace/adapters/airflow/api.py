"""Airflow through its REST API: trigger a DAG, watch its run, and say where to look when it failed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from millrace.errors import Code, PartFailedError, UnreachableError

ADMIN = "admin"
_CALL_SECONDS = 30.0
_POLL_SECONDS = 0.5
_ENDED = ("success", "failed")
_BAD_TASKS = ("failed", "upstream_failed")


@dataclass(frozen=True, slots=True)
class AirflowAddress:
    """Where Airflow answers, as whom to log in, and where a person finds the password."""

    url: str
    user: str
    password: str = field(repr=False)
    password_file: Path
    logs_folder: Path


def embedded_address(state_folder: Path, url: str) -> AirflowAddress:
    """The embedded Airflow at this address, as its user `admin`.

    Args:
        state_folder: the project's `.millrace`.
        url: where the API server answers.

    Raises:
        UnreachableError: its passwords are not there, so it was never started.
    """
    home = state_folder / "airflow"
    password_file = home / "passwords.json"
    try:
        password = str(json.loads(password_file.read_text(encoding="utf-8"))[ADMIN])
    except (OSError, ValueError, KeyError) as error:
        raise UnreachableError(
            f"the password of user {ADMIN} cannot be read: {type(error).__name__}",
            where=str(password_file),
            next_step="start the stack: `./millrace up`",
            code=Code.AIRFLOW_UNREACHABLE,
        ) from error
    return AirflowAddress(url.rstrip("/"), ADMIN, password, password_file, home / "logs")


class AirflowApi:
    """A session with Airflow's REST API.

    Args:
        address: where Airflow is and as whom to log in.
    """

    def __init__(self, address: AirflowAddress) -> None:
        self.address = address
        # the embedded Airflow is on this machine: a proxy of the user's would only be in the way
        self._client = httpx.Client(base_url=address.url, timeout=_CALL_SECONDS, trust_env=False)
        self._token = ""

    def run(
        self,
        dag_id: str,
        conf: Mapping[str, str],
        *,
        within_seconds: float,
        progress: Callable[[str], None],
    ) -> str:
        """Trigger a DAG, wait until its run has succeeded, and return the run's id.

        Raises:
            PartFailedError: Airflow cannot read the DAG, the run failed, or it did not end in time.
            UnreachableError: Airflow does not answer.
        """
        deadline = time.monotonic() + within_seconds
        self._wait_for_dag(dag_id, deadline, progress)
        body = {"logical_date": None, "conf": dict(conf)}
        run_id = str(self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])
        state = ""
        while state not in _ENDED:
            state = str(self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}")["state"])
            progress(state)
            if state not in _ENDED and time.monotonic() > deadline:
                raise PartFailedError(
                    f"run {run_id} of DAG {dag_id} is still {state} after {within_seconds:.0f} s",
                    where=self.link(dag_id, run_id),
                    next_step=f"open this run, and read the scheduler's log in {self.address.logs_folder}",
                    code=Code.AIRFLOW_FAILED,
                )
            if state not in _ENDED:
                time.sleep(_POLL_SECONDS)
        if state == "failed":
            raise PartFailedError(
                f"run {run_id} of DAG {dag_id} failed: {self._failed_tasks(dag_id, run_id)}",
                where=self.link(dag_id, run_id),
                next_step=f"read the task's log: {self._log_folder(dag_id, run_id)}",
                code=Code.AIRFLOW_FAILED,
            )
        return run_id

    def latest_states(self, prefix: str) -> dict[str, str]:
        """The state of the latest run of every DAG whose id begins with `prefix`; `no run` where there is none."""
        dags = self._call("GET", f"/api/v2/dags?limit=100&dag_id_pattern={quote(prefix)}%25")["dags"]
        states = {}
        for dag_id in sorted(str(dag["dag_id"]) for dag in dags):
            latest = self.latest_run(dag_id)
            states[dag_id] = latest[1] if latest else "no run"
        return states

    def latest_run(self, dag_id: str) -> tuple[str, str] | None:
        """Id and state of the DAG's latest run."""
        runs = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=1&order_by=-run_after")["dag_runs"]
        return (str(runs[0]["dag_run_id"]), str(runs[0]["state"])) if runs else None

    def link(self, dag_id: str, run_id: str = "") -> str:
        """Where a person sees the DAG, or one run of it."""
        page = f"{self.address.url}/dags/{dag_id}"
        return f"{page}/runs/{quote(run_id)}" if run_id else page

    def _wait_for_dag(self, dag_id: str, deadline: float, progress: Callable[[str], None]) -> None:
        """Wait until Airflow has read the DAG's file."""
        while not self._knows(dag_id):
            progress("waiting for Airflow to read the DAG")
            errors = self._call("GET", "/api/v2/importErrors?limit=100")["import_errors"]
            pipeline = dag_id.partition(".")[0]
            for error in errors:
                if Path(str(error["filename"])).stem == pipeline:
                    last_line = str(error["stack_trace"]).strip().splitlines()[-1]
                    raise PartFailedError(
                        f"Airflow cannot import the file of DAG {dag_id}: {last_line}",
                        where=str(error["filename"]),
                        next_step=f"read the import errors at {self.address.url}/dags, or run `./millrace spec check`",
                        code=Code.AIRFLOW_FAILED,
                    )
            if time.monotonic() > deadline:
                raise PartFailedError(
                    f"Airflow has not found DAG {dag_id}",
                    where=self.address.url,
                    next_step=f"read the DAG processor's log in {self.address.logs_folder}",
                    code=Code.AIRFLOW_FAILED,
                )
            time.sleep(_POLL_SECONDS)

    def _knows(self, dag_id: str) -> bool:
        """A DAG whose file was gone or broken is stale until Airflow has read it again; it cannot be triggered."""
        answer = self._response("GET", f"/api/v2/dags/{dag_id}", None)
        return answer.status_code == httpx.codes.OK and not answer.json().get("is_stale", False)

    def _failed_tasks(self, dag_id: str, run_id: str) -> str:
        tasks = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")["task_instances"]
        failed = [f"{task['task_id']} (try {task['try_number']})" for task in tasks if task["state"] in _BAD_TASKS]
        return "task " + ", ".join(failed) if failed else "no task of it failed"

    def _log_folder(self, dag_id: str, run_id: str) -> Path:
        return self.address.logs_folder / f"dag_id={dag_id}" / f"run_id={run_id}"

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        response = self._response(method, path, body)
        if response.is_success:
            return response.json()
        raise UnreachableError(
            f"Airflow answered {response.status_code} to {method} {path}: {response.text[:300]}",
            where=self.address.url,
            next_step=f"read the API server's log in {self.address.logs_folder}",
            code=Code.AIRFLOW_FAILED,
        )

    def _response(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            if not self._token:
                self._token = self._log_in()
            response = self._client.request(method, path, json=body, headers={"Authorization": f"Bearer {self._token}"})
            if response.status_code == httpx.codes.UNAUTHORIZED:  # the token has expired
                self._token = self._log_in()
                headers = {"Authorization": f"Bearer {self._token}"}
                response = self._client.request(method, path, json=body, headers=headers)
            return response
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"Airflow does not answer: {type(error).__name__}: {error}",
                where=self.address.url,
                next_step="check that Airflow runs: `./millrace status`",
                code=Code.AIRFLOW_UNREACHABLE,
            ) from error

    def _log_in(self) -> str:
        answer = self._client.post(
            "/auth/token", json={"username": self.address.user, "password": self.address.password}
        )
        if not answer.is_success:
            raise UnreachableError(
                f"Airflow refuses the login of user {self.address.user}: {answer.status_code}",
                where=self.address.url,
                next_step=f"check the password in {self.address.password_file}",
                code=Code.AIRFLOW_UNREACHABLE,
            )
        return str(answer.json()["access_token"])
