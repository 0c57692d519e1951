"""Kafka: topics, logs, groups and reads of one cluster."""
