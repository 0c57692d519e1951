"""The stack as containers for Docker Compose."""
