"""What can be asked of Millrace; the DAGs, the pages and the CLI call the same functions."""
