"""`millrace topics` and `millrace sources`."""
