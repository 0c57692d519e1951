"""`millrace plans` and `millrace log`."""
