"""One micro-batch: what an engine needs for it, and the engine of streams without state."""
