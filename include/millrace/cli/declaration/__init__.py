"""`millrace spec`."""
