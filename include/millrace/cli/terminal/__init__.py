"""What all commands share: output, options and the actor."""
