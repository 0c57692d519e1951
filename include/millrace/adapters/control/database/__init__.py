"""Connection, locks, tables and rows of the control database."""
