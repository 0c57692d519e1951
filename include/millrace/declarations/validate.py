"""A tree against the shape of `documents`: every deviation becomes a finding at its exact place.

What is right stays usable beside what is wrong: rules about several fields still see the sound ones, so that
everything wrong is reported at once.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from collections.abc import Mapping as Fields
from collections.abc import Sequence as Items
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from millrace.declarations.fields import SeveralWrong, Wrong, described, nearest
from millrace.declarations.findings import Finding, Place, finding
from millrace.declarations.reader import BROKEN, Mapping, Node, Scalar, Sequence, plain
from millrace.declarations.sinks import KINDS
from millrace.declarations.topic_document import not_yet
from millrace.domain.formats.printable import shown

Model = TypeVar("Model", bound=BaseModel)
Location = tuple[str | int, ...]

NOT_YET: dict[tuple[str, ...], str] = {
    ("topics", "*", "hold"): "holding a topic's retention (`hold`)",
    ("topics", "*", "max_age"): "a limit of age on topic and archive together (`max_age`)",
    ("topics", "*", "backup", "max_age"): "a limit of age on topic and archive together (`max_age`)",
    ("streams", "*", "event_time"): "event time (`event_time`)",
    ("streams", "*", "on_change"): "kept state and what a new release does to it (`on_change`)",
    ("streams", "*", "tables"): "joining lookup tables (`tables`)",
    ("streams", "*", "window"): "windows of event time (`window`)",
    ("streams", "*", "idle_after"): "windows of event time (`idle_after`)",
    **{("streams", "*", "writes", kind.word, name): text for kind in KINDS for name, text in kind.not_yet.items()},
}
EXAMPLES = {
    "pipeline": "shop",
    "owner": "commerce-data",
    "app": "shop_purchases",
    "reads": "[shop.purchases]",
    "writes": f"{{{KINDS[0].word}: {KINDS[0].example}}}",
    "field": "customer_id",
    "time": "7d",
    "schema": '"id STRING NOT NULL, amount DECIMAL(12,2)"',
    "program": "cdnow",
    "rules": "shop_purchases",
    "partitions": "4",
}
SINK_EXAMPLES: dict[tuple[str, ...], str] = {
    ("streams", "*", "writes", kind.word, name): example for kind in KINDS for name, example in kind.examples.items()
}
"""By their paths: two kinds may have fields of one name."""
_SHAPES = {"list_type": "a list", "dict_type": "a group of fields", "model_type": "a group of fields"}


@dataclass(frozen=True, slots=True)
class Part(Generic[Model]):
    """One named piece of a declaration: its tree, and the document as far as it is sound.

    Where `sound` is false, a field that was wrong or missing is None or its default.
    """

    name: str
    tree: Mapping
    document: Model
    sound: bool
    wrong: frozenset[str] = frozenset()

    def place(self, *names: str) -> Place:
        """Where a field of the piece stands, or the nearest thing around it."""
        node: Mapping = self.tree
        place = node.place
        for name in names:
            if name not in node.entries:
                return place.below(name)
            place = node.entries[name].place
            following = node.entries[name].node
            if not isinstance(following, Mapping):
                return following.place
            node = following
        return place


def validate(
    model: type[Model], name: str, tree: Mapping, section: Location, known: type[BaseModel] | None = None
) -> tuple[Part[Model], list[Finding]]:
    """A piece of a declaration against its shape.

    Args:
        model: the shape.
        name: the piece's name.
        tree: its fields.
        section: where it stands, for instance `("topics", "shop.purchases")`.
        known: the shape whose fields are offered for an unknown one, where it has more than `model`.
    """
    fields = plain(tree)
    try:
        return Part(name, tree, model.model_validate(fields), True), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    findings = [each for detail in details for each in _findings(detail, known or model, tree, section)]
    wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
    return Part(name, tree, _sound_part(model, fields, wrong), False, frozenset(wrong)), findings


def _sound_part(model: type[Model], fields: Fields[str, Any], wrong: set[str]) -> Model:
    """A document with the sound fields only, made without the checks that would refuse it as a whole."""
    document = model.model_construct()
    for attribute, info in model.model_fields.items():
        name = info.alias or attribute
        if info.is_required():
            object.__setattr__(document, attribute, None)
        if name in fields and name not in wrong:
            model.__pydantic_validator__.validate_assignment(document, attribute, fields[name])
    return document


def walk(node: Node, location: Location) -> Iterator[tuple[Node, Place]]:
    """The nodes along a location, each with the place of its key; ends where the tree does."""
    for step in location:
        if isinstance(node, Mapping) and step in node.entries:
            entry = node.entries[str(step)]
            node = entry.node
            yield node, entry.place
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            yield node, node.place
        else:
            return


def _findings(error: ErrorDetails, model: type[BaseModel], tree: Mapping, section: Location) -> Iterator[Finding]:
    location: Location = error["loc"]
    nodes = [(tree, tree.place), *walk(tree, location)]
    node, key = nodes[-1]
    if location and location[-1] == "[key]":
        place = key
    elif isinstance(node, Scalar):
        place = node.place
    else:
        place = key
    if error["type"] == "missing":
        yield _missing((*section, *location), place)
    elif error["type"] == "extra_forbidden":
        yield _unknown(location, key, model, section)
    elif not _has_broken(node):
        yield from _unusable(error, node, place)


def _missing(path: Location, parent: Place) -> Finding:
    name = str(path[-1])
    example = SINK_EXAMPLES.get(_pattern(path)) or EXAMPLES.get(name, "...")
    return finding(parent.below(name), f"`{name}` is missing", f"add `{name}: {example}`")


def _unknown(location: Location, place: Place, model: type[BaseModel], section: Location) -> Finding:
    pattern = _pattern((*section, *location))
    if pattern in NOT_YET:
        return finding(place, not_yet(NOT_YET[pattern]), "remove the field")
    known = fields_of(model, location[:-1])
    hint = nearest(str(location[-1]), known)
    return finding(place, f"`{shown(location[-1])}` is not a field here", hint or "remove the field")


def _pattern(path: Location) -> tuple[str, ...]:
    """Return a path with a star for the name of the piece."""
    return tuple("*" if index == 1 else str(step) for index, step in enumerate(path))


def _unusable(error: ErrorDetails, node: Node, place: Place) -> Iterator[Finding]:
    cause = error.get("ctx", {}).get("error")
    value = plain(node)
    if isinstance(cause, SeveralWrong):
        problems: tuple[Wrong, ...] = cause.problems
    elif isinstance(cause, Wrong):
        problems = (cause,)
    elif error["type"] in _SHAPES:
        shape = _SHAPES[error["type"]]
        step = "write the fields below it, indented, one a line"
        if shape == "a list":
            step = f"write [{shown(value)}]" if isinstance(value, str) else "write [a, b]"
        problems = (Wrong(f"{described(value)} is not {shape}", step),)
    else:
        problems = (Wrong(f"{described(value)}: {shown(error['msg'])}", "see docs/guide/declaration.md"),)
    block = isinstance(node, Scalar) and node.block
    for problem in problems:
        line = place.line + 1 + problem.line_offset if block else place.line
        yield finding(Place(place.file, line, place.field), problem.what, problem.next_step)


def _has_broken(node: Node) -> bool:
    match node:
        case Scalar():
            return node.broken
        case Sequence():
            return any(_has_broken(item) for item in node.items)
        case Mapping():
            return any(_has_broken(entry.node) for entry in node.entries.values())


def fields_of(model: type[BaseModel], location: Location) -> Items[str]:
    """The names of the fields that may stand at a location inside a model."""
    here: Any = model
    for step in location:
        if isinstance(here, type) and issubclass(here, BaseModel):
            by_name = {info.alias or name: info for name, info in here.model_fields.items()}
            here = _inner(by_name[str(step)].annotation) if step in by_name else None
        else:
            arguments = get_args(here)
            here = _inner(arguments[-1]) if arguments else None
    if isinstance(here, type) and issubclass(here, BaseModel):
        return [info.alias or name for name, info in here.model_fields.items()]
    return []


def _inner(annotation: Any) -> Any:
    """The annotation without `| None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next((each for each in get_args(annotation) if each is not type(None)), None)
    return annotation


def named_parts(
    model: type[Model], root: Mapping, section: str, check_name: type[BaseModel]
) -> tuple[dict[str, Part[Model]], list[Finding]]:
    """The named pieces of a section (`topics`, `streams`, `sources`), and what is wrong with each.

    Args:
        model: the shape of a piece.
        root: the whole declaration.
        section: the section's name.
        check_name: the shape of the whole, which knows how pieces may be named.
    """
    parts: dict[str, Part[Model]] = {}
    findings: list[Finding] = []
    if section not in root.entries:
        return parts, findings
    entry = root.entries[section]
    if not isinstance(entry.node, Mapping):
        if not _has_broken(entry.node):
            what = f"{described(plain(entry.node))} is not a group of named {section}"
            findings.append(finding(entry.place, what, f"write each of the {section} below it, by name"))
        return parts, findings
    for name, each in entry.node.entries.items():
        findings.extend(_wrong_name(check_name, section, name, each.place))
        if isinstance(each.node, Mapping):
            parts[name], found = validate(model, name, each.node, (section, name))
            findings.extend(found)
        elif not _has_broken(each.node):
            what = f"{described(plain(each.node))} is not a group of fields"
            findings.append(finding(each.place, what, "write its fields below it, indented, one a line"))
    return parts, findings


@cache
def _blank(model: type[BaseModel]) -> BaseModel:
    """Return a document with its defaults only. Making one takes longer than checking a name; copy it before use."""
    return model.model_construct()


def _wrong_name(model: type[BaseModel], section: str, name: str, place: Place) -> Iterator[Finding]:
    probe = copy(_blank(model))
    try:
        model.__pydantic_validator__.validate_assignment(probe, section, {name: BROKEN})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            cause = detail.get("ctx", {}).get("error")
            if detail["loc"][-1] == "[key]" and isinstance(cause, Wrong):
                yield finding(place, cause.what, cause.next_step)
