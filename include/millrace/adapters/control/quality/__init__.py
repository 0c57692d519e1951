"""Checks, books and marks in the control database."""
