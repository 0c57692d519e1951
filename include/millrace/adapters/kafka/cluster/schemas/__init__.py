"""Layouts of Kafka's messages that kafka-python does not know."""
