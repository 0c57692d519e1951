"""PostgreSQL: connections, locks, Millrace's own tables, and the views of readers' activity."""
