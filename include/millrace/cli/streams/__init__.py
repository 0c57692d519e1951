"""`millrace streams`."""
