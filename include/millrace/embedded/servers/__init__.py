"""The servers of the stack, one file each."""
