"""`millrace alarms`."""
