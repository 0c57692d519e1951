"""A stream of two topics whose transform leaves one of them out and reads the other in part."""

from __future__ import annotations

import pytest

from millrace.embedded.stack import Stack
from support.streams.apps import App


def numbered(first: int, end: int) -> list[dict[str, object]]:
    return [{"id": number, "name": f"name {number}"} for number in range(first, end)]


@pytest.mark.full
def test_what_the_transform_leaves_out_is_read_and_what_is_bad_in_it_goes_aside(kafka: Stack, postgres: Stack):
    unused = App(postgres)
    app = App(postgres)
    app.write_transform(f"""
        def transform(inputs, tables):
            some = inputs["{app.topic}"].limit(3)
            return some.unionByName(some.where("id < 0"))
    """)
    text = app.declaration.read_text()
    app.declaration.write_text(text.replace(f"reads: [{app.topic}]", f"reads: [{app.topic}, {unused.topic}]"))
    app.produce([*numbered(0, 20), b"nope"])
    unused.produce([*numbered(0, 5), b"nope either", None])

    def done() -> int:
        with app.database() as connection:
            if connection.execute("SELECT to_regclass('millrace.progress')").fetchone() == (None,):
                return 0
            [total] = connection.execute(
                "SELECT sum(next_offset) FROM millrace.progress WHERE stream = %s", (app.stream,)
            )
            return total[0] or 0

    with app.running():
        app.until(lambda: done() == 21 + 7, "both topics to be read to their ends")
        unused.produce(numbered(5, 8))
        app.until(lambda: done() == 21 + 10, "the topic that is left out to be read on")
    assert 1 <= len(app.rows()) <= 2 * 3  # of each batch three
    expected = [("not_json", app.topic), ("not_json", unused.topic), ("null_value", unused.topic)]
    assert sorted(app.quarantine("rule, topic")) == sorted(expected)
    assert "KafkaSourceProvider" not in app.log()  # which would warn at every batch
