"""One look at a whole cluster."""
