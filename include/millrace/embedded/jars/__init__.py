"""Java and the jars that the servers need, held to committed locks."""
