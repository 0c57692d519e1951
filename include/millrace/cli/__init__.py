"""The command line: one module a noun, each with a Typer `app`; main.py imports the one that is asked for."""
