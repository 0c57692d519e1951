"""The proof of an archive: each offset gets one label, out of chain and log."""
