"""The form that redrives quarantine: its DAG and its first task."""
