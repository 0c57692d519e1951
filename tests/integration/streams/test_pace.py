"""A stream that is behind does not wait for its trigger, one that waits stops at once, and slow merges get smaller."""

from __future__ import annotations

import pytest

from millrace.embedded.stack import Stack
from support.streams.apps import App


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


IMPATIENT = """
import sys
from datetime import timedelta

from millrace.domain.streams import batch_size
from millrace.runtime.main import main

if __name__ == "__main__":
    batch_size.LONGEST_MERGE, batch_size.CALM_BATCHES = timedelta(seconds=2), 3
    sys.exit(main(sys.argv[1:]))
"""
SLOWLY = """
CREATE TABLE {schema}.slow (seconds float);
INSERT INTO {schema}.slow VALUES (3);
CREATE FUNCTION {schema}.slowly() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(seconds) FROM {schema}.slow; RETURN NULL; END $$;
CREATE TRIGGER slowly AFTER INSERT ON {schema}.events EXECUTE FUNCTION {schema}.slowly();
"""


@pytest.mark.full  # merges have to be slow, for several batches
def test_slow_merges_get_smaller_batches_in_the_same_app_and_quick_ones_larger_again(servers):
    app = App(servers, resources="{cores: 1, max_records_per_batch: 4000}")
    (app.root / "spark_apps" / "impatient.py").write_text(IMPATIENT)
    app.program = "impatient.py"
    app.produce([{"id": 0, "name": "x"}])

    def resized(records: int) -> bool:
        return f"event=batches_resized records={records} declared=4000" in app.log()

    with app.running():
        app.until(lambda: app.rows(), "the first row")
        with app.database() as connection:
            connection.execute(SLOWLY.format(schema=app.pipeline))
        app.produce({"id": number, "name": "x"} for number in range(1, 12_001))
        app.until(lambda: resized(2000), "smaller batches")
        app.until(lambda: resized(1000), "the smallest batches")
        with app.database() as connection:
            connection.execute(f"DELETE FROM {app.pipeline}.slow")
        app.produce({"id": number, "name": "x"} for number in range(12_001, 20_001))
        app.until(lambda: len(app.rows()) == 20_001, "all rows")
        for number in range(20_001, 20_021):  # small batches count as quick ones too
            app.produce([{"id": number, "name": "x"}])
            app.until(lambda last=number: app.rows(where=f"id = {last}"), "the next row")
        assert app.log().count("records=4000 declared=4000") == 1
    assert [number for (number,) in app.rows()] == list(range(20_021))
    assert app.rows("DISTINCT _timeline") == [(1,)]
