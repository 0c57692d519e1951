"""The archive: audit, collect, restore and read it."""
