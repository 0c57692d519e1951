"""The control database: one file for each noun."""
