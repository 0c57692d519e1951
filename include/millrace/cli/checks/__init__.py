"""What `./millrace test` does."""
