"""Quarantine: rules that records break, and redrives of repaired ones."""
