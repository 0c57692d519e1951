"""The outside world: each module does the input and output of one part and decides nothing."""
