"""Millrace in Airflow: pages about streams, and a link from each stream's tasks to its page."""

from millrace.airflow.shared.plugin import MillracePlugin

__all__ = ["MillracePlugin"]
