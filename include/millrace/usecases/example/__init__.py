"""The example that `millrace up` runs and reports."""
