"""The sink `kafka`: rows as records of topics."""
