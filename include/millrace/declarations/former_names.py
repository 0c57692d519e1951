"""Warnings after a topic was renamed: an app, its test, its rules or a source program still uses the former name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
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

    An app names a topic where it takes an input (`inputs["a.b"]`), and its test where it gives one or reads the
    topic's schema. A name that no declaration of the pipeline has any more is looked up as a word in all files of the
    stream.

    Does not guarantee to find a name without a dot, or one that code builds while it runs. A test may name a topic of
    any pipeline, and an app may take the topics of each stream that runs it.

    Args:
        root: the project's root.
        pipelines: those without errors.
    """
    all_pipelines = tuple(pipelines)
    topics = {topic.name for pipeline in all_pipelines for topic in (*pipeline.topics, *pipeline.references)}
    inputs = defaultdict[str, set[str]](set)
    for stream in (each for pipeline in all_pipelines for each in pipeline.streams):
        inputs[stream.app].update(stream.reads)
    for pipeline in all_pipelines:
        declared = _text(root / PIPELINES / f"{pipeline.name}.yaml")
        for stream in pipeline.streams:
            app = {file: _text(root / file) for file in _files_of_app(root, stream)}
            test = f"tests/spark/test_{stream.app}.py"
            files = {**app, test: _text(root / test)}
            files |= {file: _text(root / file) for file in _other_files(pipeline, stream)}
            former = {
                (file, *use) for file, text in app.items() for use in _inputs(text) if use[1] not in inputs[stream.app]
            }
            former |= {(test, *use) for use in _tested(files[test]) if use[1] not in inputs[stream.app] | topics}
            gone = {name for _, _, name in former if not re.search(_word(name), declared) and name not in topics}
            former |= {(file, *found) for file, text in files.items() for found in _lines_with(text, gone)}
            for file, line, name in former:
                yield _warning(Place(file, line, f"streams.{stream.name}.reads"), stream, name)


def _warning(place: Place, stream: Stream, name: str) -> Finding:
    what = f"the stream {stream.qualified_name} does not read the topic `{name}`, which this line names"
    return finding(place, what, f"write one of its topics: {', '.join(stream.reads)}", Severity.WARNING)


def _files_of_app(root: Path, stream: Stream) -> Iterator[str]:
    """Yield the programs of a stream's app, relative to the project's root."""
    for path in sorted((root / "spark_apps" / stream.app).glob("*.py")):
        yield path.relative_to(root).as_posix()


def _other_files(pipeline: Pipeline, stream: Stream) -> Iterator[str]:
    """Yield the rules of a stream and the programs that feed its topics."""
    if stream.quality is not None:
        yield rules_file_of(stream.quality.name)
    yield from (f"sources/{source.program}.py" for source in pipeline.sources if source.writes in stream.reads)


def _inputs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines where an app's `transform` takes an input, each with the name of the topic."""
    for function in _tree(text).body:
        if isinstance(function, ast.FunctionDef) and function.name == "transform":
            parameters = [*function.args.posonlyargs, *function.args.args]
            for node in ast.walk(function):
                yield from _names(_of_inputs(node, parameters[0].arg if parameters else ""))


def _tested(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines where a test gives an input or reads the schema of a topic, each with the name of the topic."""
    for node in ast.walk(_tree(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr="topic"), args=[key]):
                yield from _names([key])
            case ast.Call(
                func=ast.Attribute(attr="transform") | ast.Name(id="transform"), args=[ast.Dict(keys=keys), *_]
            ):
                yield from _names(keys)


def _of_inputs(node: ast.AST, inputs: str) -> Iterator[ast.expr | None]:
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=key) if name == inputs:
            yield key
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[key, *_]) if name == inputs:
            yield key


def _names(parts: Iterable[ast.expr | None]) -> Iterator[tuple[int, str]]:
    """Yield each text with a dot, and its line: others are no names of topics that a search could tell from words."""
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and "." in part.value:
            yield part.lineno, part.value


def _tree(text: str) -> ast.Module:
    """Return a program; an empty one where it cannot be parsed: the start of the stream, or the test, shows that."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module(body=[], type_ignores=[])


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
