"""Plans: stored, hashed, expiring values that say what would change."""
