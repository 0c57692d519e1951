"""`millrace quality`."""
