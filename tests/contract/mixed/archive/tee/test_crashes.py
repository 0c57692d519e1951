"""A backup that dies at every call of its adapters, or is told that nobody answered: the next epoch makes it whole."""

from __future__ import annotations

import uuid

import pytest

from millrace.embedded.stack import Stack
from millrace.runtime.backup.parts import Parts
from millrace.runtime.backup.tee import Tee
from support.archive.tees import TeeWorld, Topics
from support.crash_walks import crash_at_every_call
from support.drills.backup import wrong_with
from support.stack.faults import Crash, Life, Moment

RECORDS = 6


class _Striking:
    """The parts of one epoch, each call to a server counted."""

    def __init__(self, life: Life, world: TeeWorld) -> None:
        self._life, self._world = life, world

    def parts(self) -> Parts:
        life, world = self._life, self._world
        store = life.watch("store", world.store)
        look, group = world.look, world.group
        return world.parts(
            store=store,
            look=lambda names: life.call("kafka.look", lambda: look(names)),
            committed=lambda partitions: life.call("group.committed", lambda: group.committed(partitions)),
            commit=lambda commits: life.call("group.commit", lambda: group.commit(commits)),
        )


def one_life(life: Life, topics: Topics) -> list[str]:
    """Archive some, be struck, and have the next epoch archive the rest; what is wrong then."""
    name = topics.make(f"e{uuid.uuid4().hex[:8]}", partitions=2)
    world = TeeWorld(topics, [name], topics.platform.objects.store())
    topics.produce(name, 0, [b"a"] * RECORDS)
    topics.transaction(name, 1, [b"b"] * RECORDS, commit=False)
    tee = Tee(_Striking(life, world).parts())

    def live() -> None:
        world.archive_all(tee)
        topics.produce(name, 1, [b"c"] * RECORDS)
        world.archive_all(tee)

    ended = life.lived(live)
    if ended is not None:  # an answer was lost: the same epoch goes on
        world.archive_all(tee)
    topics.produce(name, 0, [b"d"] * RECORDS)
    world.archive_all(world.next_epoch())
    wrong = wrong_with(world, name)
    if world.group.commits[name, 0].offset != topics.end(name, 0):
        wrong.append(f"the group is at {world.group.commits[name, 0].offset}")
    return wrong


FULL = (Moment.BEFORE, Moment.ANSWER_LOST)  # twenty seconds each


@pytest.mark.parametrize(
    "moment",
    [pytest.param(each, id=each.name.lower(), marks=[pytest.mark.full] if each in FULL else []) for each in Moment],
)
def test_whatever_call_a_life_ends_at_every_offset_is_archived_once(kafka: Stack, s3: Stack, moment: Moment) -> None:
    topics = Topics(kafka)
    tried = crash_at_every_call(moment, lambda life: one_life(life, topics))
    tried.must_be_well("store.create", "store.get", "kafka.look", "group.commit", "group.committed")


def test_a_crash_is_no_error_that_a_round_lives_on_after(kafka: Stack, s3: Stack) -> None:
    topics = Topics(kafka)
    name = topics.make(partitions=1)
    topics.produce(name, 0, [b"a"])
    world = TeeWorld(topics, [name], topics.platform.objects.store())

    def dies(names: object) -> object:
        raise Crash("here")

    with pytest.raises(Crash):
        world.next_epoch(look=dies).round()
