"""Operators and triggers that notify people of alarms."""
