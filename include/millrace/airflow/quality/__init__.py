"""DAGs that check quality and reconcile books."""
