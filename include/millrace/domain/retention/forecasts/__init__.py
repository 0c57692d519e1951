"""Forecasts of topics: estimates, their history and their errors."""
