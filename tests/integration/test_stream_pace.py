"""A stream that is behind does not wait for its trigger; one that waits stops at once."""

from __future__ import annotations

import pytest

from millrace.embedded.stack import Stack
from support.apps import App


@pytest.fixture
def servers(kafka: Stack, postgres: Stack) -> Stack:
    return postgres


@pytest.mark.full
def test_a_backlog_is_read_without_waiting_and_a_stop_does_not_wait_either(servers):
    app = App(servers, trigger="5m", resources="{cores: 1, max_records_per_batch: 100}")
    app.produce({"id": number, "name": "x"} for number in range(450))
    with app.running():  # at its end the driver must stop by a deadline that is shorter than the five minutes
        app.until(lambda: app.log().count(" event=batch ") >= 5, "five batches, long before their triggers")
    assert len(app.rows()) == 450
