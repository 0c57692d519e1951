"""Warnings after a topic was renamed: an app, its test, its rules or a source program still uses the former name."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from millrace.declarations.draft import first_bytes
from millrace.declarations.findings import Finding, Place, Severity, finding
from millrace.declarations.quality import file_of as rules_file_of
from millrace.declarations.rules import PIPELINES
from millrace.domain.declaration.pipeline import Pipeline, Stream

_NAME = r"(?<![\w.-]){}(?![\w-]|\.\w)"
"""A name as a whole word: it may end a sentence, and is no part of a longer name."""


def former_names(root: Path, pipelines: Iterable[Pipeline]) -> Iterator[Finding]:
    """Yield a warning for each line that uses a topic that its stream does not read.

    An app names a topic where it takes an input (`inputs["a.b"]`), and a test where it gives one or reads the topic's
    schema. A name that no stream or declaration has any more is looked up as a word in all files of the stream.

    Does not guarantee to find a name that code builds while it runs.

    Args:
        root: the project's root.
        pipelines: those without errors.
    """
    for pipeline in pipelines:
        declared = _text(root / PIPELINES / f"{pipeline.name}.yaml")
        streams = {stream.qualified_name for stream in pipeline.streams}
        for stream in pipeline.streams:
            files = {file: _text(root / file) for file in _files_of(root, pipeline, stream)}
            used = {(file, line, name) for file, text in files.items() for line, name in _used(file, text)}
            former = {(file, line, name) for file, line, name in used if name not in stream.reads}
            gone = {name for _, _, name in former if name not in streams and not re.search(_word(name), declared)}
            former |= {(file, *found) for file, text in files.items() for found in _lines_with(text, gone)}
            for file, line, name in former:
                yield _warning(Place(file, line, f"streams.{stream.name}.reads"), stream, name)


def _warning(place: Place, stream: Stream, name: str) -> Finding:
    what = f"the stream {stream.qualified_name} does not read the topic `{name}`, which this line names"
    return finding(place, what, f"write one of its topics: {', '.join(stream.reads)}", Severity.WARNING)


def _files_of(root: Path, pipeline: Pipeline, stream: Stream) -> Iterator[str]:
    """Yield the files of a stream that may name its topics, relative to the project's root."""
    for path in sorted((root / "spark_apps" / stream.app).glob("*.py")):
        yield path.relative_to(root).as_posix()
    yield f"tests/spark/test_{stream.app}.py"
    if stream.quality is not None:
        yield rules_file_of(stream.quality.name)
    yield from (f"sources/{source.program}.py" for source in pipeline.sources if source.writes in stream.reads)


def _used(file: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a program where it names a topic as an input, each with the name."""
    if not file.endswith(".py"):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return  # the start of the stream, or the test, shows it
    inputs = {
        node.args.args[0].arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "transform" and node.args.args
    }
    for node in ast.walk(tree):
        for part in _names_of_topics(node, inputs):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def _names_of_topics(node: ast.AST, inputs: Collection[str]) -> Iterator[ast.expr | None]:
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=key) if name in inputs:
            yield key
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[key, *_]) if name in inputs:
            yield key
        case ast.Call(func=ast.Attribute(attr="topic"), args=[key]):
            yield key
        case ast.Call(func=ast.Attribute(attr="transform") | ast.Name(id="transform"), args=[ast.Dict(keys=keys), *_]):
            yield from keys


def _lines_with(text: str, names: Collection[str]) -> Iterator[tuple[int, str]]:
    for name in names:
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(_word(name), line):
                yield number, name


def _word(name: str) -> str:
    return _NAME.format(re.escape(name))


def _text(path: Path) -> str:
    """Return a file's text; empty where it cannot be read."""
    try:
        return first_bytes(path).decode("utf-8", errors="replace")
    except OSError:
        return ""
