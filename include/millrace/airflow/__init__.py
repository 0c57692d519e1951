"""Everything Airflow: DAGs made from declarations, their operators and triggers. No other layer imports airflow."""
