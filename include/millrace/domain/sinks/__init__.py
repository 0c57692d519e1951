"""Sinks: batches, the origin of records, and datasets."""
