"""The control database: one file or folder for each noun."""
