"""PostgreSQL: connections, locks, and Millrace's own tables."""
