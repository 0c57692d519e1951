"""What the fields of several pipeline files mean to each other: topics, groups and tables.

Where two files claim the same thing, one of them keeps it: the pipeline the thing is named after, else the
first by name. The finding stands in the other, so that a new file cannot take an older one down by a clash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from millrace.spec.documents import TopicDocument
from millrace.spec.draft import Draft
from millrace.spec.fields import KAFKAS_OWN, is_topic_name, nearest
from millrace.spec.findings import Place, errors, shown
from millrace.spec.reader import Scalar, Sequence
from millrace.spec.validate import Part


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
            for place, name in self._reads(stream.tree.get("reads")):
                self._reference(draft, place, name, reading=True)
        for source in draft.sources.values():
            if source.document.writes:
                self._reference(draft, source.place("writes"), source.document.writes, reading=False)
                if source.document.writes.startswith(KAFKAS_OWN):
                    what = f"`{shown(source.document.writes)}` is reserved: Kafka alone writes it"
                    draft.say(source.place("writes"), what, "write to a topic of your own")
        self._one_user(draft, "group", self._groups())
        self._one_user(draft, "table", self._tables())

    @staticmethod
    def _reads(node: object) -> Iterator[tuple[Place, str]]:
        for item in node.items if isinstance(node, Sequence) else ():
            if isinstance(item, Scalar) and isinstance(item.value, str) and is_topic_name(item.value):
                yield item.place, item.value

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

    def _reference(self, draft: Draft, place: Place, name: str, *, reading: bool) -> None:
        owner = self.owner(name)
        if owner is None:
            draft.say(place, f"no pipeline declares the topic `{shown(name)}`", self._where_to_declare(name))
            return
        part = owner.topics.get(name)
        if owner is not draft:
            first = owner.tree.mapping("topics").entries[name].place
            if part is None or (reading and not self._readable(owner, name)):
                what = f"the topic `{name}` is declared in {first.file}:{first.line}, which has findings of its own"
                draft.say(place, what, f"run `./millrace spec check` and mend {first.file}")
                return
            if owner.kafka != draft.kafka:
                what = f"the topic `{name}` is on the cluster of `{owner.kafka}`, this pipeline on `{draft.kafka}`"
                draft.say(place, what, "use topics of one cluster in one pipeline")
        if reading and part is not None and part.document.value is None and "value" not in part.wrong:
            what = f"the topic `{name}` declares no `value`, so its records cannot be read"
            draft.say(place, what, 'add `value: {format: json, schema: "..."}` to the topic')

    def _where_to_declare(self, name: str) -> str:
        for file, text in self.unreadable.items():
            if name in text:
                return f"mend {file}, which names the topic and cannot be read"
        hint = nearest(name, self.topic_names())
        return hint if hint.startswith("did") else "declare it under `topics`, here or in the pipeline it belongs to"

    @staticmethod
    def _readable(owner: Draft, name: str) -> bool:
        """Whether the topic's value is sound; what else is wrong with it is its own pipeline's matter."""
        about = (f"topics.{name}.value.", f"topics.{name}.value:", f"topics.{name}:")
        return not any(f"{each.field}:".startswith(about) for each in errors(owner.findings))

    def _groups(self) -> Iterator[tuple[tuple[object, ...], object, Draft, str]]:
        for draft in self.drafts.values():
            for index, (name, stream) in enumerate(draft.streams.items()):
                group = stream.document.group or f"millrace.{draft.name}.{name}"
                yield (stream.document.group is not None, draft.name, index), group, draft, name

    def _tables(self) -> Iterator[tuple[tuple[object, ...], object, Draft, str]]:
        for draft in self.drafts.values():
            for index, (name, stream) in enumerate(draft.streams.items()):
                if stream.document.writes:
                    sink = stream.document.writes.postgres
                    place = (*_precedence(draft, sink.table), index)
                    yield place, (sink.connection, sink.table), draft, name

    def _one_user(
        self, draft: Draft, what: str, claims: Iterator[tuple[tuple[object, ...], object, Draft, str]]
    ) -> None:
        """Each group, and each table, has one stream: others would move or replace what it has done."""
        users: dict[object, tuple[Draft, str]] = {}
        for _, thing, user, name in sorted(claims, key=lambda claim: claim[0]):
            holder, first = users.setdefault(thing, (user, name))
            if user is not draft or (holder, first) == (user, name):
                continue
            place = user.streams[name].place(*(("group",) if what == "group" else ("writes", "postgres", "table")))
            label = f"{thing[1]}` of `{thing[0]}" if isinstance(thing, tuple) else thing
            user.say(
                place,
                f"the {what} `{label}` is used by the stream {holder.name}.{first} already",
                f"give this stream a {what} of its own",
            )


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _precedence(draft: Draft, name: str) -> tuple[bool, str]:
    return (draft.name != name.partition(".")[0], draft.name)
