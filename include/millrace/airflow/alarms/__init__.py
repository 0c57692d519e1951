"""The DAG, operators and triggers that notify people of alarms."""
