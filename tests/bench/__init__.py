"""Measured rates beside the limit that the same machine had in the same run."""
