"""Whatever snapshots saw, a group is judged, and what holds of every judgement holds."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from millrace.domain.groups.commits import Committed
from millrace.domain.groups.risks import risks
from millrace.domain.groups.snapshots import GroupSeen, GroupType, LogSeen, Member, Snapshot, TopicSeen
from millrace.domain.groups.status import Status, judge
from support.groups.worlds import BEGAN, history_of

OFFSETS = st.integers(0, 5)
LOGS = st.one_of(st.none(), st.tuples(OFFSETS, OFFSETS, OFFSETS, OFFSETS))


@st.composite
def moments(draw: st.DrawFn) -> tuple[int, dict[str, TopicSeen], GroupSeen | None]:
    """A pause, topics and one group, none of which need go together with those before."""
    topics = {}
    for name in draw(st.sets(st.sampled_from(["orders", "other"]))):
        logs = [LogSeen(*log) if log else None for log in draw(st.lists(LOGS, max_size=3))]
        topics[name] = TopicSeen(draw(st.sampled_from(["id-1", "id-2"])), tuple(logs))
    partitions = st.tuples(st.sampled_from(["orders", "other", "gone"]), st.integers(0, 3))
    commits = draw(st.one_of(st.none(), st.dictionaries(partitions, OFFSETS.map(Committed), max_size=4)))
    members = draw(
        st.one_of(
            st.none(),
            st.lists(st.one_of(st.none(), st.lists(partitions, max_size=3, unique=True).map(tuple)), max_size=2).map(
                lambda owned: tuple(Member(str(n), "rdkafka", "host", None, own) for n, own in enumerate(owned))
            ),
        )
    )
    kind = draw(st.sampled_from(list(GroupType)))
    group = draw(st.one_of(st.none(), st.just(GroupSeen("g", kind, "Stable", "", members, commits))))
    return draw(st.sampled_from([1, 60, 60, 60, 3600])), topics, group


# the last stable offset is asked for after the end: a record came between the two
CAME_BETWEEN = [
    (1, {"orders": TopicSeen("id-1", (LogSeen(0, 0, 0, 0),))}, None),
    (
        1,
        {"orders": TopicSeen("id-1", (LogSeen(0, 0, 1, 0),))},
        GroupSeen("g", GroupType.CLASSIC, "Stable", "", None, {("orders", 0): Committed(0)}),
    ),
]


@example(CAME_BETWEEN)
@given(st.lists(moments(), min_size=1, max_size=12))
def test_a_group_is_judged_whatever_was_seen(life: list[tuple[int, dict[str, TopicSeen], GroupSeen | None]]) -> None:
    second, snapshots = 0, []
    for pause, topics, group in life:
        second += pause
        at = BEGAN + timedelta(seconds=second)
        snapshots.append(Snapshot(at, "c", topics, {"g": group} if group else {}))
        if group is None:
            continue
        reading = judge(group, snapshots[-1], history_of(snapshots))
        for risk in risks(reading, snapshots[-1], history_of(snapshots)):
            assert risk.detail
        assert reading.lag is None or reading.lag >= 0
        if reading.time_lag is not None:
            assert timedelta(0) <= reading.time_lag.behind <= at - BEGAN
        if reading.status is Status.STUCK:
            assert group.members
        if reading.status is Status.STOPPED:
            assert group.members == ()
        for one in reading.partitions:
            assert one.changed_at is None or BEGAN < one.changed_at <= at
            if one.lag is not None and one.lag <= 0:
                assert one.time_lag is None or not one.time_lag.behind
        for rate in (reading.rate_in, reading.rate_out):
            assert rate is None or rate >= 0
