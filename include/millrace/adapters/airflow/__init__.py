"""Airflow, through its REST API."""
