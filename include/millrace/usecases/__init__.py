"""Use cases of Millrace: the DAGs, the pages and the command line call the same functions."""
