"""Topics by day and their forecasts in a real control database: made once a day, judged when their time has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from millrace.adapters.control.store import ControlStore
from millrace.domain.groups.snapshots import LogSeen, Snapshot, TopicSeen
from millrace.domain.retention.forecasts.errors import Comparison
from millrace.domain.retention.forecasts.estimates import HORIZONS, Limits, Now, forecast
from millrace.domain.retention.forecasts.history import MadeForecast, TopicLook, points_of
from millrace.domain.retention.inflow import Point
from millrace.domain.retention.settings import LogSettings
from millrace.usecases.retention import forecasts as usecase
from support.stack.control_databases import ControlDatabase, Databases
from support.waiting import Deadline, at_once

KAFKA = "millrace_kafka"
NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
FOREVER = {"orders": LogSettings(time=None)}


@pytest.fixture(scope="module")
def database(control_databases: Databases) -> ControlDatabase:
    return control_databases.create_upgraded()


@pytest.fixture
def store(database: ControlDatabase, control_databases: Databases) -> Iterator[ControlStore]:
    tables = "topic_day, forecast, forecast_outcome, snapshot, snapshot_topic, snapshot_group, snapshot_commit"
    control_databases.execute(database.owner, f"truncate {tables}")
    opened = ControlStore(database.working)
    yield opened
    opened.close()


@dataclass
class Place:
    """As much of a platform as forecasts need."""

    store: ControlStore

    @property
    def control(self) -> ControlStore:
        return self.store


@pytest.fixture
def place(store: ControlStore) -> Any:
    return Place(store)


def look(day: float, topic: str = "orders", ends: int = 1, topic_id: str = "id-1", size: int = 70) -> TopicLook:
    return TopicLook(topic, topic_id, NOON + day * DAY, ends, 7.5, size, 2)


def made(
    day: float, topic: str = "orders", topic_id: str = "id-1", settings: LogSettings | None = None
) -> MadeForecast:
    at = NOON + day * DAY
    points = [Point(at - n * DAY, 10_000 - 100 * n, 8.0) for n in range(30, -1, -1)]
    return MadeForecast(topic, topic_id, forecast(points, settings or LogSettings(), Now(9_000, 2), at, declared=0.01))


def seen(at: datetime, *ends: int | None, topic_id: str = "id-1", start: int = 0) -> Snapshot:
    logs = tuple(None if end is None else LogSeen(start, end, end, None, (end - start) * 10) for end in ends)
    return Snapshot(at, "c-1", {"orders": TopicSeen(topic_id, logs)}, {})


def test_a_day_keeps_its_latest_look(store: ControlStore) -> None:
    store.forecasts.measure(KAFKA, [look(0, ends=5), look(0.1, ends=6), look(1, ends=7), look(0, "other")])
    store.forecasts.measure(KAFKA, [look(0.05, ends=9)])
    store.forecasts.measure("other_kafka", [look(0, ends=99)])
    store.forecasts.measure(KAFKA, [])
    found = store.forecasts.points(KAFKA, None, NOON - DAY, NOON + DAY)
    assert found == {"orders": [look(0.1, ends=6), look(1, ends=7)], "other": [look(0, "other")]}
    store.forecasts.measure(KAFKA, [look(0.2, ends=2, topic_id="id-2")])
    found = store.forecasts.points(KAFKA, ["orders"], NOON, NOON + DAY / 2)
    assert found == {"orders": [look(0.2, ends=2, topic_id="id-2")]}
    assert store.forecasts.points(KAFKA, ["orders"], NOON + 2 * DAY, NOON + 9 * DAY) == {}


def test_a_forecast_is_kept_as_it_was_made_once_a_day(store: ControlStore) -> None:
    limited = LogSettings(time=timedelta.max, size_bytes=1 << 40)
    first, odd = made(0), made(0, "odd", settings=limited)
    odd = replace(odd, forecast=replace(odd.forecast, limits=Limits(timedelta(days=10_000), 1 << 40, 2)))
    silent = MadeForecast("new", "id-9", forecast([], LogSettings(), Now(0, 1), NOON))
    assert store.forecasts.add(KAFKA, [first, odd, silent]) == 3
    assert store.forecasts.latest(KAFKA) == {"orders": first, "odd": odd, "new": silent}
    assert store.forecasts.add(KAFKA, [made(0.1)]) == 0
    again = made(0.2, topic_id="id-2")
    assert store.forecasts.add(KAFKA, [again]) == 1
    later = made(1)
    store.forecasts.add(KAFKA, [later])
    assert store.forecasts.latest(KAFKA, ["orders"]) == {"orders": later}
    assert store.forecasts.latest(KAFKA, ["orders"], day=NOON.date()) == {"orders": again}
    assert store.forecasts.latest("other_kafka") == {}


def test_an_estimate_is_due_on_its_day_and_judged_once(store: ControlStore) -> None:
    first = made(0)
    store.forecasts.add(KAFKA, [first])
    assert store.forecasts.due(KAFKA, NOON + 6 * DAY) == []
    assert store.forecasts.due(KAFKA, NOON + 7 * DAY) == [], "nobody looked at the topic yet"
    store.forecasts.measure(KAFKA, [look(7, size=8_000), look(30, size=8_100)])
    [due] = store.forecasts.due(KAFKA, NOON + 8 * DAY)
    assert (due.topic, due.topic_id, due.made_at, due.estimate, due.actual.size_bytes) == (
        "orders",
        "id-1",
        NOON,
        first.forecast.estimates[0],
        8_000,
    )
    assert due.limits == first.forecast.limits
    assert store.forecasts.due(KAFKA, NOON + 11 * DAY) == [], "it is left after three days"
    found = Comparison(7, 0.25, True)
    store.forecasts.judge(KAFKA, [(due, found)])
    store.forecasts.judge(KAFKA, [(due, Comparison(7, 0.5, False))])
    assert store.forecasts.due(KAFKA, NOON + 8 * DAY) == []
    assert store.forecasts.errors(KAFKA, NOON + 8 * DAY) == {("orders", "id-1"): [found]}
    assert store.forecasts.errors(KAFKA, NOON + 38 * DAY) == {}
    assert [one.estimate.days for one in store.forecasts.due(KAFKA, NOON + 30 * DAY)] == [30]


def test_old_days_go(store: ControlStore) -> None:
    store.forecasts.measure(KAFKA, [look(0), look(401)])
    store.forecasts.add(KAFKA, [made(0), made(201)])
    assert store.forecasts.tidy(NOON + 200 * DAY) == 0
    assert store.forecasts.tidy(NOON + 201 * DAY) == 1
    assert store.forecasts.tidy(NOON + 401 * DAY) == 1
    assert list(store.forecasts.points(KAFKA, None, NOON, NOON + 500 * DAY)) == ["orders"]


@pytest.mark.full
def test_two_thousand_topics_by_two_writers_at_once(store: ControlStore) -> None:
    """Each writes all topics, in another order: they wait for each other and never for ever."""
    names = [f"topic-{n}" for n in range(2_000)]

    def writing(minute: int) -> Callable[[], int]:
        looks = [look(minute / 1440, name, ends=minute) for name in (names if minute % 2 else reversed(names))]
        one = made(minute / 1440)
        told = [replace(one, topic=name) for name in names]

        def write() -> int:
            store.forecasts.measure(KAFKA, looks)
            return store.forecasts.add(KAFKA, told)

        return write

    kept = at_once([writing(minute) for minute in (1, 2, 3, 4)], within=Deadline.COMMAND, what="2,000 topics")
    assert sorted(kept) == [0, 0, 0, 2_000]
    found = store.forecasts.points(KAFKA, None, NOON, NOON + DAY)
    assert len(found) == 2_000
    assert {tuple(one.ends for one in looks) for looks in found.values()} == {(4,)}
    assert len(store.forecasts.latest(KAFKA)) == 2_000


def test_looks_by_the_hour_are_those_of_the_snapshots(store: ControlStore) -> None:
    """A topic that does not change has no row of its own at most looks; another day begins with a whole snapshot."""
    for minute in range(0, 16 * 60, 20):
        store.snapshots.add(KAFKA, seen(NOON + minute * MINUTE, minute // 60, 5))
    store.snapshots.add(KAFKA, seen(NOON + 16 * HOUR, 20, None))
    found = store.forecasts.hourly(KAFKA, ["orders", "none"], NOON, NOON + 17 * HOUR)
    assert list(found) == ["orders"]
    assert [one.at for one in found["orders"]] == [NOON + n * HOUR for n in range(16)]
    assert [one.ends for one in found["orders"]] == [n + 5 for n in range(16)]
    assert {(one.record_bytes, one.topic_id, one.partitions) for one in found["orders"]} == {(10.0, "id-1", 2)}
    assert store.forecasts.hourly(KAFKA, [], NOON, NOON + DAY) == {}


def live(store: ControlStore, place: Any, hours: int, *, since: int = 0, topic_id: str = "id-1") -> datetime:
    """A snapshot an hour, noted, of a topic that gets 1,000 records of 10 bytes an hour; the time of the last one."""
    for hour in range(since, since + hours + 1):
        own = (hour - (since if topic_id != "id-1" else 0)) * 500
        snapshot = seen(NOON + hour * HOUR, own, own, topic_id=topic_id)
        store.snapshots.add(KAFKA, snapshot)
        assert usecase.note(place, KAFKA, snapshot) == 1
    return NOON + (since + hours) * HOUR


def test_a_topic_is_forecast_from_its_first_day_on_once_a_day(store: ControlStore, place: Any) -> None:
    assert usecase.forecast_all(place, KAFKA, NOON, FOREVER) == {}
    now = live(store, place, 10)
    made = usecase.forecast_all(place, KAFKA, now + MINUTE, FOREVER)
    told = made["orders"].forecast
    assert told.inflow is not None
    assert told.inflow.expected == pytest.approx(240_000)
    assert told.estimates[0].expected == pytest.approx(100_000 + 7 * 240_000, rel=0.01)
    assert usecase.forecast_all(place, KAFKA, now + 30 * MINUTE, FOREVER) == made
    assert usecase.latest(place, KAFKA, now, ["orders", "none"]) == made
    assert usecase.forecast_all(place, KAFKA, now + MINUTE, {}) == {}
    assert usecase.forecast_all(place, KAFKA, now + DAY, FOREVER) == {}, "of no snapshot that is a day old"


def test_two_runs_at_once_make_one_forecast(store: ControlStore, place: Any) -> None:
    now = live(store, place, 5)
    runs = [lambda n=n: usecase.forecast_all(place, KAFKA, now + n * MINUTE, FOREVER) for n in range(4)]
    found = at_once(runs, within=Deadline.COMMAND, what="four forecasts")
    assert all(one == found[0] for one in found)


def test_a_topic_made_again_starts_anew(store: ControlStore, place: Any) -> None:
    now = live(store, place, 5)
    former = usecase.forecast_all(place, KAFKA, now, FOREVER)["orders"]
    now = live(store, place, 4, since=6, topic_id="id-2")
    found = usecase.forecast_all(place, KAFKA, now, FOREVER)["orders"]
    assert (former.topic_id, found.topic_id) == ("id-1", "id-2")
    assert found.forecast.inflow is not None
    assert found.forecast.inflow.expected == pytest.approx(240_000)
    assert found.forecast.size_bytes == 40_000


def test_what_came_of_a_forecast_stands_beside_the_next_one(store: ControlStore, place: Any) -> None:
    now = live(store, place, 9)
    usecase.forecast_all(place, KAFKA, now, FOREVER)
    now = live(store, place, 24, since=8 * 24 + 9 - 48)
    [first] = usecase.forecast_all(place, KAFKA, now, FOREVER)["orders"].past
    assert (first.days, first.within, first.count) == (7, 1, 1)
    assert first.error < 0.05
    assert usecase.latest(place, KAFKA, now)["orders"].past == (first,)


def test_nothing_is_judged_by_other_limits_than_it_counted_on(store: ControlStore, place: Any) -> None:
    now = live(store, place, 9)
    usecase.forecast_all(place, KAFKA, now, FOREVER)
    now = live(store, place, 0, since=7 * 24 + 9)
    cut = {"orders": LogSettings(time=DAY)}
    assert usecase.forecast_all(place, KAFKA, now, cut)["orders"].past == ()
    assert [one.estimate.days for one in store.forecasts.due(KAFKA, now)] == [HORIZONS[0].days]


def test_a_topic_with_an_unknown_partition_is_left_out(store: ControlStore, place: Any) -> None:
    assert usecase.note(place, KAFKA, seen(NOON, 5, None)) == 0
    assert store.forecasts.points(KAFKA, None, NOON, NOON) == {}


def test_what_a_record_took_is_known_of_an_empty_topic_too() -> None:
    empty = replace(look(1, ends=9), record_bytes=None)
    first = replace(look(0), record_bytes=None)
    points = points_of([empty, look(0.5, ends=4), first, look(2, topic_id="id-2")], "id-1")
    assert points == [Point(NOON, 1, 7.5), Point(NOON + DAY / 2, 4, 7.5), Point(NOON + DAY, 9, 7.5)]
