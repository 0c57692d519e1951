"""Consumer groups: their commits, snapshots, status, rhythm and risks."""
