"""Versions of the control database, one migration each."""
