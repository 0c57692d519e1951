"""Alarms: list, acknowledge and notify; the watchdog."""
