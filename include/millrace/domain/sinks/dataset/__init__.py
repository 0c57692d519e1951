"""A stream's dataset in an object store: what its chain of manifests says, and which rows of its objects count."""
