"""Quality: checks, books, freshness and recomputed rows."""
