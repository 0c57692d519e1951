"""Checks of declarations against what this installation has."""
