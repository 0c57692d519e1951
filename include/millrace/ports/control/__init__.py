"""The control database, table by table."""
