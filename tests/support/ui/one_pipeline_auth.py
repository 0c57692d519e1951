"""An auth manager with rights per DAG, which Airflow's simple one has not."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser


class OnePipelineAuthManager(SimpleAuthManager):
    """Who is named as a pipeline may read its DAGs and nothing else; everybody else is as in the simple one."""

    pipelines = ("garden",)

    def is_authorized_dag(
        self, *, method: Any, user: SimpleAuthManagerUser, access_entity: Any = None, details: Any = None
    ) -> bool:
        """Whether the DAG is one of the user's pipeline."""
        if user.username not in self.pipelines:
            return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        dag_id = getattr(details, "id", None)
        return method == "GET" and dag_id is not None and dag_id.startswith(f"{user.username}.")
