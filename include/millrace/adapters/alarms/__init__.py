"""Alarms outside the control database: webhooks, and the files of the watchdog."""
