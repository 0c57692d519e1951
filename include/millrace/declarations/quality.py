"""Rule files: from YAML text to `domain.quality.rules`, with every finding at its file, line and field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.declarations.draft import Draft, read_file
from millrace.declarations.fields import nearest
from millrace.declarations.findings import WHOLE_FILE, Finding, Place, Severity, errors, finding
from millrace.declarations.quality_documents import RuleDocument, RulesDocument
from millrace.declarations.reader import Mapping
from millrace.declarations.topic_document import ValueDocument
from millrace.declarations.validate import Part, named_parts
from millrace.domain.declaration.pipeline import BYTES_COLUMNS, Column, Stream, ValueFormat
from millrace.domain.formats.printable import shown
from millrace.domain.quality import rules as domain
from millrace.domain.quality.rules import KINDS, Check, Fresh, HasType, Query, Rule, Volume, columns_of

QUALITY = "include/quality"
MOST_RULES = 200
_NAMED_BY_NONE = "neither a topic that"
OWN_COLUMNS = ("_topic_id", "_partition", "_offset", "_ordinal", "_timeline")
"""Columns that every sink has beside the transform's."""


@dataclass(frozen=True, slots=True)
class RuleFile:
    """A rule file: its rules as far as they are sound, and what is wrong with it."""

    file: str
    rules: tuple[Rule, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether it can be used."""
        return not errors(self.findings)


def file_of(name: str) -> str:
    """The rule file of a name, relative to the project's root."""
    return f"{QUALITY}/{name}.yaml"


def names(root: Path) -> list[str]:
    """The names of all rule files, sorted."""
    return sorted(path.stem for path in (root / QUALITY).glob("*.yaml") if not path.name.startswith("."))


def read_rules(root: Path, name: str) -> RuleFile:
    """One rule file.

    Args:
        root: the project's root.
        name: its name, without folder and `.yaml`.
    """
    file = file_of(name)
    tree, findings = read_file(root, file)
    if tree is None:
        return RuleFile(file, (), tuple(findings))
    parts, found = named_parts(RuleDocument, tree, "rules", RulesDocument)
    findings = [*findings, *found, *_whole(tree, file)]
    rules = []
    for part in parts.values():
        problems = list(_problems(part))
        findings += problems
        if part.sound and not errors(problems):
            rules.append(_rule(part, tree.mapping("rules").entries[part.name].place))
    return RuleFile(file, tuple(rules), tuple(findings))


def _whole(tree: Mapping, file: str) -> Iterator[Finding]:
    for name, entry in tree.entries.items():
        if name != "rules":
            yield finding(entry.place, f"`{shown(name)}` is not a field here", "a rule file holds `rules` alone")
    entries = tree.mapping("rules").entries
    if "rules" not in tree.entries or (isinstance(tree.get("rules"), Mapping) and not entries):
        yield finding(
            Place(file, 1, WHOLE_FILE), "the file has no rules", "write `rules:` and below it a rule by its name"
        )
    if len(entries) > MOST_RULES:
        place = Place(file, 1, WHOLE_FILE)
        yield finding(
            place, f"the file has {len(entries)} rules, more than {MOST_RULES}", "write fewer, or larger, ones"
        )


def _problems(part: Part[RuleDocument]) -> Iterator[Finding]:
    """What is wrong with several fields of a rule together."""
    written = [kind for kind in KINDS if kind in part.tree.entries]
    place = part.tree.place
    if len(written) != 1:
        if not written and part.sound:
            yield finding(place, "the rule says nothing", f"write one of {', '.join(KINDS)}")
        if len(written) > 1:
            step = "make a rule of each"
            yield finding(part.place(written[1]), f"the rule is {' and '.join(written)} at once", step)
        return
    [kind] = written
    if kind in part.wrong:
        return
    document = part.document
    if document.where is not None and _has_no_where(document):
        yield finding(part.place("where"), f"`{kind}` is not about single rows", "remove `where`")
    if kind in ("range", "row_count"):
        yield from _bounds(part, kind)
    if document.regex is not None:
        try:
            re.compile(document.regex.matches)
        except re.error as error:
            what = f"the expression may be broken: {shown(error)}"
            step = "try it: select 'text' ~ 'EXPRESSION'; PostgreSQL's rules count"
            yield finding(part.place("regex", "matches"), what, step, Severity.WARNING)


def _has_no_where(document: RuleDocument) -> bool:
    fresh = document.freshness is not None and document.freshness.column is None
    return fresh or any(each is not None for each in (document.type_, document.volume, document.sql))


def _bounds(part: Part[RuleDocument], kind: str) -> Iterator[Finding]:
    bounds = part.document.range if kind == "range" else part.document.row_count
    assert bounds is not None
    least, most = bounds.min, bounds.max
    if least is None and most is None:
        yield finding(part.place(kind), f"`{kind}` has neither `min` nor `max`", "write one of them, or both")
    elif isinstance(least, bool) or isinstance(most, bool):
        yield finding(part.place(kind), "true and false have no order", "use `in_set`")
    elif least is not None and most is not None:
        if isinstance(least, str) != isinstance(most, str):
            yield finding(part.place(kind), "`min` and `max` are of different kinds", "write two numbers or two texts")
        elif least > most:
            what = f"`min` {shown(least)} is above `max` {shown(most)}"
            yield finding(part.place(kind, "min"), what, "exchange them")


def _rule(part: Part[RuleDocument], place: Place) -> Rule:
    document = part.document
    return Rule(part.name, _check(document), document.severity, document.where, place.file, place.line)


def _check(document: RuleDocument) -> Check:
    """The one kind that a sound document has."""
    if document.not_null is not None:
        return domain.NotNull(document.not_null)
    if document.unique is not None:
        return domain.Unique(document.unique)
    if document.condition is not None:
        return domain.RowCondition(document.condition)
    if document.sql is not None:
        return Query(document.sql)
    if document.volume is not None:
        return Volume(document.volume.within)
    if document.freshness is not None:
        return Fresh(document.freshness.at_most, document.freshness.column)
    if document.row_count is not None:
        return domain.RowCount(document.row_count.min, document.row_count.max)
    return _check_of_column(document)


def _check_of_column(document: RuleDocument) -> Check:
    if (typed := document.type_) is not None:
        return HasType(typed.column, typed.type_)
    if (allowed := document.in_set) is not None:
        return domain.InSet(allowed.column, allowed.values)
    if (bounds := document.range) is not None:
        return domain.Range(bounds.column, bounds.min, bounds.max)
    if (regex := document.regex) is not None:
        return domain.Matches(regex.column, regex.matches)
    if (compare := document.compare) is not None:
        return domain.Compare(compare.column, compare.comparison, compare.to)
    exists = document.exists
    assert exists is not None
    return domain.Exists(exists.column, exists.table, exists.other)


def check_quality(draft: Draft, root: Path) -> None:
    """Read the rule files that a pipeline's streams name, and add what is wrong with them to its findings."""
    for name, stream in draft.streams.items():
        quality = stream.document.quality
        if quality is None or not quality.rules:
            continue
        place = stream.place("quality", "rules")
        file = file_of(quality.rules)
        if not (root / file).exists():
            step = nearest(quality.rules, names(root))
            step = step if step.startswith("did") else f"write the file {file}"
            draft.say(place, f"the rules `{shown(quality.rules)}` do not exist", step)
            continue
        found = read_rules(root, quality.rules)
        draft.findings.extend(found.findings)
        if not found.sound:
            draft.say(place, f"the rules in {file} have findings of their own", f"mend {file}")
        draft.rules[name] = found.rules


def column_advice(rules: Sequence[Rule], stream: str, columns: Sequence[Column], app: str) -> Iterator[Finding]:
    """Warnings of columns that no topic of a stream declares and no word of its transform names: misspelt, probably.

    Args:
        rules: the stream's.
        stream: PIPELINE.STREAM.
        columns: of the topics that it reads.
        app: the text of its transform.
    """
    known = [*(column.name for column in columns), *OWN_COLUMNS]
    words = frozenset(re.findall(r"\w+", app))
    for rule in rules:
        for name in columns_of(rule.check):
            if name not in known and name not in words:
                what = f"{_NAMED_BY_NONE} {stream} reads nor its transform names a column `{shown(name)}`"
                hint = nearest(name, known)
                step = hint if hint.startswith("did") else "check that the transform makes it"
                yield finding(Place(rule.file, rule.line, f"rules.{rule.name}"), what, step, Severity.WARNING)


def misfits(stream: Stream, problems: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """What is wrong with the rules of a stream by the columns its table has, as findings.

    Args:
        stream: the stream.
        problems: by the names of rules.
    """
    rules = {rule.name: rule for rule in (stream.quality.rules if stream.quality else ())}
    for name, problem in problems:
        place = Place(rules[name].file, rules[name].line, f"rules.{name}")
        step = f"repair the rule, or the table that {stream.qualified_name} writes: {stream.sink.appended}"
        yield finding(place, problem, step)


def supposed(findings: Iterable[Finding], streams: Iterable[Stream]) -> set[Finding]:
    """Those of these findings that `column_advice` gave of the rules of some streams."""
    places = {(rule.file, rule.line) for stream in streams if stream.quality for rule in stream.quality.rules}
    return {
        one
        for one in findings
        if one.severity is Severity.WARNING and one.what.startswith(_NAMED_BY_NONE) and (one.file, one.line) in places
    }


def unused(root: Path, used: set[str]) -> Iterator[Finding]:
    """Rule files that no stream names, and files that are not read because of their names."""
    for name in names(root):
        if name not in used:
            place = Place(file_of(name), 1, WHOLE_FILE)
            step = f"write `quality: {{rules: {name}}}` in a stream, or delete the file"
            yield finding(place, "no stream names these rules", step, Severity.WARNING)
    for path in sorted((root / QUALITY).glob("*.yml")):
        place = Place(f"{QUALITY}/{path.name}", 1, WHOLE_FILE)
        what = "the file is not read, because its name does not end in .yaml"
        yield finding(place, what, f"rename it to {path.stem}.yaml")


def value_columns(values: Iterable[ValueDocument]) -> list[Column]:
    """The columns of what topics declare of their values, each name once."""
    found: dict[str, Column] = {}
    for value in values:
        for column in BYTES_COLUMNS if value.format is ValueFormat.BYTES else value.columns:
            found.setdefault(column.name, column)
    return list(found.values())
