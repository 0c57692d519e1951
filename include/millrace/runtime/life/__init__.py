"""What every app has in common: claim, heartbeat, group, Spark session, end."""
