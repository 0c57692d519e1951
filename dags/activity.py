"""The DAGs of pipeline activity."""

from millrace.airflow.pipeline import pipeline_dags

globals().update(pipeline_dags("activity"))
