"""Bounded jobs beside a live stream."""
