"""Sinks of streams; what several of them share lies here."""
