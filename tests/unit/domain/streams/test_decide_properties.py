"""A small world obeys `decide` and is disturbed at random: what must hold whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.domain.streams.supervision import (
    FIRST_BACKOFF,
    GRACE,
    SETTLING,
    Adopt,
    Attempt,
    Desired,
    DesiredState,
    Drain,
    ExitReason,
    GiveUp,
    Kill,
    LivingApp,
    Nothing,
    Observed,
    Start,
    Wait,
    decide,
)
from support.checks.tiers import examples

BEGIN = datetime(2026, 5, 1, tzinfo=UTC)
TICK = timedelta(seconds=2)
CODES = [None, 137, 143, *ExitReason]


@dataclass
class World:
    """One stream. `deaf` apps do not end when asked; every third submit loses its answer."""

    now: datetime = BEGIN
    desired: Desired = field(default_factory=lambda: Desired(DesiredState.STOPPED, 0))
    apps: list[LivingApp] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    starts: list[datetime] = field(default_factory=list)
    declared: bool = True
    deaf: bool = False
    stop_wished_at: datetime | None = None

    def tick(self) -> None:
        self.now += TICK
        self._record_lost()
        action = decide(self.desired, Observed(self.apps, self.attempts, self.declared), self.now)
        self._check(action)
        self._obey(action)
        if not self.deaf:
            for app in [app for app in self.apps if app.stopping_since]:
                self.end(app.epoch, 0)

    def _check(self, action: object) -> None:
        if isinstance(action, Start):
            assert not self.apps, "started beside a living app"
            assert self.declared
            assert self.desired.state is DesiredState.RUNNING
            assert all(attempt.epoch < action.epoch for attempt in self.attempts), "an epoch twice"
        if isinstance(action, Drain | Kill) and self.desired.state is DesiredState.RUNNING:
            newest = max(app.epoch for app in self.apps)
            ended = next(app for app in self.apps if app.epoch == action.epoch)
            assert action.epoch < newest or ended.stopping_since, "the newest app was ended though it is wanted"
        if isinstance(action, Wait):
            assert action.until > self.now, "a wait for the past is a hot loop"

    def _obey(self, action: object) -> None:
        match action:
            case Start(epoch=epoch):
                self.starts.append(self.now)
                self.desired = replace(self.desired, epoch=epoch)
                answered = epoch % 3 != 0
                self.attempts.append(Attempt(epoch, self.now, answered))
                if epoch % 5 != 0:
                    self.apps.append(LivingApp(epoch))
            case Drain(epoch=epoch):
                self.apps = [replace(app, stopping_since=self.now) if app.epoch == epoch else app for app in self.apps]
            case Kill(epoch=epoch):
                self.end(epoch, 137)
            case Adopt() | Wait() | GiveUp() | Nothing():
                pass

    def _record_lost(self) -> None:
        alive = {app.epoch for app in self.apps}
        for attempt in list(self.attempts):
            late = attempt.answered or self.now >= attempt.submitted_at + SETTLING
            if attempt.ended_at is None and attempt.epoch not in alive and late:
                self._note(attempt, None)

    def end(self, epoch: int, code: int | None) -> None:
        self.apps = [app for app in self.apps if app.epoch != epoch]
        for attempt in list(self.attempts):
            if attempt.epoch == epoch and attempt.ended_at is None:
                self._note(attempt, code)

    def _note(self, attempt: Attempt, code: int | None) -> None:
        self.attempts.remove(attempt)
        self.attempts.append(replace(attempt, ended_at=self.now, exit_code=code))

    def old_app_appears(self) -> None:
        """As one does whose submit was thought lost."""
        oldest = min((attempt.epoch for attempt in self.attempts), default=None)
        if oldest is not None and len(self.apps) < 3 and all(app.epoch != oldest for app in self.apps):
            self.apps.append(LivingApp(oldest))

    def wish(self, state: DesiredState) -> None:
        reset = self.now if state is DesiredState.RUNNING else self.desired.backoff_reset_at
        self.desired = replace(self.desired, state=state, changed_at=self.now, backoff_reset_at=reset)


EVENTS = st.one_of(
    st.tuples(st.just("tick"), st.integers(1, 60)),
    st.tuples(st.just("crash"), st.sampled_from(CODES)),
    st.tuples(st.just("wish"), st.sampled_from(list(DesiredState))),
    st.tuples(st.just("deaf"), st.booleans()),
    st.tuples(st.just("declared"), st.booleans()),
    st.tuples(st.just("old app appears"), st.just(0)),
)


def play(world: World, events: list[tuple[str, object]]) -> None:
    for name, value in events:
        match name:
            case "tick":
                for _ in range(int(str(value))):
                    world.tick()
            case "crash":
                for app in world.apps[:1]:
                    world.end(app.epoch, value if value is None else int(str(value)))
            case "wish":
                world.wish(DesiredState(str(value)))
            case "deaf":
                world.deaf = bool(value)
            case "declared":
                world.declared = bool(value)
            case _:
                world.old_app_appears()


@settings(max_examples=examples(150))
@given(st.lists(EVENTS, max_size=25))
def test_no_start_beside_a_living_app_no_epoch_twice_no_wait_for_the_past(events: list[tuple[str, object]]) -> None:
    play(World(), events)  # the world asserts at each step


@settings(max_examples=examples(100))
@given(st.lists(EVENTS, max_size=20), st.booleans())
def test_a_stop_always_ends_within_the_grace_of_each_app(events: list[tuple[str, object]], deaf: bool) -> None:
    world = World()
    play(world, events)
    world.deaf = deaf
    world.wish(DesiredState.STOPPED)
    for _ in range((len(world.apps) + 1) * (GRACE // TICK + 3)):
        world.tick()
    assert not world.apps
    starts = len(world.starts)
    world.tick()
    assert len(world.starts) == starts


@settings(max_examples=examples(60))
@given(st.sampled_from([None, 1, 10, 11, 12, 17, 137, 0]), st.integers(1, 30))
def test_an_app_that_dies_at_once_is_never_started_in_a_hot_loop(code: int | None, minutes: int) -> None:
    world = World()
    world.wish(DesiredState.RUNNING)
    for _ in range(minutes * 60 // 2):
        world.tick()
        for app in list(world.apps):
            world.end(app.epoch, code)
    gaps = [later - earlier for earlier, later in zip(world.starts, world.starts[1:], strict=False)]
    assert all(gap >= FIRST_BACKOFF for gap in gaps)
    assert len(world.starts) <= 7 + minutes / 5


@settings(max_examples=examples(60))
@given(st.lists(EVENTS, max_size=20))
def test_once_left_alone_a_wanted_stream_runs_exactly_one_app(events: list[tuple[str, object]]) -> None:
    world = World()
    play(world, events)
    world.deaf, world.declared = False, True
    world.wish(DesiredState.RUNNING)
    for _ in range(200):
        world.tick()
    assert len(world.apps) == 1
