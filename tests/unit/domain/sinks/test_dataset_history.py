"""A dataset's chain: what a manifest may say, which one may follow, and what the chain comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.adapters.chain.documents import decode, encode, sha256_of
from millrace.domain.archive.manifest import MOST
from millrace.domain.chain.head import Head
from millrace.domain.sinks.dataset.history import History, Summary
from millrace.domain.sinks.dataset.manifest import ColumnEntry, DataObject, Held, Kind, Manifest, Span
from millrace.domain.sinks.dataset.names import NO_DATE, Dataset
from millrace.domain.streams.position import WorkRecord
from millrace.domain.topics.offsets import OffsetRange, TopicPartition
from millrace.errors import CorruptArchiveError

SHA, OTHER_SHA = "a" * 64, "b" * 64
AT = datetime(2026, 5, 4, tzinfo=UTC)
HELD = Held("id", 0, 0, 5, 5)
OBJECT = DataObject("2026-05-04", SHA, 10, (HELD,))
SPAN = Span("t", "id", 0, 0, 5)
NUMBER = ColumnEntry("n", "int32")
P0, P1 = (TopicPartition("t", "id", number) for number in (0, 1))

# What a manifest may say


def manifest(kind: Kind = Kind.TAKEOVER, **more: Any) -> Manifest:
    said: dict[str, Any] = {"sequence": 1, "previous": SHA, "stream": "p.s", "epoch": 1, "instance": "one", "at": AT}
    match kind:
        case Kind.TIMELINE:
            said |= {"timeline": 1, "spans": (replace(SPAN, next=0),)}
        case Kind.DATA:
            said |= {"timeline": 1, "spans": (SPAN,), "objects": (OBJECT,)}
        case Kind.COLUMNS:
            said |= {"columns": (NUMBER,)}
    return Manifest(kind=kind, **(said | more))


@pytest.mark.parametrize("kind", Kind)
def test_a_manifest_of_each_kind_is_read_as_it_was_written(kind: Kind) -> None:
    one = manifest(kind)
    assert decode(encode(one), Manifest, "key") == one


TWO_SPANS = (replace(SPAN, partition=1), SPAN)
TWO_OBJECTS = (replace(OBJECT, sha256=OTHER_SHA), OBJECT)
REFUSED: Sequence[tuple[str, Kind, Mapping[str, Any], str]] = (
    ("a version to come", Kind.TAKEOVER, {"version": 2}, "version 2"),
    ("a sequence below 0", Kind.TAKEOVER, {"sequence": -1}, "manifest -1"),
    ("a sequence that no name has", Kind.TAKEOVER, {"sequence": MOST + 1}, f"manifest {MOST + 1}"),
    ("epoch 0", Kind.TAKEOVER, {"epoch": 0}, "epoch 0"),
    ("an epoch too great", Kind.TAKEOVER, {"epoch": MOST + 1}, f"epoch {MOST + 1}"),
    ("no instance", Kind.TAKEOVER, {"instance": ""}, "manifest 1"),
    ("no stream", Kind.TAKEOVER, {"stream": ""}, "stream ''"),
    ("a moment of nowhere", Kind.TAKEOVER, {"at": AT.replace(tzinfo=None)}, "UTC"),
    ("a moment elsewhere", Kind.TAKEOVER, {"at": AT.astimezone(timezone(timedelta(hours=1)))}, "UTC"),
    ("no predecessor", Kind.TAKEOVER, {"previous": ""}, "cannot follow ''"),
    ("a predecessor of the first", Kind.TAKEOVER, {"sequence": 0}, "cannot follow 'aaa"),
    ("a predecessor that is no sum", Kind.TAKEOVER, {"previous": "A" * 64}, "cannot follow 'AAA"),
    ("a takeover of ranges", Kind.TAKEOVER, {"spans": (SPAN,)}, "1 ranges"),
    ("a takeover on a timeline", Kind.TAKEOVER, {"timeline": 1}, "timeline 1"),
    ("a takeover with objects", Kind.TAKEOVER, {"objects": (OBJECT,)}, "1 objects"),
    ("a takeover with columns", Kind.TAKEOVER, {"columns": (NUMBER,)}, "1 columns"),
    ("a takeover with an event date", Kind.TAKEOVER, {"event_date": "day"}, "0 columns"),
    ("a timeline of no partition", Kind.TIMELINE, {"spans": ()}, "0 ranges"),
    ("a timeline of length", Kind.TIMELINE, {"spans": (SPAN,)}, "empty or are not"),
    ("timeline 0", Kind.TIMELINE, {"timeline": 0}, "timeline 0"),
    ("timeline -1", Kind.TIMELINE, {"timeline": -1}, "timeline -1"),
    ("a timeline with objects", Kind.TIMELINE, {"objects": (OBJECT,)}, "1 objects"),
    ("columns on a timeline", Kind.COLUMNS, {"timeline": 1}, "timeline 1"),
    ("columns below timelines", Kind.COLUMNS, {"timeline": -1}, "timeline -1"),
    ("no columns", Kind.COLUMNS, {"columns": ()}, "0 columns"),
    ("columns alike", Kind.COLUMNS, {"columns": (NUMBER, ColumnEntry("N", "string"))}, "columns: .*twice"),
    ("a batch of nothing", Kind.DATA, {"spans": ()}, "0 ranges"),
    ("a batch of timeline 0", Kind.DATA, {"timeline": 0}, "timeline 0"),
    ("a batch without length", Kind.DATA, {"spans": (replace(SPAN, next=0),), "objects": ()}, "empty or are not"),
    ("a batch with columns", Kind.DATA, {"columns": (NUMBER,)}, "1 columns"),
    ("partitions out of order", Kind.DATA, {"spans": TWO_SPANS}, "spans: out of order"),
    ("a partition twice", Kind.DATA, {"spans": (SPAN, SPAN)}, "spans: out of order, or one twice"),
    ("objects out of order", Kind.DATA, {"objects": TWO_OBJECTS}, "objects: out of order"),
    ("an object twice", Kind.DATA, {"objects": (OBJECT, OBJECT)}, "objects: out of order, or one twice"),
    ("rows below the batch", Kind.DATA, {"spans": (replace(SPAN, first=1),)}, "not of the batch"),
    ("rows beyond the batch", Kind.DATA, {"spans": (replace(SPAN, next=4),)}, "not of the batch"),
    ("rows of another partition", Kind.DATA, {"spans": (replace(SPAN, partition=1),)}, "not of the batch"),
    ("rows of another topic", Kind.DATA, {"spans": (replace(SPAN, topic_id="other"),)}, "not of the batch"),
)


@pytest.mark.parametrize(("kind", "said", "why"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_manifest_says_nothing_that_it_cannot_mean(kind: Kind, said: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        manifest(kind, **said)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (HELD, {"partition": -1}),
        (HELD, {"first": -1}),
        (HELD, {"first": 5}),
        (HELD, {"next": MOST + 1}),
        (HELD, {"rows": 0}),
        (SPAN, {"partition": -1}),
        (SPAN, {"first": -1}),
        (SPAN, {"first": 6}),
        (SPAN, {"next": MOST + 1}),
        (OBJECT, {"date": "2026-5-4"}),
        (OBJECT, {"date": "20260504"}),
        (OBJECT, {"date": "2026-02-30"}),
        (OBJECT, {"date": ""}),
        (OBJECT, {"date": "../manifest"}),
        (OBJECT, {"sha256": "A" * 64}),
        (OBJECT, {"sha256": ""}),
        (OBJECT, {"size_bytes": 0}),
        (OBJECT, {"size_bytes": MOST + 1}),
        (OBJECT, {"held": ()}),
        (OBJECT, {"held": (replace(HELD, partition=1), HELD)}),
        (OBJECT, {"held": (HELD, replace(HELD, first=1))}),
    ],
)
def test_neither_do_its_parts(make: Any, said: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        replace(make, **said)


def test_an_object_without_a_date_and_one_of_two_partitions_are_some() -> None:
    one = DataObject(NO_DATE, SHA, 1, (HELD, replace(HELD, partition=1, rows=7)))
    assert one.rows == 12


def test_bytes_that_say_it_in_another_form_are_no_manifest() -> None:
    data = encode(manifest())
    for other in (data.replace(b'"epoch":1', b'"epoch": 1'), data[:-1], data.replace(b"{", b'{"more":1,', 1)):
        with pytest.raises(CorruptArchiveError, match="key"):
            decode(other, Manifest, "key")


# Which one may follow


def chain(*said: Manifest) -> History:
    """Each manifest put behind the one before it."""
    history = History("p.s")
    for one in said:
        put(history, one)
    return history


def put(history: History, one: Manifest) -> None:
    placed = next_of(history, one)
    history.add(placed, sha256_of(encode(placed)))


def next_of(history: History, one: Manifest) -> Manifest:
    return replace(one, sequence=history.head.sequence + 1, previous=history.head.sha256)


def begun() -> History:
    """Epoch 1; timeline 1 from 2 on, where offsets 2 to 4 are done; a column."""
    return chain(
        manifest(),
        manifest(Kind.TIMELINE, spans=(Span("t", "id", 0, 2, 2),)),
        manifest(Kind.COLUMNS, columns=(NUMBER, ColumnEntry("When", "date32[day]")), event_date="When"),
        manifest(Kind.DATA, spans=(Span("t", "id", 0, 2, 5),), objects=()),
    )


def test_a_chain_comes_to_its_work_and_its_columns() -> None:
    history = begun()
    assert (history.head.sequence, history.head.epoch, history.head.instance) == (3, 1, "one")
    assert history.record() == WorkRecord(1, {P0: 5}, {P0: 2})
    assert history.columns == {"n": "int32", "When": "date32[day]"}
    assert history.event_date == "When"


def test_nothing_is_on_record_where_there_is_no_chain() -> None:
    assert History("p.s").record() == WorkRecord()
    assert History("p.s").timeline == 0


FAULTS: Sequence[tuple[str, Manifest, str]] = (
    ("another stream", manifest(epoch=2, stream="p.other"), "stream p.other"),
    ("the same epoch of another", manifest(instance="two"), "epoch 1 takes over from 1"),
    ("the same once more", manifest(), "epoch 1 takes over from 1"),
    ("a batch of an epoch that has not taken over", manifest(Kind.DATA, epoch=2), "has not taken over"),
    ("a batch of another instance", manifest(Kind.DATA, instance="two"), "has not taken over"),
    ("a timeline of another instance", manifest(Kind.TIMELINE, instance="two"), "has not taken over"),
    ("columns of another instance", manifest(Kind.COLUMNS, instance="two"), "has not taken over"),
    ("a partition begun twice", manifest(Kind.TIMELINE, spans=(Span("t", "id", 0, 2, 2),)), "has begun on timeline 1"),
    ("a gap", manifest(Kind.DATA, spans=(Span("t", "id", 0, 6, 9),), objects=()), "begins at 6, .*ends at 5"),
    ("an overlap", manifest(Kind.DATA, spans=(Span("t", "id", 0, 4, 9),), objects=()), "begins at 4, .*ends at 5"),
    ("a partition that is not known", manifest(Kind.DATA, spans=(Span("t", "id", 1, 0, 9),), objects=()), "at None"),
    ("a topic made anew", manifest(Kind.DATA, spans=(Span("t", "new", 0, 5, 9),), objects=()), "at None"),
    ("a timeline that is not known", manifest(Kind.DATA, timeline=2, objects=()), "at None"),
    ("another type", manifest(Kind.COLUMNS, columns=(ColumnEntry("n", "int64"),), event_date="When"), "`n` would be"),
    ("another case", manifest(Kind.COLUMNS, columns=(ColumnEntry("N", "int32"),), event_date="When"), "`N` would be"),
    ("another date", manifest(Kind.COLUMNS, event_date="n"), "`When`, and would be .* `n`"),
    ("the record's date", manifest(Kind.COLUMNS, event_date=""), "`When`, and would be .* the record"),
)


@pytest.mark.parametrize(("one", "why"), [one[1:] for one in FAULTS], ids=[one[0] for one in FAULTS])
def test_a_manifest_that_cannot_be_next_changes_nothing(one: Manifest, why: str) -> None:
    history, before = begun(), begun()
    placed = next_of(history, one)
    with pytest.raises(ValueError, match=why):
        history.add(placed, SHA)
    assert history == before


@pytest.mark.parametrize("said", [{"sequence": 3}, {"sequence": 5}, {"previous": OTHER_SHA}])
def test_a_manifest_follows_the_head_and_no_other(said: Mapping[str, Any]) -> None:
    history = begun()
    one = next_of(history, manifest(epoch=2))
    assert history.fault(one) == ""
    assert "does not follow manifest 3" in history.fault(replace(one, **said))


def test_only_a_newer_epoch_takes_over() -> None:
    history = chain(manifest(epoch=3))
    for epoch, refused in ((2, True), (3, True), (4, False)):
        assert bool(history.fault(next_of(history, manifest(epoch=epoch, instance="two")))) is refused


def test_an_older_timeline_is_not_gone_on_with() -> None:
    history = begun()
    put(history, manifest(Kind.TIMELINE, timeline=2, spans=(Span("t", "id", 0, 3, 3),)))
    for one in (
        manifest(Kind.DATA, spans=(Span("t", "id", 0, 5, 9),), objects=()),
        manifest(Kind.TIMELINE, spans=(Span("t", "id", 1, 0, 0),)),
    ):
        assert "of timeline 1, and 2 has begun" in history.fault(next_of(history, one))
    assert history.record() == WorkRecord(2, {P0: 3}, {P0: 3})
    put(history, manifest(Kind.TIMELINE, timeline=2, spans=(Span("t", "id", 1, 0, 0),)))
    assert history.record().next_offsets == {P0: 3, P1: 0}


def test_columns_come_and_stay_where_later_rows_have_them_no_more() -> None:
    history = begun()
    put(history, manifest(Kind.COLUMNS, columns=(ColumnEntry("more", "string"),), event_date="When"))
    assert history.columns == {"n": "int32", "When": "date32[day]", "more": "string"}


# Summaries


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Chains of some steps, each of which can be the next."""
    history = chain(manifest())
    for _ in range(draw(st.integers(0, 12))):
        epoch, instance, timeline = history.head.epoch, history.head.instance, max(history.timeline, 1)
        more: dict[str, Any] = {"epoch": epoch, "instance": instance}
        kind = draw(st.sampled_from(Kind))
        partition, at = draw(st.integers(0, 2)), draw(st.integers(0, 9))
        done = history.timelines.get(timeline, {}).get(TopicPartition("t", "id", partition))
        match kind:
            case Kind.TAKEOVER:
                more |= {"epoch": epoch + draw(st.integers(1, 2)), "instance": draw(st.sampled_from(["one", "two"]))}
            case Kind.TIMELINE:
                newer = timeline + 1 if done else timeline
                more |= {"timeline": newer, "spans": (Span("t", "id", partition, at, at),)}
            case Kind.COLUMNS:
                more |= {"columns": (ColumnEntry(draw(st.sampled_from("abc")), "int32"),), "event_date": "a"}
            case Kind.DATA if done is None:
                continue
            case Kind.DATA:
                spans = (Span("t", "id", partition, done[1], done[1] + 1 + at),)
                more |= {"timeline": timeline, "spans": spans, "objects": ()}
        put(history, manifest(kind, **more))
    return history


@given(histories())
def test_a_summary_says_all_that_a_chain_came_to(history: History) -> None:
    summary = Summary.of(history)
    read = decode(encode(summary), Summary, "key")
    assert read == summary
    assert read.history() == history


@given(histories(), st.integers(0, 9))
def test_who_goes_on_from_a_summary_goes_on_as_from_the_chain(history: History, length: int) -> None:
    known = Summary.of(history).history()
    for one in (manifest(epoch=history.head.epoch + 1, instance="new"), manifest(Kind.COLUMNS), manifest(Kind.DATA)):
        placed = next_of(history, one)
        assert known.fault(placed) == history.fault(placed)
    assert known.record() == history.record()


@pytest.mark.parametrize(
    "said",
    [{"version": 2}, {"sequence": -1}, {"sequence": MOST + 1}, {"sha256": ""}, {"sha256": "x" * 64}, {"epoch": 0}],
)
def test_a_summary_of_no_chain_is_none(said: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="summary"):
        replace(Summary.of(begun()), **said)
    with pytest.raises(ValueError, match="summary"):
        Summary.of(History("p.s"))


def test_a_summary_with_another_sum_is_none() -> None:
    data = encode(Summary.of(begun()))
    changed = data.replace(b'"sequence":3', b'"sequence":2')
    assert changed != data
    for other in (changed, data.partition(b"\n")[0] + b"\n", b"", b"garbage"):
        with pytest.raises(CorruptArchiveError, match="key"):
            decode(other, Summary, "key")


def test_a_summary_may_have_a_head_of_any_instance() -> None:
    head = Head(7, SHA, 3, "two")
    history = History("p.s", head, {1: {P0: (0, 4)}, 2: {P0: (2, 2), P1: (0, 0)}})
    assert Summary.of(history).history() == history


# Names


def test_names_are_in_the_order_of_their_sequences_and_are_read_back() -> None:
    here = Dataset("a/b")
    assert here.sequence_of(here.page_key(0)) == 999
    for key in (here.manifest_key, here.summary_key):
        keys = [key(sequence) for sequence in (0, 9, 10, 999, 10**10, MOST)]
        assert keys == sorted(keys)
        assert [here.sequence_of(one) for one in keys] == [0, 9, 10, 999, 10**10, MOST]
    strangers = (
        "a/b/manifest/1.json",
        f"a/b/manifest/{0:020d}.json.tmp",
        f"a/manifest/{0:020d}.json",
    )
    assert [here.sequence_of(one) for one in strangers] == [None] * 3
    assert here.page_key(0) == "a/b/page/00000000000000000999.json"
    assert here.object_key(NO_DATE, SHA) == f"a/b/data/event_date=__HIVE_DEFAULT_PARTITION__/{SHA}.parquet"


def test_a_range_of_a_partition_is_the_same_span() -> None:
    span = Span.of(OffsetRange(P1, 3, 5))
    assert (span, span.of_partition) == (Span("t", "id", 1, 3, 5), P1)
