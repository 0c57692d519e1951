"""`millrace up`, `down`, `status`, `doctor`, `compose`, `control`, `run` and `test`."""
