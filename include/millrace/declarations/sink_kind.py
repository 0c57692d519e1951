"""A kind of sink in declarations: all that the word below `writes` means to them, in one class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Generic, Protocol, TypeVar

from millrace.declarations import reader
from millrace.declarations.findings import Finding, Place
from millrace.declarations.shapes import Document
from millrace.declarations.topic_document import TopicDocument
from millrace.domain.declaration.sinks import Sink

Written = TypeVar("Written", bound=Document)
Declared = TypeVar("Declared", bound=Sink)


@dataclass(frozen=True, slots=True)
class Claim:
    """A thing that one stream has for itself.

    Attributes:
        what: its kind, for people; the field that names it is called so too.
        connection: the Connection that leads to it.
        name: the thing.
        nests: whether it contains the things whose names go on after it with a slash.
        owner: it begins with the name of the pipeline that keeps the thing where two claim it, then a point.
    """

    what: str
    connection: str
    name: str
    nests: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Read:
    """A topic that a stream reads: what is declared of it, and where the stream names it."""

    name: str
    topic: TopicDocument
    place: Place


class Say(Protocol):
    """Adds a finding: an error at a place, and the next step."""

    def __call__(self, place: Place, what: str, next_step: str) -> None:
        """Add it."""
        ...


class StreamFields(Protocol):
    """The fields of a stream that a sink's rules ask for."""

    @property
    def trigger(self) -> timedelta:
        """The least time between two batches."""
        ...


class StreamPart(Protocol):
    """A stream's declaration: its tree, and its fields as far as they are sound."""

    @property
    def tree(self) -> reader.Mapping:
        """The YAML."""
        ...

    @property
    def document(self) -> StreamFields:
        """The fields."""
        ...

    def place(self, *names: str) -> Place:
        """Return the place of a field, or of the nearest thing around it."""
        ...


class SinkKind(Generic[Written, Declared]):
    """A kind of sink, `writes: {WORD: ...}`. Register it in `sinks.KINDS`.

    Attributes:
        document: its fields. A field `connection` is renamed where an environment says so.
        example: the smallest one, as text.
        service: where it writes to, for people: "Kafka".
        tabular: whether rules of quality can be held against its rows.
        examples: of its required fields, for messages about one that is missing.
        not_yet: fields that the design has and this version has not, and what each would do.
    """

    word: ClassVar[str]
    document: ClassVar[type[Document]]
    example: ClassVar[str]
    service: ClassVar[str]
    tabular: ClassVar[bool] = False
    examples: ClassVar[Mapping[str, str]] = {}
    not_yet: ClassVar[Mapping[str, str]] = {}

    def build(self, document: Written) -> Declared:
        """Return a sound document as a value of the domain."""
        raise NotImplementedError

    def show(self, sink: Declared) -> Iterator[tuple[str, str]]:
        """Return its fields as `spec show` prints them, in order; a field of a file has the file's own name."""
        raise NotImplementedError

    def check(self, say: Say, stream: StreamPart, document: Written | None) -> None:
        """Report what is wrong with a stream's sink by itself; `document` is None where it is not sound."""

    def claims(self, document: Written) -> Iterator[Claim]:
        """Return what no other stream may write to."""
        yield from ()

    def topics(self, tree: reader.Mapping) -> Iterator[tuple[Place, str]]:
        """Return the topics that a stream's tree says it writes to, as far as they can be names."""
        yield from ()

    def misfits(self, tree: reader.Mapping, name: str, topic: TopicDocument) -> Iterator[tuple[str, str]]:
        """Return why a sound topic cannot take a stream's rows: what is wrong, and the next step."""
        yield from ()

    def advice(self, stream: StreamPart, document: Written, reads: Sequence[Read]) -> Iterator[Finding]:
        """Return warnings about a sound stream: what is allowed and probably not meant."""
        yield from ()
