"""Restores: records on their way back into a topic."""
