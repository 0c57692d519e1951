"""Topics: their offsets, their changes, and the records that sources feed into them."""
