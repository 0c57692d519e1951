"""Declarations as values: pipelines, sinks, and the Connections that they name."""
