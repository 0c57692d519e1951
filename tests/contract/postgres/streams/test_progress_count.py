"""Counts of odd records of the last batch: kept with a stream's progress, also across releases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from millrace.adapters.control.migrations.upgrade import upgrade
from millrace.adapters.control.store import ControlStore
from millrace.domain.formats.undeclared import UndeclaredFields, UndeclaredName
from millrace.domain.streams.control import StreamProgress
from millrace.errors import UnreachableError
from support.stack.control_databases import Databases, make_version

PROGRESS = StreamProgress(
    "shop.purchases", 2, 1, datetime(2026, 5, 1, 12, tzinfo=UTC), 7, 10, 9, 1, 0.5, None, {"shop.purchases/0": 10}, 4
)
UNDECLARED = UndeclaredFields(
    3, (UndeclaredName("shop.purchases", "größe", 3), UndeclaredName("shop.purchases", "customerId", 1, "customer_id"))
)
AS_RELEASE_0001_WRITES = """
    insert into stream_progress
        (stream, epoch, timeline, at, batch_id, rows_in, rows_out, quarantined, batch_seconds, last_error, positions)
    values (%s, 3, 1, '2026-05-01T12:00:00Z', 8, 10, 9, 1, 0.5, null, '{}')
"""


def test_the_counts_are_kept_and_replaced_with_the_progress(control_databases: Databases) -> None:
    database = control_databases.create_upgraded()
    store = ControlStore(database.working)
    try:
        for truncated, undeclared in ((4, UNDECLARED), (0, UndeclaredFields())):
            progress = replace(PROGRESS, truncated=truncated, undeclared=undeclared)
            assert store.streams.save_progress(progress)
            assert store.streams.progress(PROGRESS.stream) == progress
            assert store.streams.all_progress() == (progress,)
    finally:
        store.close()


def test_a_database_of_the_release_before_says_to_upgrade_it_and_then_keeps_what_it_had(
    control_databases: Databases,
) -> None:
    database = control_databases.create()
    make_version(database.owner, "0001")
    control_databases.execute(database.owner, AS_RELEASE_0001_WRITES, ("shop.old",))
    store = ControlStore(database.owner)
    try:
        with pytest.raises(UnreachableError, match="run `millrace control upgrade`"):
            store.streams.save_progress(PROGRESS)
        with pytest.raises(UnreachableError, match="run `millrace control upgrade`"):
            store.streams.progress("shop.old")

        assert upgrade(database.owner, database.working.user).applied[0] == "0002"

        old = store.streams.progress("shop.old")
        assert old is not None
        assert (old.batch_id, old.truncated, old.undeclared) == (8, 0, UndeclaredFields())
        assert store.streams.save_progress(PROGRESS)
    finally:
        store.close()


@pytest.mark.parametrize("later", ["epoch = 3, batch_id = 7", "epoch = 2, batch_id = 8"], ids=["epoch", "batch"])
def test_a_later_batch_of_an_older_driver_has_no_names_of_the_one_before(
    control_databases: Databases, later: str
) -> None:
    database = control_databases.create_upgraded()
    store = ControlStore(database.working)
    try:
        store.streams.save_progress(replace(PROGRESS, undeclared=UNDECLARED))
        update = f"{AS_RELEASE_0001_WRITES} on conflict (stream) do update set {later}"
        control_databases.execute(database.working, update, (PROGRESS.stream,))
        progress = store.streams.progress(PROGRESS.stream)
        assert progress is not None
        assert (progress.epoch, progress.batch_id) in ((3, 7), (2, 8))
        assert progress.undeclared == UndeclaredFields()
    finally:
        store.close()


def test_a_document_of_another_release_is_left_out(control_databases: Databases) -> None:
    database = control_databases.create_upgraded()
    store = ControlStore(database.working)
    try:
        store.streams.save_progress(replace(PROGRESS, undeclared=UNDECLARED))
        later = """update stream_progress set undeclared = jsonb_set(undeclared, '{version}', '2')"""
        control_databases.execute(database.working, later)
        assert store.streams.all_progress() == (PROGRESS,)
    finally:
        store.close()


def test_a_driver_of_the_release_before_goes_on_writing(control_databases: Databases) -> None:
    database = control_databases.create_upgraded()
    control_databases.execute(database.working, AS_RELEASE_0001_WRITES, ("shop.old",))
    store = ControlStore(database.working)
    try:
        assert [(each.truncated, each.undeclared) for each in store.streams.all_progress()] == [(0, UndeclaredFields())]
    finally:
        store.close()
