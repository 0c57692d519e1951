"""The DAG that checks retention."""
