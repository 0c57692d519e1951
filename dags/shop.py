"""The DAGs of pipeline shop."""

from millrace.airflow.factory import pipeline_dags

globals().update(pipeline_dags("shop"))
