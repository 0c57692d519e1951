"""Apps: their processes, environment, code and status."""
