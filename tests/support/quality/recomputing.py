"""Rows of a test's stream made again from their records, by the product."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace import declarations
from millrace.usecases.quality import recompute as quality_recompute
from millrace.wiring import open_platform

if TYPE_CHECKING:
    from millrace.domain.quality.recompute import Apart, Difference, Recomputed
    from support.streams.apps import App


def recompute(app: App, *, sample: int = 1000) -> Recomputed:
    """Make about so many records' rows again; see `usecases.quality.recompute`."""
    platform = open_platform(app.settings)
    pipeline = declarations.load_pipeline(app.root, app.pipeline)
    return quality_recompute.recompute(platform, pipeline, pipeline.stream("events"), sample=sample, seed=1)


def differences(found: Recomputed) -> dict[tuple[Difference, str], Apart]:
    """Return what differs, by its kind and its column."""
    return {(one.difference, one.column): one for one in found.apart}
