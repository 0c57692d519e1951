"""The DAGs of pipeline customers."""

from millrace.airflow.pipeline import pipeline_dags

globals().update(pipeline_dags("customers"))
