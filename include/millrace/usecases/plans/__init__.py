"""Plans and the action log: list, run and show them."""
