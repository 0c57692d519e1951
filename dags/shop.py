"""The DAGs of pipeline shop."""

from millrace.airflow.pipeline import pipeline_dags

globals().update(pipeline_dags("shop"))
