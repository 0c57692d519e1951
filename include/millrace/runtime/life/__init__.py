"""The life of every app: claim, heartbeat, group, Spark session, end."""
