"""The epoch that a dataset's chain names, which a start begins above."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from millrace.adapters.chain.documents import encode
from millrace.adapters.sinks.s3.reading import DatasetReader
from millrace.domain.chain.head import LARGEST_EPOCH
from millrace.domain.sinks.dataset.manifest import Kind, Manifest
from millrace.domain.sinks.dataset.names import Dataset
from support.fakes.objects import MemoryStore

HERE = Dataset("lake/purchases")


@pytest.mark.parametrize(
    ("epoch", "believed"), [(40, 40), (LARGEST_EPOCH, LARGEST_EPOCH), (LARGEST_EPOCH + 1, 0), (2**63 - 2, 0)]
)
def test_an_epoch_that_no_start_reaches_is_not_believed(epoch: int, believed: int) -> None:
    store = MemoryStore()
    at = datetime(2026, 5, 4, tzinfo=UTC)
    made = Manifest(sequence=0, previous="", stream="p.s", epoch=epoch, instance="one", kind=Kind.TAKEOVER, at=at)
    store.objects[HERE.manifest_key(0)] = encode(made)
    reader = DatasetReader(store, HERE)
    assert reader.newest_epoch("p.s") == believed
    assert reader.newest_epoch("p.other") == 0
