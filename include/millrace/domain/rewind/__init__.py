"""Rewinds: offsets for times, and the plan that moves a stream back."""
