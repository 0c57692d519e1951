"""The stack of real servers that `./millrace up` runs on one machine, and nothing outside that machine needs."""
