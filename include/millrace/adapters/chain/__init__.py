"""Chains of manifests: the parts that archives and datasets share."""
