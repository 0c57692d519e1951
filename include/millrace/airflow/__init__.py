"""Everything Airflow: DAGs made from declarations, their operators and triggers. The only room that imports airflow."""
