"""Consumer groups: list, check and snapshot them."""
