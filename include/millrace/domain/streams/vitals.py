"""Whether a living app gets on: judged by what it last said of itself, not by its processes alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

STUCK_AFTER = timedelta(minutes=2)
LONGEST_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a driver last said of itself; durations are up to then, by a clock that no machine's date changes.

    Attributes:
        starting_for: how long it has been on its way to its first batch; None where that is behind it.
        step: what it is at, in words; empty where it has said nothing yet.
        step_since: since when, for people.
        silent: how long ago that was; its heartbeat is apart from its batches.
        jvm_silent: how long Spark's JVM has not answered it.
        batch_for: how long the batch in flight has lasted; None where there is none.
        longest_batch: the longest of the last hour.
        behind: records up to the last stable offset that no batch has taken up; None where the brokers do not say.
        behind_for: how long that has been so without a batch.
        waits_for: what the step waits for, in words; empty where that is not known.
        notice: what people should know though it gets on.
        ending_for: how long it has been ending of itself, without a batch in flight; None where it is not.
        bound: how long any of this may last.
    """

    starting_for: timedelta | None = None
    step: str = ""
    step_since: datetime | None = None
    silent: timedelta = timedelta()
    jvm_silent: timedelta = timedelta()
    batch_for: timedelta | None = None
    longest_batch: timedelta = timedelta()
    behind: int | None = 0
    behind_for: timedelta = timedelta()
    waits_for: str = ""
    notice: str = ""
    ending_for: timedelta | None = None
    bound: timedelta = STUCK_AFTER

    @property
    def doing(self) -> str:
        """What it is at and what that waits for; the same text for as long as nothing changes."""
        since = f" since {self.step_since:%H:%M:%S} UTC" if self.step_since else ""
        waits = f", waits for {self.waits_for}" if self.waits_for else ""
        return f"{self.step or 'no report yet'}{since}{waits}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an app gets nowhere.

    Attributes:
        why: for people.
        restart: the app itself does not answer, so that only its next epoch can.
        fault: which kind of trouble, in a word that stays the same from look to look.
    """

    why: str
    restart: bool
    fault: str


def trouble(vitals: Vitals, *, patience: int = 1) -> Trouble | None:
    """What keeps an app from getting on, once that has lasted for longer than it may; None where it does get on.

    Its own signs of life have the bound as it is; batches may take five times the longest of the last hour. Who waits
    for others, for a lock in the sink say, is told and left alone: a new epoch would wait in the same place.

    Args:
        vitals: what the app last said of itself.
        patience: how many times the bound a start may take.
    """
    bound = vitals.bound
    if vitals.silent > bound:
        return Trouble(f"its driver does not answer; its last report: {vitals.doing}", restart=True, fault="driver")
    if vitals.jvm_silent > bound:
        return Trouble(f"Spark's JVM does not answer its driver: {vitals.doing}", restart=True, fault="jvm")
    if vitals.starting_for is not None:
        late = vitals.starting_for > patience * bound
        why = f"it does not finish its start: {vitals.doing}"
        return Trouble(why, restart=not vitals.waits_for, fault="starting") if late else None
    if vitals.ending_for is not None and vitals.ending_for > bound:
        return Trouble(f"it does not end: {vitals.doing}", restart=True, fault="ending")
    longest = max(bound, LONGEST_BATCHES * vitals.longest_batch)
    if vitals.batch_for is not None and vitals.batch_for > longest:
        return Trouble(vitals.doing, restart=False, fault="batch")
    if vitals.behind_for > longest:
        waiting = "an unknown number of" if vitals.behind is None else f"{vitals.behind:,}"
        return Trouble(f"no batch begins, and {waiting} records wait: {vitals.doing}", restart=False, fault="no batch")
    return None
