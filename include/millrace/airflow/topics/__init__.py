"""Operators that provision topics and load sources."""
