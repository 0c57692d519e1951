"""The DAG that audits archives, and its operator."""
