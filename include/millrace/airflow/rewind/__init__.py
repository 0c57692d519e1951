"""Tasks of the form that rewinds a stream."""
