"""The DAG that checks retention, and its operator."""
