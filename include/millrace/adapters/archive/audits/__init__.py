"""Audits of an archive: chain, objects and log against one another."""
