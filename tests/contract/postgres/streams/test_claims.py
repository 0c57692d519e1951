"""Of two instances of one epoch the control database lets the first through; nobody claims what another has."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millrace.adapters.control.store import ControlStore
from support.drills.points import EPOCH_IGNORED
from support.stack.control_databases import Databases
from support.stack.faults import put_in


@pytest.fixture
def control(control_databases: Databases) -> Iterator[ControlStore]:
    database = control_databases.create_upgraded()
    store = ControlStore(database.working)
    yield store
    store.close()


def test_one_of_two_instances_claims_an_epoch_however_often_it_asks(control: ControlStore) -> None:
    stream = f"t{uuid.uuid4().hex[:10]}.s"
    answers = [control.streams.claim(stream, 1, instance, "here") for instance in ("first", "first", "another")]
    assert answers == [True, True, False]


def test_a_claim_that_lets_everybody_through_is_noticed(control: ControlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, EPOCH_IGNORED)
    with pytest.raises(AssertionError):
        test_one_of_two_instances_claims_an_epoch_however_often_it_asks(control)
