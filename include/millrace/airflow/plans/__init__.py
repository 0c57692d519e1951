"""Forms and tasks of plans."""
