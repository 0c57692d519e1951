"""The sink `postgres`: rows in tables, appended or upserted."""
