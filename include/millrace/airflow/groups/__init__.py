"""Operators and triggers that look at consumer groups."""
