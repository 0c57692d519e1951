"""The DAGs of the platform itself: supervision and alarms. They read no declaration."""

from millrace.airflow.platform import platform_dags

globals().update(platform_dags())
