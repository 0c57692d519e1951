"""Runners: they submit apps and watch over them."""
