"""Crashes in process strike where they say, and a test that uses them cannot pass without striking."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from millrace.errors import UnreachableError
from support.checks import tiers
from support.checks.tiers import every_call
from support.crash_walks import MOST_CALLS, crash_at_every_call
from support.stack.faults import Crash, Life, Moment, crash_at, crash_at_call


class Server:
    def __init__(self) -> None:
        self.done: list[str] = []
        self.hung_up = 0

    def write(self, what: str) -> str:
        self.done.append(what)
        return what

    def close(self) -> None:
        self.done.append("close")

    @contextmanager
    def holding(self) -> Iterator[str]:
        self.done.append("held")
        yield "lock"
        self.done.append("freed")

    def hang_up(self) -> None:
        self.hung_up += 1


def lived(server: Server, life: Life, calls: int = 3) -> str:
    """Some writes, whose every ordinary error is swallowed, and an end in order."""
    adapter = life.watch("server", server, hang_up=server.hang_up, local=("close",), blocks=("holding",))
    try:
        for number in range(calls):
            with suppress(Exception):
                adapter.write(str(number))
    except Crash:
        return "crashed"
    finally:
        with suppress(Crash):
            adapter.close()
    return "ended"


@pytest.mark.parametrize(
    ("moment", "end", "done"),
    [
        (Moment.BEFORE, "crashed", ["0"]),
        (Moment.AFTER, "crashed", ["0", "1"]),
        (Moment.ANSWER_LOST, "ended", ["0", "1", "2", "close"]),
    ],
)
def test_a_life_is_struck_at_its_call_and_the_dead_do_nothing(moment: Moment, end: str, done: list[str]) -> None:
    server, life = Server(), crash_at(2, moment)
    assert lived(server, life) == end
    assert server.done == done
    assert server.hung_up == 1
    assert str(life.struck) == f"{moment.value} call 2, server.write"


def test_the_caller_of_a_lost_answer_is_told_so() -> None:
    server = Server()
    adapter = crash_at_call("server.write", Moment.ANSWER_LOST, occurrence=2).watch("server", server)
    adapter.write("first")
    with pytest.raises(UnreachableError, match=r"the answer of server\.write was lost"):
        adapter.write("second")
    assert server.done == ["first", "second"]


def test_entering_a_block_is_a_call() -> None:
    server, life = Server(), crash_at(1, Moment.BEFORE)
    adapter = life.watch("server", server, blocks=("holding",))
    with pytest.raises(Crash), adapter.holding():
        pass
    assert server.done == []
    whole = Life().watch("server", server, blocks=("holding",))
    with whole.holding() as found:
        assert found == "lock"
    assert server.done == ["held", "freed"]


def even(number: int) -> bool:
    return number % 2 == 0


@pytest.mark.parametrize("moment", Moment)
def test_every_call_is_tried_once(moment: Moment) -> None:
    tried = crash_at_every_call(moment, lambda life: [] if lived(Server(), life) else ["nothing"], chosen=every_call)
    tried.must_be_well("server.write")
    assert [str(step) for step in sorted(tried.steps, key=lambda step: step.number)] == [
        f"{moment.value} call {number}, server.{'close' if number == 4 else 'write'}"
        for number in range(1, 4 if moment is Moment.ANSWER_LOST else 5)
    ]
    with pytest.raises(AssertionError, match=r"nobody was struck at \['server.read'\]"):
        tried.must_be_well("server.read")


def test_a_part_of_the_calls_is_tried_where_it_is_chosen() -> None:
    tried = crash_at_every_call(Moment.AFTER, lambda life: [] if lived(Server(), life, 6) else ["nothing"], chosen=even)
    tried.must_be_well("server.write", "server.close")  # the seventh call closes, and nobody crashes there
    assert sorted(step.number for step in tried.steps) == [2, 4, 6]
    with pytest.raises(AssertionError, match=r"no life made the calls \['server.read'\]"):
        tried.must_be_well("server.read")


def test_a_chosen_call_that_nobody_tried_is_missed() -> None:
    tried = crash_at_every_call(Moment.AFTER, lambda life: [] if lived(Server(), life, 6) else ["nothing"], chosen=even)
    tried.steps.pop()
    with pytest.raises(AssertionError, match="were tried"):
        tried.must_be_well()


def test_a_life_that_is_struck_at_none_of_the_chosen_calls_is_struck_at_all() -> None:
    tried = crash_at_every_call(Moment.AFTER, lambda life: [] if lived(Server(), life, 0) else ["nothing"], chosen=even)
    tried.must_be_well("server.close")  # its only call is the first
    assert [step.number for step in tried.steps] == [1]


def test_three_days_choose_every_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "everything", False)
    chosen = []
    for day in (740_000, 740_001, 740_002):
        monkeypatch.setattr(tiers, "_day", day)
        chosen += list(filter(tiers.calls_of_today, range(1, 31)))
    assert sorted(chosen) == list(range(1, 31))


def test_the_second_tier_tries_all_calls_and_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "everything", True)
    assert list(filter(tiers.calls_of_today, range(1, 31))) == list(range(1, 31))
    assert tiers.examples(100) == 100
    monkeypatch.setattr(tiers, "everything", False)
    assert tiers.examples(100) == 34


def test_one_that_waits_for_a_server_and_asks_again_makes_more_calls_than_a_whole_life() -> None:
    lives = itertools.count(1)

    def once(life: Life) -> list[str]:
        lived(Server(), life, 6 if next(lives) == 5 else 3)
        return []

    tried = crash_at_every_call(Moment.AFTER, once, together=1, chosen=every_call)
    tried.must_be_well("server.write")
    assert [step.number for step in tried.steps] == [1, 2, 3, 4, 5]


def test_a_call_that_others_came_before_in_the_life_of_its_number_is_struck_by_its_name() -> None:
    lives = itertools.count(1)

    def once(life: Life) -> list[str]:
        lived(Server(), life, 5 if next(lives) == 4 else 3)  # the fourth call of the fourth life is not its end
        return []

    tried = crash_at_every_call(Moment.AFTER, once, together=1, chosen=every_call)
    tried.must_be_well("server.write", "server.close")
    assert [str(step) for step in tried.steps][3:] == ["after call 4, server.write", "after call 4, server.close"]


def test_what_was_wrong_is_told_with_its_step() -> None:
    def once(life: Life) -> list[str]:
        lived(Server(), life)
        return ["a row is lost"] if life.struck and life.struck.number == 2 else []

    with pytest.raises(AssertionError, match=r"after call 2, server\.write: a row is lost"):
        crash_at_every_call(Moment.AFTER, once, chosen=every_call).must_be_well()


def test_lives_that_make_no_call_try_nothing() -> None:
    with pytest.raises(AssertionError, match="nobody was struck"):
        crash_at_every_call(Moment.AFTER, lambda life: [], chosen=every_call)


def test_lives_that_never_go_through_are_bounded() -> None:
    with pytest.raises(AssertionError, match=f"a life of more than {MOST_CALLS} calls"):
        crash_at_every_call(Moment.AFTER, lambda life: [lived(Server(), life, MOST_CALLS + 1)], chosen=every_call)
