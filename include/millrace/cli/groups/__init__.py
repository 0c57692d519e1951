"""`millrace groups`."""
