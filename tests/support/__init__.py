"""What several tests share: waiting for a condition, and the one embedded stack of a test run."""
