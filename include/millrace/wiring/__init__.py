"""The only place that builds adapters: what use cases work with, opened when first asked for."""

from millrace.wiring.platform import open_platform

__all__ = ["open_platform"]
