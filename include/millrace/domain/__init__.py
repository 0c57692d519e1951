"""The decisions: pure functions over frozen dataclasses, standard library only."""
