"""The app that keeps a pipeline's backup: every record of its topics copied to the archive."""
