"""Properties are tried without a clock: how long one example takes is no statement about the code."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from support.remembered_files import _declarations_are_parsed_once  # noqa: F401
from support.tiers import examples

settings.register_profile(
    "untimed",
    settings.default,
    deadline=None,
    max_examples=examples(settings.default.max_examples),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("untimed")
