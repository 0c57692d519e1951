"""A platform whose groups are methods of the test's own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Group:
    """One group of a platform: `.kafka.logs(...)` calls the platform's `kafka_logs(...)`."""

    def __init__(self, platform: object, name: str) -> None:
        self._platform = platform
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self._platform, f"{self._name}_{name}")
        return found


class GroupedPlatform:
    """Implements the groups of `ports.platform.Platform` by methods named GROUP_METHOD.

    A group asks for its method when it is called, so that a class may define those alone that its test needs.
    """

    @property
    def kafka(self) -> Group:
        return Group(self, "kafka")

    @property
    def sinks(self) -> Group:
        return Group(self, "sinks")

    @property
    def archive(self) -> Group:
        return Group(self, "archive")

    @property
    def objects(self) -> Group:
        return Group(self, "objects")

    @property
    def apps(self) -> Group:
        return Group(self, "apps")


class PartsPlatform(GroupedPlatform):
    """A platform of these parts alone: `control`, `settings`, or methods named GROUP_METHOD."""

    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this test's platform has no {name}")


class Instead:
    """A real group, or platform, with some parts of the test's own."""

    def __init__(self, real: Any, **own: object) -> None:
        self._real = real
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
