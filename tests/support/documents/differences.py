"""Name each place at which two documents differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

LONGEST = 200
"""Characters of a value that are shown."""


def differences(old: object, new: object, path: str = "") -> Iterator[str]:
    """Yield a line for each path at which the values differ, with both of them. The order of keys says nothing."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            inside = f"{path}.{key}" if path else str(key)
            if key not in new:
                yield f"{inside}: is gone, was {_shown(old[key])}"
            elif key not in old:
                yield f"{inside}: is new, {_shown(new[key])}"
            else:
                yield from differences(old[key], new[key], inside)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: was {len(old)} entries, is {len(new)}"
        for at, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from differences(before, after, f"{path}[{at}]")
    elif type(old) is not type(new) or old != new:
        yield f"{path}: was {_shown(old)}, is {_shown(new)}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ... ({len(text)} characters)"
