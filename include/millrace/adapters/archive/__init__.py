"""The archive in an object store: its objects, its manifests, its chain, and the look at all of them."""
