"""The DAGs of pipeline activity."""

from millrace.airflow.factory import pipeline_dags

globals().update(pipeline_dags("activity"))
