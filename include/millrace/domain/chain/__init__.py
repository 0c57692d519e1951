"""The rules that all chains of manifests share."""
