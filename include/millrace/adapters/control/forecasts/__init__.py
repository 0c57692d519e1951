"""Forecasts in the control database."""
