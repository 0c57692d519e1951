"""The example, as `millrace up` runs and prints it."""
