"""Retention: sizes, forecasts, headroom, holds and cuts of topics."""
