"""A stream's dataset in an object store: written, taken over, and read."""
