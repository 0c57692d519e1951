"""Two real supervisors on two roots with one control database keep a stream to one app, whatever is done to it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.usecases.streams import supervise as streams
from support.stack.control_databases import Databases
from support.streams.two_hosts import STREAM, HostProject, Living, Sampler, alive, living
from support.waiting import Deadline, eventually

PAUSED_SAMPLES = 8
LOOK_SECONDS = 15.0  # how often a running stream's DAG looks at it


@pytest.fixture
def hosts(tmp_path: Path, control_databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HostProject]]:
    monkeypatch.setattr(streams, "newest_elsewhere", lambda platform, stream: 0)
    database = control_databases.create_upgraded()
    made = [HostProject(tmp_path / name, database) for name in ("alpha", "beta")]
    for host in made:
        host.supervise()
    yield made
    for host in made:
        host.close()


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.full)])
def test_one_app_lives_at_a_time_whatever_either_host_is_asked_for(
    hosts: list[HostProject], rounds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = random.Random(53)
    roots = [host.root for host in hosts]
    with Sampler(*roots) as sampler:
        for number in range(rounds):
            chosen.choice(hosts).start()
            before = alive(*hosts)
            if number % 2:
                killed_and_back(chosen, hosts)
            else:
                paused(chosen, hosts, sampler)
                assert [one.epoch for one in alive(*hosts)] == [one.epoch for one in before]
            chosen.choice(hosts).stop(at_once=chosen.random() < 0.5)
            assert living(*roots) == []
            if chosen.random() < 0.5:
                chosen.choice(hosts).adopt()
    with capsys.disabled():
        seen = f"{rounds} rounds, {len(sampler.seen)} apps, {sampler.samples} samples"
        print(f"\n{seen}: two at once for at most {sampler.longest_overlap_seconds:.1f} s")
    assert len(sampler.seen) >= rounds
    assert sampler.longest_overlap_seconds <= LOOK_SECONDS
    claims = hosts[0].platform.control.streams
    attempts = claims.attempts(STREAM, last=1000)
    assert all(attempt.ended_at is not None for attempt in attempts)
    assert {attempt.outcome for attempt in attempts} & {"never started", "host lost"} == set()


def killed_and_back(chosen: random.Random, hosts: list[HostProject]) -> None:
    """Kill the driver, or the app as a whole, and wait for the next epoch."""
    victims = alive(*hosts)
    epoch = victims[0].epoch
    for one in victims if chosen.random() < 0.5 else victims[-1:]:
        os.kill(one.pid, signal.SIGKILL)
    eventually(lambda: alive(*hosts)[0].epoch > epoch, within=Deadline.STREAM, what="the next epoch")


def paused(chosen: random.Random, hosts: list[HostProject], sampler: Sampler) -> None:
    """Stop one supervisor or the app while the others look a few times."""
    victim = chosen.choice([*hosts, None])
    stopped = [] if victim else alive(*hosts)
    signal_to(victim, stopped, signal.SIGSTOP)
    last = sampler.samples + PAUSED_SAMPLES
    eventually(lambda: sampler.samples >= last, within=Deadline.THREAD, what="a few samples")
    signal_to(victim, stopped, signal.SIGCONT)


def signal_to(victim: HostProject | None, apps: list[Living], number: signal.Signals) -> None:
    if victim:
        victim.pause(number)
    for one in apps:
        os.kill(one.pid, number)
