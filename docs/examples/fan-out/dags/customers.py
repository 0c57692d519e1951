"""The DAGs of pipeline customers."""

from millrace.airflow.factory import pipeline_dags

globals().update(pipeline_dags("customers"))
