"""What the fields of several pipeline files mean to each other: topics, groups, tables and prefixes.

Where two files claim the same thing, one of them keeps it: the pipeline the thing is named after, else the
first by name. The finding stands in the other, so that a new file cannot take an older one down by a clash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from millrace.declarations.circles import Flow, circles
from millrace.declarations.documents import StreamDocument, WritesDocument
from millrace.declarations.draft import Draft
from millrace.declarations.fields import KAFKAS_OWN, nearest
from millrace.declarations.findings import Place, errors
from millrace.declarations.prefixes import overlaps
from millrace.declarations.sink_kind import Claim
from millrace.declarations.sinks import KINDS, written_topics
from millrace.declarations.topic_document import TopicDocument
from millrace.declarations.topic_names import read_topics
from millrace.declarations.validate import Part
from millrace.domain.formats.printable import shown

_MOST_LEGS = 8


@dataclass(frozen=True, slots=True)
class _Use:
    """What somebody wants of a topic: fields that have to be sound for it, and what a topic without `value` lacks."""

    fields: tuple[str, ...] = ()
    without_value: str = ""


_READ = _Use(("value",), "its records cannot be read")
_WRITE = _Use(("value", "key", "cleanup"), "no row can become a record of it")
_FEED = _Use()


@dataclass(frozen=True, slots=True)
class _Writer:
    """A stream that writes to topics, `PIPELINE.STREAM`; of a circle, the last by `order` is refused."""

    order: tuple[bool, str, int]
    draft: Draft
    name: str
    written: list[tuple[Place, str]]
    flow: Flow


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A thing that a stream claims; the first by `order` keeps it."""

    order: tuple[bool, str, int]
    draft: Draft
    name: str
    place: Place
    claim: Claim

    @property
    def where(self) -> tuple[str, str]:
        """The Connection, and the thing's name; a slash in it parts the names of things that contain others."""
        claim = self.claim
        return claim.connection, claim.name if claim.nests else claim.name.replace("/", "\0")


@dataclass
class World:
    """The pipeline files that were read. `unreadable` maps files that are no YAML to their text.

    Neither mapping may change afterwards.
    """

    drafts: dict[str, Draft]
    unreadable: dict[str, str] = field(default_factory=dict)

    def owner(self, topic: str) -> Draft | None:
        """The pipeline a topic belongs to; None where no file that could be read declares it."""
        claims = [draft for draft, name, _ in self._alike.get(_metric_name(topic), ()) if name == topic]
        return min(claims, key=lambda draft: _precedence(draft, topic), default=None)

    def topic(self, name: str) -> Part[TopicDocument] | None:
        """The declared topic of this name, as far as it is sound."""
        owner = self.owner(name)
        return owner.topics.get(name) if owner else None

    def topic_names(self) -> set[str]:
        """The names of all declared topics."""
        return {name for draft in self.drafts.values() for name in draft.tree.mapping("topics").entries}

    def check(self, draft: Draft) -> None:
        """Add to a pipeline's findings what is wrong between it and the others."""
        self._declared_twice(draft)
        self._colliding(draft)
        for stream in draft.streams.values():
            for place, name in read_topics(stream.tree):
                self._reference(draft, place, name, _READ)
            for place, name in written_topics(stream.tree):
                self._written(draft, stream, place, name)
        for source in draft.sources.values():
            if source.document.writes:
                self._reference(draft, source.place("writes"), source.document.writes, _FEED)
                self._kafkas_own(draft, source.place("writes"), source.document.writes)
        for place, way in self._circles.get(draft.name, ()):
            what = f"the output of the stream comes back to it through others, without end: {way}"
            step = "read or write another topic: a stream skips only its own records"
            draft.say(place, what, step)
        self._one_group(draft)
        for place, what, step in self._taken.get(draft.name, ()):
            draft.say(place, what, step)

    def downstream(self, draft: Draft) -> set[str]:
        """The topics that its streams write to, and those to which other streams carry that on."""
        carried = defaultdict(list)
        own = []
        for other in self.drafts.values():
            for stream in other.streams.values() if other.kafka == draft.kafka else ():
                written = [name for _, name in written_topics(stream.tree)]
                own += written if other.name == draft.name else []
                for _, name in read_topics(stream.tree) if written else ():
                    carried[name].append(written)
        found: set[str] = set()
        while own:
            if (name := own.pop()) not in found:
                found.add(name)
                own += [each for written in carried[name] for each in written]
        return found

    def _declared_twice(self, draft: Draft) -> None:
        for name, entry in draft.tree.mapping("topics").entries.items():
            owner = self.owner(name)
            if owner is not None and owner is not draft:
                first = owner.tree.mapping("topics").entries[name].place
                what = f"the topic `{shown(name)}` is declared already in {first.file}:{first.line}"
                draft.say(entry.place, what, "remove it here: a stream may read topics of other pipelines")

    def _colliding(self, draft: Draft) -> None:
        """Kafka's metrics write `.` as `_`, so it refuses to make a topic whose name differs only in that."""
        for name, entry in draft.tree.mapping("topics").entries.items():
            for other, theirs, place in self._alike[_metric_name(name)]:
                if theirs == name or other is draft or other.kafka != draft.kafka:
                    continue
                if _precedence(other, theirs) < _precedence(draft, name):
                    what = f"Kafka cannot hold `{shown(name)}` beside `{shown(theirs)}` of {place.file}:{place.line}"
                    draft.say(entry.place, what, "rename it: Kafka takes `.` and `_` for the same")

    @cached_property
    def _alike(self) -> dict[str, list[tuple[Draft, str, Place]]]:
        """All declared topics, by what Kafka's metrics call them."""
        alike = defaultdict(list)
        for draft in self.drafts.values():
            for name, entry in draft.tree.mapping("topics").entries.items():
                alike[_metric_name(name)].append((draft, name, entry.place))
        return alike

    def _reference(self, draft: Draft, place: Place, name: str, use: _Use) -> Part[TopicDocument] | None:
        """A topic as far as it is sound; None where something is said of it."""
        owner = self.owner(name)
        if owner is None:
            draft.say(place, f"no pipeline declares the topic `{shown(name)}`", self._where_to_declare(name))
            return None
        part = owner.topics.get(name)
        if owner is not draft:
            first = owner.tree.mapping("topics").entries[name].place
            if part is None or not self._sound(owner, name, use.fields):
                what = f"the topic `{name}` is declared in {first.file}:{first.line}, which has findings of its own"
                draft.say(place, what, f"run `./millrace spec check` and repair {first.file}")
                return None
            if owner.kafka != draft.kafka:
                what = f"the topic `{name}` is on the cluster of `{owner.kafka}`, this pipeline on `{draft.kafka}`"
                draft.say(place, what, "use topics of one cluster in one pipeline")
        if use.without_value and part is not None and part.document.value is None and "value" not in part.wrong:
            what = f"the topic `{name}` declares no `value`, so {use.without_value}"
            draft.say(place, what, 'add `value: {format: json, schema: "..."}` to the topic')
            return None
        return part

    def _written(self, draft: Draft, stream: Part[StreamDocument], place: Place, name: str) -> None:
        part = self._reference(draft, place, name, _WRITE)
        self._kafkas_own(draft, place, name)
        misfits = [each for kind in KINDS if part for each in kind.misfits(stream.tree, name, part.document)]
        for what, step in misfits:
            draft.say(place, what, step)

    @staticmethod
    def _kafkas_own(draft: Draft, place: Place, name: str) -> None:
        if name.startswith(KAFKAS_OWN):
            draft.say(place, f"`{shown(name)}` is reserved: Kafka alone writes it", "write to a topic of your own")

    @cached_property
    def _circles(self) -> dict[str, list[tuple[Place, str]]]:
        """By pipelines, what their streams may not write, and the way on which it would come back.

        Of a circle that stream is refused that writes to a topic of another pipeline, else one of the last pipeline.
        """
        found: dict[str, list[tuple[Place, str]]] = defaultdict(list)
        for writers in self._writers().values():
            writers.sort(key=lambda each: each.order)
            for circle in circles([each.flow for each in writers]):
                streams = [writers[index] for index in (*circle, circle[0])]
                topics = [
                    next(topic for topic in each.flow.writes if topic in following.flow.reads)
                    for each, following in pairwise(streams)
                ]
                first = streams[0]
                place = next(place for place, topic in first.written if topic == topics[0])
                legs = [f"{shown(each.name)} -> {topic}" for each, topic in zip(streams, topics, strict=False)]
                if len(legs) > _MOST_LEGS:
                    half = _MOST_LEGS // 2
                    legs = [*legs[:half], f"... ({len(legs) - 2 * half} more) ...", *legs[-half:]]
                found[first.draft.name].append((place, " -> ".join([*legs, shown(first.name)])))
        return found

    def _writers(self) -> dict[str, list[_Writer]]:
        """The streams that write to topics, by their clusters."""
        found: dict[str, list[_Writer]] = defaultdict(list)
        for draft in self.drafts.values():
            for index, (name, stream) in enumerate(draft.streams.items()):
                if written := written_topics(stream.tree):
                    order = (*max(_precedence(draft, topic) for _, topic in written), index)
                    reads = dict.fromkeys(topic for _, topic in read_topics(stream.tree))
                    flow = Flow((*reads,), (*dict.fromkeys(topic for _, topic in written),))
                    found[draft.kafka].append(_Writer(order, draft, f"{draft.name}.{name}", written, flow))
        return found

    def _where_to_declare(self, name: str) -> str:
        for file, text in self.unreadable.items():
            if name in text:
                return f"repair {file}: it names the topic, but cannot be read"
        hint = nearest(name, self.topic_names())
        return hint if hint.startswith("did") else "declare it under `topics`, here or in the pipeline it belongs to"

    @staticmethod
    def _sound(owner: Draft, name: str, fields: tuple[str, ...]) -> bool:
        """Whether these fields of a topic are sound; what else is wrong with it is its own pipeline's matter."""
        about = tuple(f"topics.{name}{field}:" for field in ("", *(f".{each}" for each in fields)))
        about += tuple(f"topics.{name}.{each}." for each in fields)
        return not fields or not any(f"{each.field}:".startswith(about) for each in errors(owner.findings))

    def _groups(self) -> Iterator[tuple[tuple[bool, str, int], str, Draft, str]]:
        for draft in self.drafts.values():
            for index, (name, stream) in enumerate(draft.streams.items()):
                group = stream.document.group or f"millrace.{draft.name}.{name}"
                yield (stream.document.group is not None, draft.name, index), group, draft, name

    @cached_property
    def _claims(self) -> dict[str, list[_Claimed]]:
        """The things that streams claim, by what they are, in the order in which they keep them."""
        found: dict[str, list[_Claimed]] = defaultdict(list)
        for draft in self.drafts.values():
            for index, (name, stream) in enumerate(draft.streams.items()):
                for word, claim in claims_of(stream.document.writes):
                    order = (*_precedence(draft, claim.owner), index)
                    place = stream.place("writes", word, claim.what)
                    found[f"{word}.{claim.what}"].append(_Claimed(order, draft, name, place, claim))
        return {what: sorted(claims, key=lambda each: each.order) for what, claims in found.items()}

    @cached_property
    def _taken(self) -> dict[str, list[tuple[Place, str, str]]]:
        """By pipelines, which of their things another stream keeps: what is wrong, and the next step."""
        found: dict[str, list[tuple[Place, str, str]]] = defaultdict(list)
        for claims in self._claims.values():
            for claimed, first in overlaps(claims, lambda each: each.where):
                claim, other = claimed.claim, first.claim.name
                what = f"the {claim.what} `{claim.name}` of `{claim.connection}`"
                used = f"used by the stream {shown(f'{first.draft.name}.{first.name}')} already"
                if claim.name == other:
                    what = f"{what} is {used}"
                else:
                    way = "lies inside" if len(other) < len(claim.name) else "contains"
                    what = f"{what} {way} `{other}`, which is {used}"
                found[claimed.draft.name].append((claimed.place, what, f"give this stream a {claim.what} of its own"))
        return found

    def _one_group(self, draft: Draft) -> None:
        """Each group has one stream: others would move what it has done."""
        users: dict[str, tuple[Draft, str]] = {}
        for _, group, user, name in sorted(self._groups(), key=lambda claim: claim[0]):
            holder, first = users.setdefault(group, (user, name))
            if user is draft and (holder, first) != (user, name):
                what = f"the group `{group}` is used by the stream {holder.name}.{first} already"
                user.say(user.streams[name].place("group"), what, "give this stream a group of its own")


def claims_of(document: WritesDocument | None) -> Iterator[tuple[str, Claim]]:
    """Return the things that a sink claims, each with the word of the sink; none where it is not sound."""
    for kind, written in document.each() if document else ():
        for claim in kind.claims(written):
            yield kind.word, claim


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _precedence(draft: Draft, name: str) -> tuple[bool, str]:
    return (draft.name != name.partition(".")[0], draft.name)
