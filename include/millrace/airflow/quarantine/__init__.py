"""The form that redrives quarantine."""
