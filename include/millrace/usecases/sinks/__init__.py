"""Sinks as readers and use cases need them."""
