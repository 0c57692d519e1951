"""Streams: supervise, list, own, adopt and show them."""
