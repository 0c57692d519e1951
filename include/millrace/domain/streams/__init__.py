"""Streams: their state, their start, their supervision, and the hosts that they belong to."""
