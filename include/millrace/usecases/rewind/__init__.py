"""Rewinds: plan and run them."""
