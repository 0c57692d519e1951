"""Audits of an archive: findings, memory, and the turn of deep ones."""
