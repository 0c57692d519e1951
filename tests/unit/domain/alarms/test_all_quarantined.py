"""When a stream whose records all go to quarantine raises its alarm, and which batch ends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from millrace.domain.alarms.all_quarantined import Refused, Verdict, judge
from millrace.domain.alarms.extent import Extent

Batch = tuple[int, int, int]
"""Records read, rows written, records in quarantine."""
OPEN, SHUT, SAME = Verdict.OPEN, Verdict.CLOSE, Verdict.UNCHANGED


def verdicts(*batches: Batch) -> list[Verdict]:
    count, found = Refused(), []
    for rows_in, rows_out, quarantined in batches:
        count, verdict = judge(count, rows_in=rows_in, rows_out=rows_out, quarantined=quarantined)
        found.append(verdict)
    return found


ALL, NONE, EMPTY, DROPPED, PARTLY = (5, 0, 5), (5, 5, 0), (0, 0, 0), (5, 0, 0), (5, 0, 4)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([ALL, ALL], [SAME, SAME]),
        ([ALL, ALL, ALL, ALL], [SAME, SAME, OPEN, OPEN]),
        ([(1000, 0, 1000)], [OPEN]),
        ([(999, 0, 999)], [SAME]),
        ([(600, 0, 600), (399, 0, 399)], [SAME, SAME]),
        ([(600, 0, 600), (400, 0, 400)], [SAME, OPEN]),
        ([ALL, EMPTY, ALL, EMPTY, EMPTY, ALL], [SAME, SAME, SAME, SAME, SAME, OPEN]),
        ([ALL, ALL, NONE, ALL, ALL], [SAME, SAME, SHUT, SAME, SAME]),
        ([ALL, ALL, ALL, NONE, NONE], [SAME, SAME, OPEN, SHUT, SHUT]),
        ([ALL, ALL, DROPPED, ALL], [SAME, SAME, SAME, SAME]),
        ([DROPPED, DROPPED, DROPPED], [SAME, SAME, SAME]),
        ([(5000, 0, 4999)] * 3, [SAME, SAME, SAME]),
        ([ALL, ALL, ALL, PARTLY, DROPPED, ALL], [SAME, SAME, OPEN, SAME, SAME, SAME]),
        ([(2000, 1, 1999)], [SHUT]),
        ([EMPTY] * 4, [SAME] * 4),
    ],
)
def test_which_batches_open_and_close_the_alarm(batches: list[Batch], expected: list[Verdict]) -> None:
    assert verdicts(*batches) == expected


some_batches = some.lists(
    some.tuples(some.integers(0, 1500), some.integers(0, 3), some.integers(0, 1500)).map(
        lambda drawn: (drawn[0], drawn[1], drawn[0] if drawn[2] > 500 else min(drawn[0], drawn[2]))
    ),
    max_size=12,
)


@given(some_batches)
def test_an_alarm_opens_where_the_batches_since_the_last_other_one_are_enough(batches: list[Batch]) -> None:
    for end, verdict in enumerate(verdicts(*batches), start=1):
        rows_in, rows_out, quarantined = batches[end - 1]
        since = [batch for batch in batches[:end] if batch[0] or batch[1]]
        while any(not _is_refused(batch) for batch in since):
            since.pop(0)
        enough = len(since) >= 3 or sum(batch[0] for batch in since) >= 1000
        assert (verdict is SHUT) == (rows_out > 0)
        assert (verdict is OPEN) == (enough and _is_refused((rows_in, rows_out, quarantined)))


def _is_refused(batch: Batch) -> bool:
    return batch[0] > 0 and batch[1] == 0 and batch[2] == batch[0]


def test_the_detail_stays_the_same_while_the_alarm_is_open() -> None:
    count = Refused()
    told = set()
    for _ in range(6):
        count, verdict = judge(count, rows_in=400, rows_out=0, quarantined=400)
        told |= {count.detail("shop.purchases")} if verdict is OPEN else set()
    [detail] = told
    assert detail.startswith("all 1,200 records of 3 batches in a row went to quarantine, and none became a row")
    assert "`millrace quarantine list --stream shop.purchases`" in detail
    assert count.extent == Extent(1200)
    one, _ = judge(Refused(), rows_in=2500, rows_out=0, quarantined=2500)
    assert one.detail("a.b").startswith("all 2,500 records of one batch went")


def test_ten_times_as_many_records_are_said_anew() -> None:
    count, said = Refused(), set()
    for _ in range(200):
        count, _ = judge(count, rows_in=1000, rows_out=0, quarantined=1000)
        said.add(count.extent.measure)
    assert said == {1000, 10_000, 100_000}
    assert count.detail("shop.purchases").startswith("all 100,000 records of 100 batches in a row")
