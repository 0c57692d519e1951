"""Compare the kinds of alarms with the code that opens and closes them, and with the page of alarms."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from millrace.domain.alarms.kinds import FACTS, AlarmKind

KINDS = "domain.alarms.kinds"
PAGE = "operations/alarms.md"
_DETAILS = {"alarm": 1, "breach": 2}  # the place of the detail in a report; None closes the alarm
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
    """The kinds that a module names, those that it opens and closes by name, and those that it handles in another way.

    Attributes:
        opened: arguments of `open`, and of a report with a detail.
        closed: arguments of `close`, and of a report without one.
        others: such as a table of kinds. The module opens and closes them only if it passes a variable to `open` or
            `close`.
        opens_variable: a variable is passed to `open`.
        closes_variable: a variable is passed to `close`.
    """

    opened: set[AlarmKind] = field(default_factory=set)
    closed: set[AlarmKind] = field(default_factory=set)
    others: set[AlarmKind] = field(default_factory=set)
    opens_variable: bool = False
    closes_variable: bool = False

    @property
    def all(self) -> set[AlarmKind]:
        """The kinds that the module names."""
        return self.opened | self.closed | self.others

    def does(self, kind: AlarmKind, does: str) -> tuple[bool, bool]:
        """Return if the module opens or closes a kind by name, and if it may do so by any means."""
        named, by_variable = {
            "opens": (self.opened, self.opens_variable),
            "closes": (self.closed, self.closes_variable),
        }[does]
        return kind in named, kind in named or (by_variable and kind in self.others)


def code_problems(package: Path) -> list[str]:
    """Return each literal of a kind, each hidden use of the enum, and where code and facts name other modules.

    A kind opens as the argument of `open`, or of a report with a detail; it closes as the argument of `close`, or of a
    report without one. A comparison does neither.
    """
    uses: dict[str, _Uses] = {}
    found = []
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package).with_suffix("").parts)
        if module == KINDS:
            continue
        literals, hidden, uses[module] = _looked_at(file.read_text(encoding="utf-8"))
        found += [f"{module} writes `{word}`" for word in literals]
        found += [f"{module} hides a kind: `{code}`" for code in hidden]
    for kind, facts in FACTS.items():
        for does, named in (("opens", facts.opened_by), ("closes", facts.closed_by)):
            seen = {module: each.does(kind, does) for module, each in uses.items()}
            must = {module for module, (by_name, _) in seen.items() if by_name}
            may = {module for module, (_, by_any_means) in seen.items() if by_any_means}
            found += [f"{module} is said to {does.rstrip('s')} {kind}" for module in set(named) - may]
            found += [f"{module} {does} {kind}" for module in must - set(named)]
        naming = {module for module, each in uses.items() if kind in each.all}
        found += [f"{module} names {kind}" for module in naming - {*facts.opened_by, *facts.closed_by}]
    return sorted(found)


@cache  # a test changes one module in hundreds
def _looked_at(text: str) -> tuple[tuple[str, ...], tuple[str, ...], _Uses]:
    tree = ast.parse(text)
    return tuple(_literals(tree)), tuple(_hidden(tree)), _uses(tree)


def _uses(tree: ast.AST) -> _Uses:
    uses = _Uses()
    counted = set(_compared(tree))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        effects = _effects(called, call.args)
        for argument in call.args[: 2 if called == "Alarm" else 1]:
            if effects and (kind := _kind(argument)):
                counted.add(id(argument))
                for effect in effects:
                    {"open": uses.opened, "close": uses.closed}[effect].add(kind)
        if call.args and isinstance(call.args[0], ast.Name):
            uses.opens_variable |= called == "open"
            uses.closes_variable |= called == "close"
    uses.others = {kind for node in ast.walk(tree) if id(node) not in counted and (kind := _kind(node))}
    return uses


def _effects(called: str, arguments: list[ast.expr]) -> tuple[str, ...]:
    """Return if a call opens or closes the kind that is its argument, or both."""
    if called in ("open", "close"):
        return (called,)
    if called in ("Alarm", "_say"):  # the watchdog keeps no row; `_say` gets a text that may be None
        return ("open", "close")
    place = _DETAILS.get(called)
    if place is None or len(arguments) <= place:
        return ()
    detail = arguments[place]
    if isinstance(detail, ast.IfExp):
        return tuple(_effect(branch) for branch in (detail.body, detail.orelse))
    return (_effect(detail),)


def _effect(detail: ast.expr) -> str:
    return "close" if isinstance(detail, ast.Constant) and detail.value is None else "open"


def _compared(tree: ast.AST) -> Iterator[int]:
    """Yield each side of a comparison and each member of a tuple, list or set that is one."""
    for compare in (node for node in ast.walk(tree) if isinstance(node, ast.Compare)):
        for side in (compare.left, *compare.comparators):
            members = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else ()
            yield from (id(one) for one in (side, *members))


def _hidden(tree: ast.AST) -> Iterator[str]:
    """Yield the uses of the enum that `_kind` does not see: another import, a member by its name as text."""
    for node in ast.walk(tree):
        by_text = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "AlarmKind"
        by_module = isinstance(node, ast.Attribute) and node.attr == "AlarmKind"
        if by_text or by_module:
            yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            names = {name.name: name.asname for name in node.names}
            if "AlarmKind" in names and (node.module, names["AlarmKind"]) != (f"millrace.{KINDS}", None):
                yield ast.unparse(node)


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
