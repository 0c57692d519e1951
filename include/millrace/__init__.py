"""Millrace: a hybrid batch and streaming platform for teams that run Kafka."""

__version__ = "0.1.0"
