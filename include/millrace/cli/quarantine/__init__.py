"""`millrace quarantine`."""
