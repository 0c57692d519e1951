"""The proof against a judge who knows everything: logs that live, a backup that dies, and every offset asked about."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest

from millrace.adapters.archive.audits import inspection
from millrace.adapters.archive.audits.inspection import inspect
from millrace.adapters.archive.chain import add, read_on
from millrace.adapters.archive.summaries import put_summary, resume
from millrace.adapters.chain import links as chain_links
from millrace.adapters.chain.links import Link, links
from millrace.domain.archive.proof.coverage import Coverage, Verdict
from millrace.domain.archive.proof.partition import Label, PartitionState, Tile
from millrace.domain.archive.proof.summary import PartitionSummary
from millrace.domain.archive.proof.tiling import ObservedLog, Tiling
from support.archive.judge import flatten, judge
from support.archive.model import Life, World
from support.archive.mutants import MUTANTS, Fault, keeps_as_it_was
from support.checks.tiers import examples
from support.same_thread import SameThread

STORIES, SECOND_TIER = 150, 5_150
EVENTS = 150
NOTICED = (AssertionError, ValueError)
"""A story that goes wrong, and what the package refuses with."""


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is in memory; to hand each object from thread to thread took longer than all the rest."""
    for module in (chain_links, inspection):
        monkeypatch.setattr(module, "ThreadPoolExecutor", SameThread)


def story(seed: int, counts: Counter[str]) -> list[str]:
    """One world, audited at times and in the end; what is wrong with what is said of it."""
    dice = random.Random(seed)
    world = World(dice, counts, compacted=dice.random() < 0.5)
    wrong: list[str] = []
    for _ in range(EVENTS):
        world.happen() if dice.random() < 0.25 else world.step()
        if dice.random() < 0.03:
            world.store.calm = True
            wrong += audit(world, dice.choice(world.lives), dice)
            wrong += audit_beside_the_living(world, dice)
            world.store.calm = False
    world.store.calm = True
    for life in world.lives:
        wrong += audit(world, life, dice)
    return wrong


def audit(world: World, life: Life, dice: random.Random) -> list[str]:
    """Prove one incarnation from its beginning, have the labels judged, and prove it again from the last summary."""
    tiling = Tiling(life.incarnation)
    tiles: list[Tile] = []
    for link in links(world.store, life.incarnation):
        assert isinstance(link, Link)
        tiles += added(tiling, link)
    log = ObservedLog(world.now, None, {}) if life.gone else world.look(whole=True)
    coverage = tiling.end(log)
    wrong = [str(problem) for problem in tiling.problems.found]
    wrong += judge(
        world,
        life,
        labels_of(tiles, coverage),
        late_of(tiles),
        broken=coverage.verdict is Verdict.BROKEN,
        pending=coverage.verdict is Verdict.PENDING,
        counts=world.counts,
    )
    wrong += two_ways(tiles, coverage)
    wrong += of_the_summary(world, life, tiling, log, coverage, dice)
    return wrong


def audit_beside_the_living(world: World, dice: random.Random) -> list[str]:
    """Log and backup go on while an archive is looked at, between any two looks: no object may be missed for that."""

    def look() -> ObservedLog:
        for _ in range(dice.randint(0, 6)):
            world.happen() if dice.random() < 0.25 else world.step()
        return world.look() if world.life is life else ObservedLog(world.now, None, {})

    life = world.life
    found = inspect(world.store, resume(world.store, life.incarnation), look)
    world.counts["looked at beside the living"] += 1
    wrong = [str(problem) for problem in found.coverage.problems.found]
    wrong += [
        str(stray) for stray in found.foreign.found if "it is no object:" not in str(stray)
    ]  # it holds no Parquet
    for part in found.coverage.partitions:
        log = life.partitions[part.partition]
        for tile in part.tiles:
            if tile.label is Label.LOST and not life.gone and tile.next > log.most_start:
                wrong.append(f"{tile} is in a log that never began later than {log.most_start}")
            if tile.label is Label.DIVERGED and not log.cut >= set(range(tile.first, tile.next)):
                wrong.append(f"{tile} was never cut off")
    return wrong


def added(tiling: Tiling, link: Link) -> list[Tile]:
    """The tiles that a link of the chain brings."""
    found: list[Tile] = []
    plain = tiling.add
    tiling.add = lambda *given: found.extend(plain(*given)) or found  # type: ignore[method-assign,func-returns-value]
    add(tiling, link)
    del tiling.add  # type: ignore[method-assign]
    return found


def labels_of(tiles: list[Tile], coverage: Coverage) -> dict[tuple[int, int], str]:
    """A label an offset: the last that a tile gives, or the log as it is now."""
    told = [tile for part in coverage.partitions for tile in part.tiles]
    return flatten((tile.partition, tile.first, tile.next, tile.label) for tile in [*tiles, *told])


def two_ways(tiles: list[Tile], coverage: Coverage) -> list[str]:
    """What the coverage says of what is archived must be what the tiles said, but for what the log says now."""
    by_tiles = flatten((tile.partition, tile.first, tile.next, tile.label) for tile in tiles)
    wrong: list[str] = []
    for part in coverage.partitions:
        told = flatten((tile.partition, tile.first, tile.next, tile.label) for tile in part.tiles)
        archived = {place: label for place, label in by_tiles.items() if place[0] == part.partition}
        for place, label in archived.items():
            kept = Label.DATA if label in (Label.DATA, Label.HOLE) else label
            if told.get(place, Label.DATA) not in (kept, Label.DIVERGED):
                wrong.append(f"{place} is {label} by the tiles, {told.get(place)} by the coverage")
        held = sum(label in (Label.DATA, Label.HOLE) for label in archived.values())
        cut_off = sum(label is Label.DIVERGED for label in archived.values())
        if not held <= part.records + part.holes <= held + cut_off:
            wrong.append(f"{held} of {part.partition} by the tiles, {part.records} + {part.holes} by the coverage")
    return wrong


def late_of(tiles: list[Tile]) -> set[tuple[int, int]]:
    return set(flatten((t.partition, t.first, t.next, t.label) for t in tiles if t.label is Label.HOLE and t.cause))


def of_the_summary(
    world: World, life: Life, tiling: Tiling, log: ObservedLog, coverage: Coverage, dice: random.Random
) -> list[str]:
    """Whoever goes on from a summary must come to the same as who begins at the beginning."""
    shorter = resume(world.store, life.incarnation)
    read_on(world.store, shorter)
    both = [[PartitionSummary.of(state) for _, state in sorted(each.partitions.items())] for each in (tiling, shorter)]
    wrong = [] if both[0] == both[1] else [f"from the summary it is {both[1]}, from the beginning {both[0]}"]
    if (shorter.head, shorter.end(log).verdict) != (tiling.head, coverage.verdict):
        wrong.append("from the summary the verdict or the head is another")
    if coverage.verdict is not Verdict.BROKEN and tiling.head.sequence >= 0 and dice.random() < 0.5:
        put_summary(world.store, tiling)
        world.counts["summary"] += 1
    return wrong


def first_tier() -> list[int]:
    """The first stories, and each of the others in which a mutant is first noticed."""
    return sorted({*range(examples(STORIES)), *(param.values[3] for param in MUTANTS)})


def tell(seeds: Iterable[int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        wrong = story(seed, counts)
        assert not wrong, f"story {seed}: " + "; ".join(wrong[:5])
    return counts


def show(counts: Counter[str], capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


def test_no_false_alarm_no_offset_without_a_label_every_record_once(capsys: pytest.CaptureFixture[str]) -> None:
    show(tell(first_tier()), capsys)


@pytest.mark.full
def test_the_same_in_many_more_stories(capsys: pytest.CaptureFixture[str]) -> None:
    show(tell(range(STORIES, STORIES + SECOND_TIER)), capsys)


@pytest.mark.parametrize(("owner", "name", "fault", "noticed_in"), MUTANTS)
def test_a_fault_in_the_proof_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, fault: Fault, noticed_in: int
) -> None:
    """A mutant dies in its own story: the story goes wrong, or the package refuses what the mutant does.

    The first tier holds the story. A `TypeError` or an `AttributeError` shows that the mutant no longer fits the
    function that it replaces.
    """
    assert noticed_in in first_tier()
    monkeypatch.setattr(owner, name, fault(getattr(owner, name)))
    with pytest.raises(NOTICED):
        tell([noticed_in])


def test_a_fault_that_no_longer_fits_its_function_is_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionState, "see", lambda self: [])
    with pytest.raises(TypeError, match="positional argument"):
        test_a_fault_in_the_proof_is_noticed(monkeypatch, PartitionState, "see", keeps_as_it_was("cut"), 0)
    monkeypatch.delattr(PartitionState, "see")
    with pytest.raises(AttributeError, match="see"):
        test_a_fault_in_the_proof_is_noticed(monkeypatch, PartitionState, "see", keeps_as_it_was("cut"), 0)
