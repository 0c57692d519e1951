"""DAGs and operators that provision topics and load sources."""
