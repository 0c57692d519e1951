"""Snapshots of clusters in the control database."""
