"""The messages of errors, read from the package's source: each with its code, a mark for what varies in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millrace import errors
from millrace.errors import Code, MillraceError

PACKAGE = Path(errors.__file__).parent
VARIES = "…"
BECOME_ERRORS = {"WrongTimeError": Code.WRONG_TIME, "WrongSelectionError": Code.WRONG_USAGE}
"""Errors of `domain`, which a command turns into errors with a code."""
SECTION = re.compile(r"^## `(?P<code>[a-z-]+)`\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
LIST = "\nMessages:\n"


@dataclass(frozen=True, order=True)
class Message:
    """A message of an error.

    Args:
        code: of the error.
        text: with a mark for each part that varies.
    """

    code: Code
    text: str


def messages() -> frozenset[Message]:
    """Return each message that the package writes where it makes an error. A text that wholly varies is left out."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    codes = _codes_of_classes(trees)
    found = {message for tree in trees for message in _of(tree, codes)}
    return frozenset(message for message in found if re.search(r"\w", message.text.replace(VARIES, "")))


def next_steps() -> frozenset[str]:
    """Return each next step of an error or a finding, with a mark for what varies in it."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    return frozenset(
        " ".join(text.split())
        for tree in trees
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "next_step"
        for text in _texts(keyword.value)
    )


def sections(page: str) -> dict[str, str]:
    """Return the text below each heading of a page that is a code."""
    return {found["code"]: found["text"] for found in SECTION.finditer(page)}


def with_messages(page: str, known: frozenset[Message]) -> str:
    """Return a page of errors whose lists of messages are those that the package writes; its other text stays."""

    def rewritten(found: re.Match[str]) -> str:
        prose = found["text"].partition(LIST)[0].rstrip("\n")
        items = [f"- `{message.text}`" for message in sorted(known) if message.code == found["code"]]
        listed = f"\n{LIST}" + "\n".join(items) if items else ""
        return f"## `{found['code']}`\n{prose}{listed}\n\n"

    return SECTION.sub(rewritten, page).rstrip("\n") + "\n"


def _codes_of_classes(trees: list[ast.Module]) -> dict[str, Code]:
    """Return the usual code of each class of errors, by its name."""
    own: dict[str, tuple[list[str], Code | None]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own[node.name] = ([ast.unparse(base).split(".")[-1] for base in node.bases], _usual(node))
    found: dict[str, Code] = {MillraceError.__name__: MillraceError.usual_code}

    def code_of(name: str) -> Code | None:
        if name in found or name not in own:
            return found.get(name)
        bases, usual = own[name]
        inherited = next(filter(None, map(code_of, bases)), None)
        return (usual or inherited) if inherited else None

    return {**{name: code for name in own if (code := code_of(name))}, **BECOME_ERRORS}


def _usual(node: ast.ClassDef) -> Code | None:
    for line in node.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "usual_code":
            return Code[ast.unparse(line.value).split(".")[-1]]
    return None


def _of(tree: ast.Module, codes: dict[str, Code]) -> Iterator[Message]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        code = codes.get(ast.unparse(call.func).split(".")[-1])
        if code is None or not call.args:
            continue
        for keyword in call.keywords:
            if keyword.arg == "code" and ast.unparse(keyword.value).startswith("Code."):
                code = Code[ast.unparse(keyword.value).removeprefix("Code.")]
        for argument in call.args:
            for text in _texts(argument):
                yield Message(code, " ".join(text.split()))


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression may have."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            yield node.value.replace("`", "'")
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else VARIES for part in node.values]
        yield "".join(map(str, parts)).replace("`", "'")
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for left in _texts(node.left):
            for right in _texts(node.right):
                yield left + right
    else:
        yield VARIES
