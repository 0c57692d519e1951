"""Circles of streams: records that a stream has caused, and that come back to it through others.

A stream that reads what it writes leaves its own records out. It does not know those of others, so records would go
round a circle of several streams without end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Node = int | str
"""A stream, by its index, or a topic, by its name."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Which topics of one cluster a stream reads and writes, each once."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def circles(flows: Sequence[Flow]) -> Iterator[list[int]]:
    """Circles of several streams, one for each stream without which there would be none.

    What it takes of time and memory grows as the flows do, but for the circles' own lengths.

    Args:
        flows: the streams, those first that come first where it can be one or another. Streams outside a circle change
            nothing about what is said of it.

    Returns:
        Of each circle the indexes of its streams: each writes what the following one reads, the last one what the first
        one reads. The first is the one to refuse; where all those are, the rest is free of circles. Of streams that
        are in one circle alone that is the last.
    """
    readers, writers = defaultdict(list), defaultdict(list)
    for index, flow in enumerate(flows):
        for topic in flow.reads:
            readers[topic].append(index)
        for topic in flow.writes:
            writers[topic].append(index)
    forward: dict[Node, Sequence[Node]] = {index: flow.writes for index, flow in enumerate(flows)} | {**readers}
    backward: dict[Node, Sequence[Node]] = {index: flow.reads for index, flow in enumerate(flows)} | {**writers}
    for knot in _knots(forward, backward):
        streams = sorted(node for node in knot if isinstance(node, int))
        if len(streams) > 1:
            yield from _closing({index: flows[index] for index in streams})


def _knots(forward: Mapping[Node, Sequence[Node]], backward: Mapping[Node, Sequence[Node]]) -> Iterator[list[Node]]:
    """The sets of nodes of which each can be reached from each other one (Kosaraju's algorithm)."""
    seen: set[Node] = set()
    left = [node for start in forward for node in _walk(start, forward, seen)]
    seen = set()
    for start in reversed(left):
        yield [*_walk(start, backward, seen)]


def _walk(start: Node, edges: Mapping[Node, Sequence[Node]], seen: set[Node]) -> Iterator[Node]:
    """What can be reached from a node and was not seen yet, each one when all behind it are done."""
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(edges.get(start, ())))]
    while path:
        node, onward = path[-1]
        following = next((each for each in onward if each not in seen), None)
        if following is None:
            path.pop()
            yield node
        else:
            seen.add(following)
            path.append((following, iter(edges.get(following, ()))))


def _closing(knot: Mapping[int, Flow]) -> Iterator[list[int]]:
    """The streams that would close a circle with those let through before, depth first, each with its circle.

    The walk begins behind the last stream, so that of one circle this is the one that closes it.
    """
    waiting: dict[str, list[int]] = defaultdict(list)  # by topic, its readers that nobody has come to, the first last
    for stream in sorted(knot, reverse=True):
        for topic in knot[stream].reads:
            waiting[topic].append(stream)
    last = max(knot)
    behind = min(reader for topic in knot[last].writes for reader in waiting[topic] if reader != last)
    seen: set[int] = set()
    path: list[int] = []
    reading: dict[str, list[int]] = defaultdict(list)  # by topic, where on the path its readers are
    for start in (behind, *sorted(knot)):
        onward: list[Iterator[int]] = [iter([start])]
        while onward:
            index = next((each for each in onward[-1] if each not in seen), None)
            if index is None:
                onward.pop()
                for topic in knot[path.pop()].reads if path else ():
                    reading[topic].pop()
                continue
            seen.add(index)
            flow = knot[index]
            met = [reading[topic][-1] for topic in flow.writes if reading[topic]]
            if met:
                yield [index, *path[max(met) :]]
                continue
            for topic in flow.reads:
                reading[topic].append(len(path))
            path.append(index)
            onward.append(_taken(flow.writes, waiting))


def _taken(topics: Iterable[str], waiting: Mapping[str, list[int]]) -> Iterator[int]:
    for topic in topics:
        while waiting[topic]:
            yield waiting[topic].pop()
