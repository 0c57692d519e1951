"""The archive: names and contents of its objects and manifests, the chain's rules, the proof that it is complete."""
