"""Output, options and the actor, which all commands share."""
