"""Pages for operators, mounted into Airflow's API server. They show; what changes anything is Airflow's own REST."""
