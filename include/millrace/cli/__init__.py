"""The command line: one folder a noun. `main.py` imports the `commands.py` of the noun that is asked for."""
