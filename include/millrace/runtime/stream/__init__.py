"""The app of a stream: batches from topics to a sink."""
