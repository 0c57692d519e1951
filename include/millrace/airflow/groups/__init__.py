"""DAGs, operators and triggers that look at consumer groups."""
