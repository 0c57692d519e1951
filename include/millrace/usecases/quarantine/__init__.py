"""Quarantine: list and redrive it."""
