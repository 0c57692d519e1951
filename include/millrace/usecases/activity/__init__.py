"""Activity of readers, from what its stream has kept."""
