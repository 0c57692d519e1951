"""Readers of a cluster over time, by their commits."""
