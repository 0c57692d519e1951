"""A pipeline between text and value: its parts as far as they are sound, and the findings so far."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from millrace.declarations.documents import HeaderDocument, PipelineDocument, SourceDocument, StreamDocument
from millrace.declarations.findings import WHOLE_FILE, Finding, Place, Severity, errors, finding
from millrace.declarations.reader import MAXIMUM_BYTES, Mapping, read
from millrace.declarations.topic_document import TopicDocument
from millrace.declarations.validate import Part, named_parts, validate
from millrace.domain.quality.rules import Rule

SECTIONS = ("topics", "streams", "sources")


@dataclass
class Draft:
    """One pipeline file. `name` is the file's; it is the pipeline's where the file is right.

    `rules` are those of the rule files that its streams name, by stream.
    """

    name: str
    file: str
    tree: Mapping
    header: Part[HeaderDocument]
    topics: dict[str, Part[TopicDocument]]
    streams: dict[str, Part[StreamDocument]]
    sources: dict[str, Part[SourceDocument]]
    findings: list[Finding] = field(default_factory=list)
    rules: dict[str, tuple[Rule, ...]] = field(default_factory=dict)

    @property
    def rule_files(self) -> set[str]:
        """The names of the rule files that its streams name."""
        qualities = [stream.document.quality for stream in self.streams.values()]
        return {quality.rules for quality in qualities if quality is not None and quality.rules}

    @property
    def sound(self) -> bool:
        """Whether no finding so far is an error."""
        return not errors(self.findings)

    @property
    def kafka(self) -> str:
        """The Connection of the pipeline's cluster; the default where the declaration's own is wrong."""
        return self.header.document.kafka or "millrace_kafka"

    def say(self, place: Place, what: str, next_step: str, severity: Severity = Severity.ERROR) -> None:
        """Add a finding."""
        self.findings.append(finding(place, what, next_step, severity))


def first_bytes(path: Path) -> bytes:
    """A file's bytes, as far as to see that it is too large.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, which could be waited for for ever.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb") as file:
        return file.read(MAXIMUM_BYTES + 1)


def read_file(root: Path, file: str) -> tuple[Mapping | None, list[Finding]]:
    """The tree of a file of the project, and what is wrong with it as YAML.

    Args:
        root: the project's root.
        file: the file, relative to the root.
    """
    try:
        data = first_bytes(root / file)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        place = Place(file, 1, WHOLE_FILE)
        return None, [finding(place, f"the file cannot be read: {reason}", "make it a readable file")]
    return read(data, file)


def interpret(name: str, file: str, tree: Mapping) -> Draft:
    """The parts of a pipeline's tree, each against its shape."""
    own = MappingProxyType({key: entry for key, entry in tree.entries.items() if key not in SECTIONS})
    header, findings = validate(HeaderDocument, name, Mapping(tree.place, own), (), known=PipelineDocument)
    topics, in_topics = named_parts(TopicDocument, tree, "topics", PipelineDocument)
    streams, in_streams = named_parts(StreamDocument, tree, "streams", PipelineDocument)
    sources, in_sources = named_parts(SourceDocument, tree, "sources", PipelineDocument)
    return Draft(name, file, tree, header, topics, streams, sources, [*findings, *in_topics, *in_streams, *in_sources])
