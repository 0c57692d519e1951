"""`millrace up`, `down`, `doctor`, `compose`, `control`."""
