"""Compare the kinds of alarms with the code that opens and closes them, and with the page of alarms."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millrace.domain.alarms.kinds import FACTS, AlarmKind

KINDS = "domain.alarms.kinds"
PAGE = "operations/alarms.md"
_ROW = re.compile(r"^\| \[`([a-z]+\.[a-z_]+)`\]\(([^)]+)\) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_WHAT_TO_DO = re.compile(r"\[what to do\]\(([^)]*)\)")


def problems(root: Path) -> list[str]:
    """Return what is wrong with the kinds of the imported package, whose code and `docs` are below `root`."""
    undeclared = [f"{kind.name} has no facts" for kind in AlarmKind if kind not in FACTS]
    return [*undeclared, *page_problems(root / "docs"), *code_problems(root / "include" / "millrace")]


def page_problems(docs: Path) -> Iterator[str]:
    """Return where the rows of the page, in their order, and the facts differ."""
    rows = _ROW.findall((docs / PAGE).read_text(encoding="utf-8"))
    if [kind for kind, _, _ in rows] != [kind.value for kind in FACTS]:
        yield f"the page has the kinds {', '.join(kind for kind, _, _ in rows)}"
    for kind, link, rest in rows:
        if kind not in FACTS:
            continue
        facts = FACTS[AlarmKind(kind)]
        opened, _, measure, _ = _LINK.sub(r"\1", rest).split(" | ")
        name, _, anchor = link.partition("#")
        page = os.path.normpath(Path(PAGE).parent / name) if name else PAGE
        if f"{page}#{anchor}" != facts.runbook:
            yield f"{kind}: the page leads to {page}#{anchor}"
        if others := set(_WHAT_TO_DO.findall(rest)) - {link}:
            yield f"{kind}: the page leads to {link}, and says what to do at {', '.join(sorted(others))}"
        if not opened.startswith(facts.text):
            yield f"{kind}: the page says `{opened}`"
        if not measure.startswith(facts.measure.unit or "none"):
            yield f"{kind}: the page measures `{measure}`"


@dataclass
class _Uses:
    """The kinds that a module names: in all, as the argument of `open`, and as the argument of `close`."""

    all: list[AlarmKind] = field(default_factory=list)
    opened: list[AlarmKind] = field(default_factory=list)
    closed: list[AlarmKind] = field(default_factory=list)


def code_problems(package: Path) -> list[str]:
    """Return where the modules that name a kind differ from those that its facts name, and each literal of a kind.

    A module that names a kind as an argument of `open` alone does not close it, and the reverse. Any other use, such as
    a table of kinds or `breach(KIND, ...)`, may open and close. Comparing with a kind does neither.
    """
    uses: dict[AlarmKind, dict[str, str]] = defaultdict(dict)
    found = []
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package).with_suffix("").parts)
        if module == KINDS:
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [f"{module} writes `{word}`" for word in _literals(tree)]
        seen = _uses(tree)
        for kind in set(seen.all):
            count = seen.all.count(kind)
            only = {seen.opened.count(kind): "opens", seen.closed.count(kind): "closes"}.get(count, "both")
            uses[kind][module] = only
    for kind, facts in FACTS.items():
        for does, named in (("opens", facts.opened_by), ("closes", facts.closed_by)):
            may = {module for module, only in uses[kind].items() if only in (does, "both")}
            must = {module for module, only in uses[kind].items() if only == does}
            found += [f"{module} is said to {does.rstrip('s')} {kind}" for module in set(named) - may]
            found += [f"{module} {does} {kind}" for module in must - set(named)]
        found += [f"{module} names {kind}" for module in set(uses[kind]) - {*facts.opened_by, *facts.closed_by}]
    return sorted(found)


def _uses(tree: ast.AST) -> _Uses:
    uses = _Uses()
    compared = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Compare) for one in node.comparators}
    for node in ast.walk(tree):
        if (kind := _kind(node)) and id(node) not in compared:
            uses.all.append(kind)
        if isinstance(node, ast.Call) and node.args and (kind := _kind(node.args[0])):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            {"open": uses.opened, "close": uses.closed}.get(called, []).append(kind)
    return uses


def _kind(node: ast.AST) -> AlarmKind | None:
    is_kind = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "AlarmKind"
    return AlarmKind[node.attr] if is_kind else None


def _literals(tree: ast.AST) -> Iterator[str]:
    """Yield each text that is a kind's word; an action of the action log may have the same word."""
    actions = {
        id(node.value)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for node in call.keywords
        if node.arg == "action"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in set(AlarmKind) and id(node) not in actions:
            yield str(node.value)
