"""What a consumer is given of a stream's rows: each once, whatever the stream went through."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.domain.sinks.origin import HEADERS, ORDER, Header, Origin
from millrace.reader import Deduplicator
from support.checks.tiers import examples
from support.waiting import Deadline

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "guide" / "kafka-sink-reading.md"
Fed = tuple[int, Origin]  # output partition and what the headers say


def row(
    offset: int,
    ordinal: int = 0,
    *,
    timeline: int = 1,
    source: int = 0,
    stream: str = "p.s",
    in_order: bool = True,
) -> Origin:
    return Origin(stream, ("id", source, offset), ordinal, timeline, 1, in_order)


def without_order(origin: Origin) -> Origin:
    return replace(origin, in_order=False)


def told(rows: Deduplicator, origins: Sequence[Origin], partition: int = 0) -> list[bool]:
    return [rows.is_new("out", partition, origin.headers()) for origin in origins]


@pytest.mark.parametrize("window", [None, 10], ids=["mark", "window"])
@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        pytest.param([row(0), row(1), row(1, 1), row(5)], "++++", id="in order"),
        pytest.param([row(0), row(1), row(0), row(1), row(2)], "++--+", id="a batch again from its start"),
        pytest.param([row(3, 0), row(3, 1), row(3, 0), row(3, 1), row(3, 2)], "++--+", id="cut within a record"),
        pytest.param([row(9), row(0, timeline=2), row(9, timeline=2)], "+++", id="a rewind"),
        pytest.param(
            [row(9), row(0, timeline=2), row(10), row(1, timeline=2)], "++-+", id="late, of an older timeline"
        ),
        pytest.param(
            [row(9), row(0, timeline=2), row(10, source=1), row(10, source=1, timeline=2)],
            "++-+",
            id="late, of an older timeline, of another source partition",
        ),
        pytest.param([row(9), row(0, source=1), row(0, stream="p.other"), row(9)], "+++-", id="each of its own"),
    ],
)
def test_a_row_is_new_once(window: int | None, origins: list[Origin], expected: str) -> None:
    assert told(Deduplicator(window=window), origins) == [sign == "+" for sign in expected]


def test_output_partitions_and_topics_know_nothing_of_each_other() -> None:
    rows = Deduplicator()
    assert told(rows, [row(9)], partition=0) == told(rows, [row(0)], partition=1) == [True]
    assert rows.is_new("other", 0, row(0).headers())


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("trace", b"1")],
        row(0).headers()[:-1],
        [*row(0).headers()[:-1], (HEADERS[-1], None)],
        [*row(0).headers(), (HEADERS[1], b"id/0/-1")],
    ],
    ids=["none", "empty", "other", "one missing", "one null", "no offset"],
)
def test_a_record_of_no_stream_is_always_new(headers: list[Header] | None) -> None:
    rows = Deduplicator()
    assert [rows.is_new("out", 0, headers) for _ in range(3)] == [True] * 3
    assert rows.state()["partitions"] == []


@pytest.mark.parametrize(
    ("origins", "expected"),
    [
        pytest.param([row(o) for o in (9, 0, 5, 0, 9, 5)], "+++---", id="any order within the window"),
        pytest.param([row(9, 1), row(9, 0), row(9, 1)], "++-", id="ordinals in any order"),
        pytest.param(
            [row(9), row(0), row(10), row(0), row(1)], "+++-+", id="its first offset is within, what is before is not"
        ),
        pytest.param([row(19), row(9), row(10)], "+-+", id="what is before the window is a duplicate"),
        pytest.param([row(10**12), row(10**12 - 9), row(10**12 - 10)], "++-", id="far away"),
    ],
)
def test_a_window_takes_rows_in_any_order(origins: list[Origin], expected: str) -> None:
    assert told(Deduplicator(window=10), origins) == [sign == "+" for sign in expected]


def test_a_record_says_by_a_sixth_header_that_there_is_no_order() -> None:
    assert [name for name, _ in row(3).headers()] == list(HEADERS)
    assert without_order(row(3)).headers() == [*row(3).headers(), ("millrace.order", b"none")]
    for origin in (row(3, 2), without_order(row(3, 2))):
        assert Origin.of(origin.headers()) == origin
    for value in (None, b"", b"something newer"):
        assert Origin.of([*row(3).headers(), (ORDER, value)]) == without_order(row(3))


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="at the start"),
        pytest.param([row(5)], id="of a row that would be new, or not"),
        pytest.param([row(5, timeline=2)], id="of an older timeline"),
    ],
)
@pytest.mark.parametrize("offset", [4, 5, 6])
def test_without_a_window_rows_that_keep_no_order_are_refused_and_none_is_lost(
    before: list[Origin], offset: int
) -> None:
    rows = Deduplicator()
    told(rows, before)
    known = rows.state()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"stream p\.s in topic out, partition 0, .*window=N"):
            told(rows, [without_order(row(offset))])
    assert rows.state() == known
    origins = [without_order(row(o, timeline=3)) for o in (8, 7, 8)]
    assert told(Deduplicator(window=10, state=known), origins) == [True, True, False]


def test_unique_gives_what_lies_before_a_record_that_needs_a_window() -> None:
    records = [Record(row(0)), Record(row(0)), Record(row(1)), Record(without_order(row(3))), Record(row(4))]
    rows, found = Deduplicator(), []
    with pytest.raises(ValueError, match="window=N"):
        found.extend(rows.unique(records))
    assert [records.index(record) for record in found] == [0, 2]
    rows = Deduplicator(window=10, state=rows.state())
    assert [records.index(record) for record in rows.unique(records[3:])] == [3, 4]


def test_an_incomplete_origin_that_says_there_is_no_order_is_of_no_stream() -> None:
    assert Deduplicator().is_new("out", 0, without_order(row(0)).headers()[1:])


@pytest.mark.parametrize("window", [1, 7, 16, 100])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_window_holds_no_more_than_lies_in_it_and_a_block(window: int, step: int) -> None:
    rows = Deduplicator(window=window)
    most = 0
    for offset in range(0, 2000 * step, step):
        assert told(rows, [row(offset), row(offset, 1)]) == [True, True]
        source = rows._partitions["out", 0]["p.s"].sources["id", 0]
        most = max(most, sum(map(len, source.blocks.values())))
        assert len(source.blocks) <= 18
    assert most <= 2 * (window + window // 16 + 1) // step + 2
    told(rows, [row(0, timeline=2)])
    assert len(rows.state()["partitions"][0]["streams"][0]["sources"][0]["seen"]) == 1


def test_a_window_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Deduplicator(window=0)


@dataclass
class Record:
    """A message as confluent_kafka's."""

    origin: Origin | None
    failure: str | None = None
    at: int = 0
    in_partition: int = 0

    def topic(self) -> str | None:
        return None if self.failure else "shop.totals"

    def partition(self) -> int:
        return self.in_partition

    def offset(self) -> int:
        return self.at

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.origin.headers() if self.origin else None

    def error(self) -> str | None:
        return self.failure

    def value(self) -> bytes:
        return str(self.origin and self.origin.source[2]).encode()


def test_unique_yields_what_is_new_and_errors_and_takes_no_more_than_is_asked_for() -> None:
    records = [Record(row(0)), Record(row(0)), Record(None, "broker away"), Record(None), Record(row(1))]
    rows = Deduplicator()
    found = rows.unique(iter(records))
    assert next(found) is records[0]
    of_the_first = rows.state()
    assert [records.index(record) for record in found] == [2, 3, 4]
    assert of_the_first != rows.state()


def test_a_partition_moves_with_its_state() -> None:
    here, there = Deduplicator(), Deduplicator()
    told(here, [row(5)], partition=0)
    told(here, [row(5)], partition=1)
    told(there, [row(9)], partition=1)
    state = here.state([("out", 1), ("out", 2)])
    here.forget("out", 1)
    there.restore(state)
    assert told(there, [row(5), row(6)], partition=1) == [False, True]
    assert told(there, [row(5)], partition=0) == told(here, [row(0)], partition=1) == [True]
    assert [entry["partition"] for entry in state["partitions"]] == [1, 2]
    there.restore({**state, "partitions": [{"topic": "out", "partition": 1, "streams": []}]})
    assert told(there, [row(0)], partition=1) == [True]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, 10, "--+", id="marks become a window"),
        pytest.param(10, 100, "-++", id="a wider one knows that it does not know what was before"),
        pytest.param(100, 3, "-++", id="a narrower one"),
    ],
)
def test_a_state_serves_another_window(before: int | None, after: int, expected: str) -> None:
    rows = Deduplicator(window=before)
    told(rows, [row(o) for o in (30, 35, 38)])
    rows = Deduplicator(window=after, state=json.loads(json.dumps(rows.state())))
    assert told(rows, [row(20), row(36), row(39)]) == [sign == "+" for sign in expected]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "version None"),
        ({"version": 2, "partitions": []}, "version 2"),
        ({"version": 1}, "partitions"),
        ({"version": 1, "partitions": [{"topic": "out", "partition": 0, "streams": [{"stream": "p.s"}]}]}, "sources"),
        ({"version": 1, "partitions": 7}, "no state"),
    ],
)
def test_a_state_that_is_none_of_ours_is_refused(state: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Deduplicator(state=state)


def test_rows_of_a_window_are_not_read_as_marks() -> None:
    rows = Deduplicator(window=10)
    told(rows, [row(5), row(3)])
    marks = Deduplicator()
    told(marks, [row(7)])
    with pytest.raises(ValueError, match="window"):
        marks.restore(rows.state())
    assert told(marks, [row(7), row(8)]) == [False, True]


def test_it_needs_no_client() -> None:
    script = (
        "import sys, millrace.reader\n"
        "others = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(sorted(others & {'confluent_kafka', 'pyarrow', 'pyspark', 'pydantic', 'sqlalchemy'}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=Deadline.COMMAND.seconds
    )
    assert found.stdout.strip() == "[]"


class _Over(Exception):
    pass


@dataclass
class _Consumer:
    """Gives a log from where it is assigned, in small turns; after so many it is killed."""

    log: Sequence[Record]
    turns: int
    queue: deque[Record] = field(default_factory=deque)

    def assign(self, partitions: Sequence[Any]) -> None:
        first = {entry.partition: entry.offset for entry in partitions}
        self.queue = deque(record for record in self.log if record.at >= first[record.in_partition])

    def consume(self, count: int, timeout: float) -> list[Record]:
        self.turns -= 1
        if self.turns < 0:
            raise _Over
        return [self.queue.popleft() for _ in range(min(3, len(self.queue)))]


def test_the_guides_example_stores_each_row_once_however_often_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    log = [Record(row(o), at=at, in_partition=o % 4) for at, o in enumerate([0, 1, 2, 0, 1, 2, 3, 4, 2, 3, 4, 5, 6])]
    client: Any = ModuleType("confluent_kafka")
    client.KafkaException, client.OFFSET_BEGINNING = RuntimeError, -2
    client.TopicPartition = lambda topic, partition, offset: SimpleNamespace(partition=partition, offset=offset)
    monkeypatch.setitem(sys.modules, "confluent_kafka", client)
    found: dict[str, Any] = {}
    for turns in (1, 2, 0, 1, 9):
        client.Consumer = lambda options, turns=turns: _Consumer(log, turns)
        with pytest.raises(_Over):
            exec(compile(example, str(GUIDE), "exec"), found)
        stored = [value for (value,) in found["database"].execute("SELECT value FROM rows")]
        found["database"].close()
    assert stored == [str(o).encode() for o in range(7)]


# ---- histories of a stream, and what of them is to pass


@dataclass
class History:
    """A stream that crashes, is rewound and leaves zombies, and the log of each output partition.

    A writer is what one start of the stream still has to write of a batch: queues of rows by source and output
    partition, each in its order, or, where the transform shuffles, one queue an output partition in any: its rows say
    so.
    """

    chance: Random
    shuffled: bool
    most: int
    fed: list[Fed] = field(default_factory=list)
    committed: set[Origin] = field(default_factory=set)
    zombies: list[list[deque[Fed]]] = field(default_factory=list)
    timeline: int = 1

    def __post_init__(self) -> None:
        self.sources = self.chance.randint(1, 3)
        self.outputs = self.chance.randint(1, 3)
        self.next = [0] * self.sources
        self.salt = self.chance.getrandbits(32)

    def made(self, source: int, offset: int) -> Iterator[Fed]:
        """The rows of a record, always the same: none, or up to three, each in the partition of its key."""
        fixed = Random(f"{self.salt}/{source}/{offset}")
        for ordinal in range(fixed.choice([0, 1, 1, 1, 2, 3])):
            made = row(offset, ordinal, source=source, timeline=self.timeline, in_order=not self.shuffled)
            yield fixed.randrange(self.outputs), made

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choice([self.batch, self.batch, self.batch, self.crash, self.crash, self.late, self.rewind])()
        while self.zombies:
            self.late()
        self.batch()

    def planned(self) -> tuple[list[int], list[deque[Fed]]]:
        ends = [first + self.chance.randint(0, self.most) for first in self.next]
        queues: dict[tuple[int, int], deque[Fed]] = {}
        for source, (first, end) in enumerate(zip(self.next, ends, strict=True)):
            for offset in range(first, end):
                for output, origin in self.made(source, offset):
                    queues.setdefault((output, -1 if self.shuffled else source), deque()).append((output, origin))
        if self.shuffled:
            for queue in queues.values():
                self.chance.shuffle(queue)
        return ends, list(queues.values())

    def write(self, queues: list[deque[Fed]], count: int) -> None:
        for _ in range(count):
            full = [queue for queue in queues if queue]
            if not full:
                return
            self.fed.append(self.chance.choice(full).popleft())
            if self.zombies and self.chance.random() < 0.2:
                self.late(1)

    def batch(self) -> None:
        ends, queues = self.planned()
        self.committed |= {origin for queue in queues for _, origin in queue}
        self.write(queues, sum(map(len, queues)))
        self.next = ends

    def crash(self) -> None:
        _, queues = self.planned()
        self.write(queues, self.chance.randint(0, sum(map(len, queues))))
        if self.chance.random() < 0.5:
            self.zombies.append(queues)

    def late(self, count: int | None = None) -> None:
        if self.zombies:
            queues = self.zombies.pop(self.chance.randrange(len(self.zombies)))
            zombies, self.zombies = self.zombies, []
            left = sum(map(len, queues))
            self.write(queues, self.chance.randint(1, left) if count is None and left else count or 0)
            self.zombies = [*zombies, queues] if any(queues) else zombies

    def rewind(self) -> None:
        if self.chance.random() < 0.6:
            self.timeline += 1
            self.next = [self.chance.choice([end, self.chance.randint(0, end)]) for end in self.next]


def expected(fed: Sequence[Fed]) -> list[Fed]:
    """The first of each row, none of a timeline older than one that came before in its output partition."""
    found: dict[Fed, None] = {}
    newest: dict[int, int] = {}
    for output, origin in fed:
        newest[output] = max(newest.get(output, 0), origin.timeline)
        if origin.timeline == newest[output]:
            found.setdefault((output, origin))
    return list(found)


Changed = Callable[[Origin], Origin]


def passed(fed: Sequence[Fed], rows: Deduplicator, changed: Changed = lambda origin: origin) -> list[Fed]:
    return [each for each in fed if rows.is_new("out", each[0], changed(each[1]).headers())]


def history(seed: int, shuffled: bool) -> History:
    chance = Random(seed)
    found = History(chance, shuffled, most=chance.randint(1, 20))
    found.run(chance.randint(3, 16))
    return found


@given(st.integers(0, 2**32), st.booleans())
def test_of_any_history_each_row_of_a_timeline_passes_once(seed: int, shuffled: bool) -> None:
    past = history(seed, shuffled)
    for window in {past.most, past.most + 7} | (set() if shuffled else {None}):
        found = passed(past.fed, Deduplicator(window=window))
        assert found == expected(past.fed)
        assert past.committed <= {origin for _, origin in found}


@given(st.integers(0, 2**32), st.booleans())
def test_a_consumer_may_start_again_between_any_two_records(seed: int, shuffled: bool) -> None:
    past = history(seed, shuffled)
    window = past.most if shuffled else None
    found, state = [], None
    for each in past.fed:
        rows = Deduplicator(window=window, state=state)
        found += passed([each], rows)
        state = json.loads(json.dumps(rows.state()))
    assert found == expected(past.fed)


@given(st.integers(0, 2**32), st.booleans(), st.randoms(use_true_random=False))
def test_begun_anywhere_without_a_state_it_loses_no_row_whose_first_copy_is_there(
    seed: int, shuffled: bool, chance: Random
) -> None:
    past = history(seed, shuffled)
    first = chance.randint(0, len(past.fed))
    found = passed(past.fed[first:], Deduplicator(window=past.most if shuffled else None))
    assert not Counter(each for each in expected(past.fed) if each not in past.fed[:first]) - Counter(found)


def _mark_by_output_partition_alone(origin: Origin) -> Origin:
    return replace(origin, source=("id", 0, origin.source[2]))


def _no_timeline(origin: Origin) -> Origin:
    return replace(origin, timeline=1)


def _timeline_by_source_partition(origin: Origin) -> Origin:
    return replace(origin, stream=f"{origin.stream}{origin.source[1]}")


def _no_ordinal(origin: Origin) -> Origin:
    return replace(origin, ordinal=0)


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize(
    "mutant", [_mark_by_output_partition_alone, _no_timeline, _timeline_by_source_partition, _no_ordinal]
)
def test_the_histories_find_a_key_that_lacks_something(mutant: Changed, shuffled: bool) -> None:
    window = {True: lambda past: past.most, False: lambda past: None}[shuffled]
    assert _noticed_thrice(range(500), shuffled, window, mutant)


def _noticed_thrice(
    seeds: Iterable[int], shuffled: bool, window: Callable[[History], int | None], mutant: Changed
) -> bool:
    """Check that three histories show the fault; try no more of them than that takes."""
    pasts = (history(seed, shuffled) for seed in seeds)
    noticed = (
        past for past in pasts if passed(past.fed, Deduplicator(window=window(past)), mutant) != expected(past.fed)
    )
    return len(list(islice(noticed, 3))) == 3


def test_the_histories_find_a_window_that_is_too_small_and_a_mark_where_rows_are_shuffled() -> None:
    narrow = (seed for seed in range(300) if history(seed, True).most > 1)
    assert _noticed_thrice(narrow, True, lambda past: past.most - 1, lambda origin: origin)
    pasts = [history(seed, True) for seed in range(examples(300))]
    marked = sum(passed(past.fed, Deduplicator(), _says_in_order) != expected(past.fed) for past in pasts)
    assert marked > len(pasts) / 3


def _says_in_order(origin: Origin) -> Origin:
    return replace(origin, in_order=True)


@given(st.integers(0, 2**32))
def test_without_a_window_the_first_row_that_keeps_no_order_ends_the_reading(seed: int) -> None:
    rows = Deduplicator()
    for output, origin in history(seed, shuffled=True).fed:
        with pytest.raises(ValueError, match="window=N"):
            rows.is_new("out", output, origin.headers())
    assert rows.state()["partitions"] == []
