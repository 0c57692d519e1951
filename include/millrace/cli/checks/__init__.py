"""The work of `./millrace test`: steps, lanes and repeats."""
