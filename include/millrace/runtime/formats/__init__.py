"""Decoders of record values, one for each declared format."""
