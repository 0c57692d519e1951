"""Rules held against the rows of a sink by Great Expectations."""
