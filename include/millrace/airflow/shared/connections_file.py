"""Where the embedded Airflow finds its Connections: in the private file that the CLI reads too.

A file and not variables: a task's environment is its component's, and all that a task starts would inherit them.
Airflow's own backend for local files would need a second file with the same passwords, in a form of its own.
"""

from __future__ import annotations

from pathlib import Path

from airflow.secrets.base_secrets import BaseSecretsBackend

from millrace.settings import read_environment_file, variable_name


class ConnectionsFile(BaseSecretsBackend):
    """Airflow Connections from the `AIRFLOW_CONN_...` lines of a file, which is read anew at each look.

    Args:
        path: the file, `.millrace/env`.
        hidden: the one Connection in it that Airflow must not know.
    """

    def __init__(self, path: str, hidden: str = "") -> None:
        super().__init__()
        self._path = Path(path)
        self._hidden = hidden

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        """The Connection in Airflow's JSON form; None where the file has none of this name."""
        if conn_id == self._hidden:
            return None
        return read_environment_file(self._path).get(variable_name(conn_id))

    def get_variable(self, key: str, team_name: str | None = None) -> str | None:
        """None: the file holds no Airflow variables."""
        return None
