"""Environment files: what differs between installations, laid over a pipeline's tree.

The overlay works on trees, so each value keeps its place: a finding about an overriding value names the
environment file, and `spec show` tells where each value comes from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping as Fields
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from millrace.declarations.documents import EnvironmentDocument, NotifierKind
from millrace.declarations.draft import Draft, read_file
from millrace.declarations.fields import Wrong, nearest
from millrace.declarations.findings import Finding, Place, errors, finding
from millrace.declarations.reader import NO_ENTRIES, Entry, Mapping, Node, Scalar, Sequence
from millrace.declarations.shapes import ConnectionNamed
from millrace.declarations.sinks import KINDS
from millrace.declarations.validate import validate
from millrace.domain.declaration.pipeline import NOTIFIER_ARGUMENTS, Environment, Notifier
from millrace.domain.formats.printable import shown
from millrace.errors import Code, UsageError

ENVIRONMENTS = "include/environments"
EMBEDDED = "embedded"
VARIABLE = "MILLRACE_ENVIRONMENT"
BUILT_IN = "(built in)"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Overlay:
    """An environment file as read. `tree` holds its overrides."""

    environment: Environment
    file: str
    tree: Mapping
    connections: Fields[str, str]


def environment_name(name: str | None) -> str:
    """The environment's name: the argument, else `MILLRACE_ENVIRONMENT`, else `embedded`.

    Raises:
        UsageError: it cannot be the name of an environment file.
    """
    name = name or os.environ.get(VARIABLE) or EMBEDDED
    if not _NAME.fullmatch(name):
        step = f"set {VARIABLE} to the name of a file in {ENVIRONMENTS}, without .yaml"
        raise UsageError(
            f"`{shown(name)}` is not the name of an environment", where=VARIABLE, next_step=step, code=Code.UNKNOWN_NAME
        )
    return name


def read_environment(root: Path, name: str) -> tuple[Overlay | None, list[Finding]]:
    """An environment file, and what is wrong with it; no overlay where it cannot be used.

    Raises:
        UsageError: there is no such file; only `embedded` works without one.
    """
    file = f"{ENVIRONMENTS}/{name}.yaml"
    if not (root / file).exists():
        if name != EMBEDDED:
            known = [path.stem for path in (root / ENVIRONMENTS).glob("*.yaml")]
            step = nearest(name, known) or f"write the file {file}"
            raise UsageError(f"environment `{name}` does not exist", where=file, next_step=step, code=Code.UNKNOWN_NAME)
        empty = Mapping(Place(BUILT_IN, 1, ""), NO_ENTRIES)
        return Overlay(_environment(name, EnvironmentDocument(), ()), file, _embedded(empty), {}), []
    tree, findings = read_file(root, file)
    if tree is None:
        return None, findings
    part, found = validate(EnvironmentDocument, name, tree, ("environment",))
    findings += found
    notifiers = _notifiers(part.document, tree, findings)
    if errors(findings):
        return None, findings
    environment = _environment(name, part.document, notifiers)
    overrides = _embedded(tree) if name == EMBEDDED else tree
    return Overlay(environment, file, overrides, part.document.connections), findings


def _environment(name: str, document: EnvironmentDocument, notifiers: tuple[Notifier, ...]) -> Environment:
    """What an environment is; on one machine that is for trying, a rewind of any size needs nobody else."""
    found = Environment(name, notifiers, tuple(document.operators))
    if name == EMBEDDED:
        found = replace(found, longest_rewind=None, most_rewound=None)
    bounds = document.unapproved_rewind
    return replace(
        found,
        longest_rewind=found.longest_rewind if bounds.longest is None else bounds.longest,
        most_rewound=found.most_rewound if bounds.records is None else bounds.records,
        ignored_readers=tuple(document.headroom.ignore),
        readers_within=document.headroom.within,
        host_lost_after=document.host_lost_after,
    )


def _embedded(tree: Mapping) -> Mapping:
    """The embedded stack has one broker: topics have one replica where the file does not say otherwise."""
    if tree.get("all_topics", "replication") is not None:
        return tree
    place = Place(BUILT_IN, 1, "all_topics.replication")
    return _with(tree, ("all_topics", "replication"), Entry(place, Scalar(place, 1)))


def _notifiers(document: EnvironmentDocument, tree: Mapping, findings: list[Finding]) -> tuple[Notifier, ...]:
    node = tree.get("notifiers")
    notifiers = []
    for index, fields in enumerate(document.notifiers or ()):
        item = node.items[index] if isinstance(node, Sequence) else tree
        arguments = {name: value for name, value in fields.items() if name != "kind"}
        try:
            kind = NotifierKind.check(fields["kind"])
            findings += _wrong_arguments(kind, arguments, item.place)
            notifiers.append(Notifier(kind, tuple(sorted(arguments.items()))))
        except Wrong:
            what = f"`{shown(fields['kind'])}` is not a kind of notifier"
            step = "write `log`, `webhook`, or the import path of an Airflow notifier class"
            findings.append(finding(item.place.below("kind"), what, step))
    return tuple(notifiers)


def _wrong_arguments(kind: str, arguments: Fields[str, str], place: Place) -> list[Finding]:
    """Return what is wrong with the arguments of a notifier that is built in; those of a class are its own."""
    if kind not in NOTIFIER_ARGUMENTS:
        return []
    known = NOTIFIER_ARGUMENTS[kind]
    found = [
        finding(place.below(name), f"`{kind}` has no argument `{shown(name)}`", nearest(name, known) or "remove it")
        for name in arguments
        if name not in known
    ]
    for name in known:
        if name not in arguments:
            found.append(finding(place, f"`{kind}` needs the argument `{name}`", f"add `{name}: millrace_pager`"))
            continue
        try:
            ConnectionNamed.check(arguments[name])
        except Wrong as wrong:
            found.append(finding(place.below(name), wrong.what, wrong.next_step))
    return found


def apply(overlay: Overlay, pipeline: str, tree: Mapping) -> Mapping:
    """The tree of a pipeline as this environment has it.

    Args:
        overlay: the environment.
        pipeline: the pipeline's name.
        tree: what its file says.
    """
    for topic in tree.mapping("topics").entries:
        if tree.get("topics", topic, "manage") is None or _text(tree.get("topics", topic, "manage")) != "none":
            tree = _override(tree, ("topics", topic), overlay.tree.mapping("all_topics"), defaults=True)
        tree = _override(tree, ("topics", topic), overlay.tree.mapping("topics", topic))
    for stream in tree.mapping("streams").entries:
        tree = _override(tree, ("streams", stream), overlay.tree.mapping("all_streams"))
        tree = _override(tree, ("streams", stream), overlay.tree.mapping("streams", f"{pipeline}.{stream}"))
        for kind in KINDS:
            field = kind.document.model_fields.get("connection")
            if field is not None and isinstance(tree.get("streams", stream, "writes", kind.word), Mapping):
                default = "" if field.is_required() else str(field.default)
                tree = _rename(overlay, tree, ("streams", stream, "writes", kind.word, "connection"), default=default)
        if tree.get("streams", stream, "quality", "connection") is not None:
            tree = _rename(overlay, tree, ("streams", stream, "quality", "connection"))
    return _rename(overlay, tree, ("kafka",), default="millrace_kafka")


def _override(tree: Mapping, path: tuple[str, ...], fields: Mapping, *, defaults: bool = False) -> Mapping:
    for name, entry in fields.entries.items():
        if defaults and name == "retention" and _text(tree.get(*path, "cleanup")) == "compact":
            continue
        if name == "resources" and isinstance(entry.node, Mapping):
            for inner, value in entry.node.entries.items():
                tree = _with(tree, (*path, name, inner), value)
        else:
            tree = _with(tree, (*path, name), entry)
    return tree


def _rename(overlay: Overlay, tree: Mapping, path: tuple[str, ...], default: str = "") -> Mapping:
    declared = _text(tree.get(*path)) or default
    entry = overlay.tree.mapping("connections").entries.get(declared)
    return _with(tree, path, entry) if entry and declared in overlay.connections else tree


def _text(node: Node | None) -> str:
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else ""


def _with(tree: Mapping, path: tuple[str, ...], entry: Entry) -> Mapping:
    """A copy of a tree in which one entry is another."""
    name = path[0]
    if len(path) == 1:
        entries = tree.entries | {name: entry}  # a copy at once; `{**...}` would ask the proxy key by key
        return Mapping(tree.place, MappingProxyType(entries))
    inner = tree.get(name)
    below = inner if isinstance(inner, Mapping) else Mapping(entry.place, NO_ENTRIES)
    place = tree.entries[name].place if name in tree.entries else entry.place
    return _with(tree, (name,), Entry(place, _with(below, path[1:], entry)))


def unused(overlay: Overlay, drafts: Fields[str, Draft], *, complete: bool) -> list[Finding]:
    """Overrides of topics and streams that no pipeline declares.

    Args:
        overlay: the environment.
        drafts: every pipeline that could be read.
        complete: whether those are all; where one could not be read, nothing is said.
    """
    if not complete:
        return []
    topics = {name for draft in drafts.values() for name in draft.tree.mapping("topics").entries}
    streams = {f"{draft.name}.{name}" for draft in drafts.values() for name in draft.streams}
    found = []
    for section, known in (("topics", topics), ("streams", streams)):
        for name, entry in overlay.tree.mapping(section).entries.items():
            if name not in known:
                hint = nearest(name, known)
                step = hint if hint.startswith("did") else "remove it, or declare it in a pipeline"
                found.append(finding(entry.place, f"no pipeline declares `{shown(name)}`", step))
    return found
