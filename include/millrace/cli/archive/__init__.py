"""`millrace backup`."""
