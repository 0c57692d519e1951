"""DAGs, operators and triggers that watch and operate streams."""
