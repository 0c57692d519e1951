"""Operators and triggers that watch and operate streams."""
