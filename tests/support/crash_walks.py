"""Walks of crashes: one life is struck at its first call, the next one at its second, and so on.

The first tier takes a third of the calls, another third each day: see `tiers.calls_of_today`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from support.checks import tiers
from support.stack.faults import Life, Moment, Step, crash_at, crash_at_call
from support.waiting import Deadline, at_once

MOST_CALLS = 150
TOGETHER = 8


@dataclass
class Tried:
    """The outcome of striking a life at each of its calls.

    Attributes:
        wrong: what was wrong after each step, where anything was.
        steps: where lives were struck.
        chosen: whether the call of a number was to be struck.
        spared: the numbers of calls that ask no server, so that no answer of theirs could be lost; `local` their names.
        whole: how many calls a life makes that is not struck; the fewest, for one that waits for a server asks again.
        calls: the names of the calls of lives that were not struck.
    """

    chosen: Callable[[int], bool] = tiers.every_call
    wrong: dict[str, list[str]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    spared: list[int] = field(default_factory=list)
    whole: int = MOST_CALLS
    calls: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)

    def note(self, number: int, life: Life, wrong: list[str]) -> None:
        if life.struck:
            self.steps.append(life.struck)
        elif len(life.calls) >= number:
            self.spared.append(number)
            self.local.add(life.calls[number - 1])
        else:
            self.whole = min(self.whole, len(life.calls))
            self.calls |= set(life.calls)
        if wrong:
            self.wrong[str(life.struck or f"call {number}, not struck")] = wrong

    @property
    def is_whole(self) -> bool:
        """True where every call of a life was to be struck."""
        return all(map(self.chosen, range(1, self.whole + 1)))

    def left_out(self) -> list[str]:
        """The names of calls at which nobody was struck: another life waited there, so that its numbers were others."""
        return sorted(self.calls - self.local - {step.call for step in self.steps})

    def must_be_well(self, *calls: str) -> None:
        """Nothing may be wrong, no call of a whole life may have been left out, and these were among them."""
        lines = [f"{step}: {'; '.join(found)}" for step, found in sorted(self.wrong.items())]
        assert not lines, "\n".join([*lines, tiers.told()])
        tried = {*(step.number for step in self.steps), *self.spared}
        to_try = set(filter(self.chosen, range(1, self.whole + 1)))
        assert tried >= to_try, f"of the calls {sorted(to_try)} only {sorted(tried)} were tried"
        struck = {step.call for step in self.steps}
        if self.is_whole:
            assert struck >= set(calls), f"nobody was struck at {sorted(set(calls) - struck)}, only at {sorted(struck)}"
        else:
            assert self.calls >= set(calls), f"no life made the calls {sorted(set(calls) - self.calls)}"


def crash_at_every_call(
    moment: Moment,
    once: Callable[[Life], list[str]],
    *,
    together: int = TOGETHER,
    chosen: Callable[[int], bool] = tiers.calls_of_today,
) -> Tried:
    """Crash one life at its first call, the next at its second: see `strike_at_every_call`.

    If all calls are chosen, a life crashes at least once at each kind of call.

    Args:
        moment: when each is struck at its call.
        once: lives this life in surroundings of its own, goes on as the product would, and says what was wrong.
        together: how many are lived at the same time.
        chosen: whether to strike at the call of a number.
    """
    tried = strike_at_every_call(
        lambda number: crash_at(number, moment), once, moment.value, together=together, chosen=chosen
    )
    for name in tried.left_out() if tried.is_whole else ():
        life = crash_at_call(name, moment)
        if wrong := once(life):
            tried.wrong[str(life.struck or name)] = wrong
        if life.struck:
            tried.steps.append(life.struck)
    return tried


def strike_at_every_call(
    struck_at: Callable[[int], Life],
    once: Callable[[Life], list[str]],
    what: str,
    *,
    together: int = TOGETHER,
    chosen: Callable[[int], bool] = tiers.calls_of_today,
) -> Tried:
    """Strike one life at its first call, the next at its second, until one goes through without being struck.

    Where none of the chosen calls can be struck, all calls are tried: a short life, or answers of local calls.

    Args:
        struck_at: a life that is struck at a call, by its number.
        once: lives this life in surroundings of its own, goes on as the product would, and says what was wrong.
        what: how they are struck.
        together: how many are lived at the same time.
        chosen: whether to strike at the call of a number.

    Raises:
        AssertionError: none goes through, or nobody was ever struck.
    """
    tried = _walk(struck_at, once, what, together, chosen)
    if not tried.steps and not tried.is_whole:
        tried = _walk(struck_at, once, what, together, tiers.every_call)
    assert tried.steps, "nobody was struck: nothing was tried"
    print(f"{what}: struck at {len(tried.steps)} of {tried.whole} calls; {tiers.told()}")
    return tried


def _walk(
    struck_at: Callable[[int], Life],
    once: Callable[[Life], list[str]],
    what: str,
    together: int,
    chosen: Callable[[int], bool],
) -> Tried:
    tried, over, one_at_a_time = Tried(chosen), threading.Event(), threading.Lock()
    numbers = filter(chosen, itertools.count(1))

    def work() -> None:
        while not over.is_set():
            with one_at_a_time:
                number = next(numbers)
            assert number <= MOST_CALLS, f"a life of more than {MOST_CALLS} calls: does it ever end?"
            life = struck_at(number)
            try:
                wrong = once(life)
            except BaseException as error:
                over.set()
                error.add_note(f"{what} call {number}: {life.struck}; {tiers.told()}")
                raise
            with one_at_a_time:
                tried.note(number, life, wrong)
            if life.struck is None and len(life.calls) < number:
                over.set()

    try:
        at_once([work] * together, within=Deadline.STREAM, what=f"a life struck at each call, {what}")
    finally:
        over.set()
    return tried
