"""Cuts of topics are told with the plan, measured again when it is run, and refused while a reader would lose."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from millrace.declarations import load_pipeline
from millrace.domain.declaration.pipeline import Pipeline
from millrace.domain.groups.snapshots import Snapshot
from millrace.domain.plans.plan import Outcome, Plan, PlanStatus
from millrace.domain.topics.changes import ObservedTopic
from millrace.domain.topics.offsets import TopicPartition
from millrace.errors import RefusedError, UnreachableError
from millrace.ports.platform import Platform
from millrace.usecases.plans import running
from millrace.usecases.retention import cuts
from millrace.usecases.topics import plan as topics
from support.declarations import RETURNS, SHOP, replace_once, valid_project
from support.fakes.logs import LogsPlatform, committed
from support.fakes.topics import DEFAULTS

TOPIC = "shop.purchases"
GROUP, OTHER = "shop-team.purchases", "millrace.returns.items"
NOW = datetime.now(UTC)
P = [TopicPartition(TOPIC, "id-1", number) for number in range(4)]


@pytest.fixture
def fake(tmp_path: Path) -> LogsPlatform:
    """Each of four partitions has 60 records of two days ago, then 40 of an hour ago, and the topic keeps 30 days."""
    made = LogsPlatform(valid_project(tmp_path))
    made.admin.topics = {
        TOPIC: topic(TOPIC, 4, {"retention.ms": str(30 * 86_400_000), "max.message.bytes": "1048576"}),
        "shop.customers": topic("shop.customers", 4, {"cleanup.policy": "compact"}),
    }
    for partition in P:
        made.log.fill(partition, 60, NOW - timedelta(days=2))
        made.log.fill(partition, 40, NOW - timedelta(hours=1))
    made.log.commits = {group: committed(dict.fromkeys(range(4), 100), TOPIC) for group in (GROUP, OTHER)}
    replace_once(tmp_path / SHOP, "replication: 3", "replication: 1")
    return made


def topic(name: str, partitions: int, config: dict[str, str]) -> ObservedTopic:
    defaults = {key: value for key, value in DEFAULTS.items() if key not in config}
    return ObservedTopic(name, "id-1", partitions, 1, config, defaults)


def declared(fake: LogsPlatform, retention: str) -> Pipeline:
    replace_once(fake.root / SHOP, "retention: {time: 7d, size_per_partition: 2GiB}", f"retention: {retention}")
    return load_pipeline(fake.root, "shop")


def plan_of(fake: LogsPlatform, retention: str) -> Plan:
    return topics.make_plan(cast(Platform, fake), declared(fake, retention), by="test")


def run(fake: LogsPlatform, plan: Plan) -> PlanStatus:
    return running.run(cast(Platform, fake), plan.id, actor="test").status


def retention(fake: LogsPlatform) -> str:
    return fake.admin.topics[TOPIC].config["retention.ms"]


def test_a_cut_says_what_it_takes_and_from_whom_and_runs_once_they_have_read_it(fake: LogsPlatform) -> None:
    fake.log.commits[OTHER] = committed({0: 60, 1: 10, 2: 60, 3: 60}, TOPIC)
    plan = plan_of(fake, "{time: 1d}")
    about = dict(plan.about)
    assert about["cut_1"].startswith(
        f"{TOPIC}: deletes at most 240 records, about 23.4 KiB of 4 of its 4 partitions, the"
    )
    assert about["unread_1"].startswith("stream returns.items would lose 50 records that it has not read: ")
    assert "unread_2" not in about
    with pytest.raises(RefusedError, match=rf"returns\.items would lose 50 records .*{TOPIC}/1\[10, 60\)") as caught:
        run(fake, plan)
    assert "millrace streams start returns.items" in caught.value.next_step
    assert plan.id in caught.value.next_step
    assert (fake.plans.get(plan.id).status, retention(fake)) == (PlanStatus.OPEN, str(30 * 86_400_000))
    assert not fake.logged
    fake.log.commits[OTHER] = committed(dict.fromkeys(range(4), 60), TOPIC)
    assert run(fake, plan) is PlanStatus.DONE
    assert retention(fake) == "86400000"


def test_nothing_of_a_plan_is_done_before_all_its_cuts_are_allowed(fake: LogsPlatform) -> None:
    del fake.admin.topics["shop.customers"], fake.log.commits[GROUP]
    with pytest.raises(RefusedError):
        run(fake, plan_of(fake, "{time: 1d}"))
    assert "shop.customers" not in fake.admin.topics


def test_numbers_make_no_other_plan(fake: LogsPlatform) -> None:
    first = plan_of(fake, "{time: 1d}")
    fake.log.starts[P[0]] = 10
    second = topics.propose(cast(Platform, fake), load_pipeline(fake.root, "shop"), by="daily")
    assert first.says_the_same(second)
    assert first.about != second.about


def test_a_plan_is_made_where_nobody_answers_and_run_only_where_they_do(fake: LogsPlatform) -> None:
    fake.log.silent = True
    plan = plan_of(fake, "{time: 1d}")
    assert dict(plan.about)["cuts_not_known"].endswith("kafka: nobody answers")
    with pytest.raises(UnreachableError):
        run(fake, plan)
    assert (fake.plans.get(plan.id).status, retention(fake)) == (PlanStatus.OPEN, str(30 * 86_400_000))
    fake.log.silent = False
    assert run(fake, plan) is PlanStatus.DONE


def test_a_partition_without_a_leader_is_not_taken_for_an_empty_one(fake: LogsPlatform) -> None:
    fake.log.leaderless = {P[2]}
    with pytest.raises(UnreachableError, match=f"{TOPIC}/2"):
        run(fake, plan_of(fake, "{time: 1d}"))


@pytest.mark.parametrize("size", [False, True])
def test_sizes_that_are_not_told_stop_a_cut_by_size_alone(fake: LogsPlatform, size: bool) -> None:
    def none(at: datetime) -> Snapshot:
        raise UnreachableError("this client cannot", where="kafka")

    fake.log.snapshot = none  # type: ignore[method-assign]
    plan = plan_of(fake, "{time: 30d, size_per_partition: 2000B}" if size else "{time: 1d}")
    if size:
        with pytest.raises(UnreachableError, match="this client cannot"):
            run(fake, plan)
    else:
        assert "at most 240 records of 4 of its 4" in dict(plan.about)["cut_1"]
        assert run(fake, plan) is PlanStatus.DONE


def test_what_keeps_longer_asks_nobody(fake: LogsPlatform) -> None:
    plan = plan_of(fake, "{time: 60d}")
    assert (plan.about, fake.log.asked) == ((), [])
    assert run(fake, plan) is PlanStatus.DONE
    assert fake.log.asked == []


def test_by_size_the_last_bytes_are_kept(fake: LogsPlatform) -> None:
    fake.log.commits[GROUP] = committed(dict.fromkeys(range(4), 75), TOPIC)
    plan = plan_of(fake, "{time: 30d, size_per_partition: 2000B}")
    with pytest.raises(RefusedError, match=rf"purchases would lose 20 records .*{TOPIC}/0\[75, 80\)"):
        run(fake, plan)


def test_a_stream_that_starts_at_the_latest_and_whose_commits_expired_is_not_new(fake: LogsPlatform) -> None:
    replace_once(fake.root / SHOP, "start: earliest", "start: latest")
    del fake.log.commits[GROUP]
    plan = plan_of(fake, "{time: 1d}")
    assert not [name for name, _ in plan.about if name.startswith("unread")]
    fake.streams.progress = lambda stream: object()  # type: ignore[assignment,method-assign,return-value]
    with pytest.raises(
        RefusedError, match="purchases would lose 240 records that no commit of its group marks as read"
    ):
        run(fake, plan)


def test_declarations_with_errors_are_named_for_nobody_knows_what_they_read(fake: LogsPlatform) -> None:
    (fake.root / RETURNS).write_text("pipeline: returns\nnonsense: 1\n")
    about = dict(plan_of(fake, "{time: 1d}").about)
    assert RETURNS in about["unread_not_known"]


def test_a_cut_that_is_found_done_is_not_held_against_its_readers(fake: LogsPlatform) -> None:
    plan = plan_of(fake, "{time: 1d}")
    fake.admin.set_config({TOPIC: {"retention.ms": "86400000"}})
    del fake.log.commits[GROUP]
    standings = topics.look(cast(Platform, fake), plan)[1]
    cuts.refuse_losses(cast(Platform, fake), plan, standings)
    [(_, result), *_] = topics.run_changes(cast(Platform, fake), plan, standings)
    assert result.outcome is Outcome.FOUND_DONE
