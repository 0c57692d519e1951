"""The years that every part can hold: 1 to 9999, in UTC. Python and RFC 3339 have no others."""

from __future__ import annotations

FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The first day and the last, since 1970-01-01."""
FIRST_MS, LAST_MS = FIRST_DAY * 86_400_000, (LAST_DAY + 1) * 86_400_000 - 1
"""The first millisecond and the last, since 1970."""
