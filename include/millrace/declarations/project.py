"""Loading a project's declarations: all of them, or one pipeline and only what it needs of the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from millrace.declarations import advice
from millrace.declarations.build import build_pipeline
from millrace.declarations.draft import Draft, first_bytes, interpret, read_file
from millrace.declarations.environment import (
    EMBEDDED,
    ENVIRONMENTS,
    Overlay,
    apply,
    environment_name,
    read_environment,
    unused,
)
from millrace.declarations.fields import nearest
from millrace.declarations.findings import (
    WHOLE_FILE,
    Finding,
    InvalidDeclarationError,
    Place,
    Severity,
    errors,
    finding,
    in_order,
)
from millrace.declarations.former_names import former_names
from millrace.declarations.prefixes import overlapping
from millrace.declarations.quality import check_quality, column_advice, value_columns
from millrace.declarations.quality import unused as unused_rules
from millrace.declarations.reader import Mapping
from millrace.declarations.rules import PIPELINES, check_pipeline
from millrace.declarations.sinks import written_topics
from millrace.declarations.world import World, claims_of
from millrace.domain.declaration.pipeline import App, Environment, Pipeline
from millrace.errors import Code, UsageError


@dataclass(frozen=True, slots=True)
class Project:
    """A project's declarations with one environment applied.

    `pipelines` are those without errors; `findings` are the errors of all the others, and of the environment;
    `warnings` are advice. A broken file takes no other one down.
    """

    root: Path
    environment: Environment
    pipelines: tuple[Pipeline, ...]
    findings: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()

    @property
    def apps(self) -> dict[str, tuple[Pipeline, App]]:
        """Return the apps of all sound pipelines by their full names, each with its pipeline."""
        return {app.qualified_name: (pipeline, app) for pipeline in self.pipelines for app in pipeline.apps}


@dataclass
class Survey:
    """The pipeline files that were read, with their environment applied."""

    root: Path
    overlay: Overlay
    drafts: dict[str, Draft] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def world(self) -> World:
        """All drafts together."""
        return World(self.drafts, self.unreadable)

    def add(self, name: str) -> None:
        """Read one pipeline file and check it by itself."""
        file = file_of(name)
        tree, findings = read_file(self.root, file)
        if tree is None:
            self.findings.extend(findings)
            self.unreadable[file] = _text(self.root / file)
            return
        draft = self.draft(name, tree)
        draft.findings.extend(findings)
        if draft.sound and (effective := apply(self.overlay, name, tree)) is not tree:
            draft = self.draft(name, effective)
        self.drafts[name] = draft

    def draft(self, name: str, tree: Mapping) -> Draft:
        """A pipeline's parts, checked by themselves."""
        draft = interpret(name, file_of(name), tree)
        check_pipeline(draft, self.root)
        check_quality(draft, self.root)
        return draft


def file_of(name: str) -> str:
    """The file of a pipeline, relative to the project's root."""
    return f"{PIPELINES}/{name}.yaml"


def names(root: Path) -> list[str]:
    """The names of all pipeline files, sorted."""
    return sorted(path.stem for path in (root / PIPELINES).glob("*.yaml") if not path.name.startswith("."))


def survey(root: Path, environment: str | None = None) -> Survey:
    """Every pipeline file, read and checked by itself and against the others.

    Raises:
        InvalidDeclarationError: the environment file has errors.
        UsageError: there is no such environment.
    """
    found = Survey(root, _overlay(root, environment))
    for name in names(root):
        found.add(name)
    world = found.world
    for draft in found.drafts.values():
        world.check(draft)
    found.findings += unused(found.overlay, found.drafts, complete=not found.unreadable)
    found.findings += _misnamed(root)
    if not found.unreadable and all(draft.sound for draft in found.drafts.values()):
        found.findings += unused_rules(root, {name for draft in found.drafts.values() for name in draft.rule_files})
    return found


def load(root: Path, environment: str | None = None) -> Project:
    """All pipelines of a project.

    Args:
        root: the project's root.
        environment: an environment's name; None means `MILLRACE_ENVIRONMENT`, else `embedded`.

    Returns:
        The sound pipelines, and the findings of all others.

    Raises:
        InvalidDeclarationError: the environment file has errors, so nothing may be trusted.
        UsageError: there is no such environment.
    """
    found = survey(root, environment)
    world = found.world
    pipelines = tuple(build_pipeline(draft, world) for draft in found.drafts.values() if draft.sound)
    findings = [*found.findings, *(each for draft in found.drafts.values() for each in draft.findings)]
    embedded = found.overlay.environment.name == EMBEDDED
    sound = [draft for draft in found.drafts.values() if draft.sound]
    fed = {source.document.writes for draft in sound for source in draft.sources.values()}
    warnings = [each for draft in sound for each in advice.warnings(draft, embedded=embedded, fed=fed)]
    warnings += [each for draft in sound for each in advice.sink_warnings(draft, world)]
    warnings += [each for draft in sound for each in _of_columns(root, draft, world)]
    warnings += [each for each in findings if each.severity is Severity.WARNING]
    return Project(root, found.overlay.environment, pipelines, errors(findings), in_order(warnings))


def load_environment(root: Path, environment: str | None = None) -> Environment:
    """Who operates this installation and whom its alarms are told; reads no pipeline.

    Raises:
        InvalidDeclarationError: the environment file has errors.
        UsageError: there is no such environment.
    """
    return _overlay(root, environment).environment


def load_pipeline(root: Path, name: str, environment: str | None = None) -> Pipeline:
    """One pipeline: its own file is read, and of the others only those that name something of it.

    Does not guarantee that the other files are sound; only what this pipeline refers to must be.

    Raises:
        InvalidDeclarationError: the pipeline or the environment has errors; `findings` holds them all.
        UsageError: there is no such pipeline or environment.
    """
    found = survey_pipeline(root, name, environment)
    return build_pipeline(found.drafts[name], found.world)


def survey_pipeline(root: Path, name: str, environment: str | None = None) -> Survey:
    """One pipeline without errors, beside those it has to do with.

    Raises:
        InvalidDeclarationError: the pipeline or the environment has errors.
        UsageError: there is no such pipeline or environment.
    """
    if not (root / file_of(name)).exists():
        raise _no_such_pipeline(root, name)
    found = Survey(root, _overlay(root, environment))
    found.add(name)
    if name not in found.drafts:
        raise InvalidDeclarationError(found.findings)
    draft = found.drafts[name]
    _add_related(found, draft)
    found.world.check(draft)
    if wrong := errors(draft.findings):
        raise InvalidDeclarationError(wrong)
    return found


def _add_related(found: Survey, draft: Draft) -> None:
    """Read the other files that one has to do with: those that name something of it, and those that it writes to.

    Whether records come back to a stream through others, only all the files show that they come by: what a file's
    streams write is looked for in the others, what those write of it as well, and so on.
    """
    texts = {other: _text(found.root / file_of(other)) for other in names(found.root) if other != draft.name}
    wanted, followed = _related(draft), found.world.downstream(draft)
    while wanted:
        for other in [name for name, text in texts.items() if wanted.search(text)]:
            del texts[other]
            found.add(other)
        further = found.world.downstream(draft) - followed
        wanted = re.compile("|".join(map(re.escape, sorted(further)))) if further else None
        followed |= further


def _related(draft: Draft) -> re.Pattern[str] | None:
    """The name of a topic, group, table or prefix of a file, as it stands in others as plain text.

    A key that is like a topic's name but for `.` and `_` counts too, because Kafka takes them for the same.
    """
    words = {*draft.tree.mapping("topics").entries}
    keys = [re.sub(r"\\\.|_", "[._]", re.escape(word)) + r"[\"']?\s*:" for word in words]
    for name, stream in draft.streams.items():
        words.add(stream.document.group or f"millrace.{draft.name}.{name}")
        words.update(stream.document.reads or ())
        words.update(topic for _, topic in written_topics(stream.tree))
        for _, claim in claims_of(stream.document.writes):
            if claim.nests:
                keys.append(overlapping(claim.name, claim.what))
            else:
                words.add(claim.name)
    words.update(source.document.writes for source in draft.sources.values() if source.document.writes)
    return re.compile("|".join([re.escape(word) for word in words] + keys)) if words or keys else None


def _of_columns(root: Path, draft: Draft, world: World) -> Iterable[Finding]:
    """Warnings of columns in rules that no topic declares."""
    for name, rules in draft.rules.items():
        reads = [world.topic(topic) for topic in draft.streams[name].document.reads]
        columns = value_columns(part.document.value for part in reads if part is not None and part.document.value)
        app = _text(root / "spark_apps" / draft.streams[name].document.app / "transform.py")
        yield from column_advice(rules, f"{draft.name}.{name}", columns, app)


def check(root: Path, environment: str | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong with a project's declarations, and advice, sorted by file and line.

    Raises:
        UsageError: there is no such environment.
    """
    try:
        project = load(root, environment)
    except InvalidDeclarationError as error:
        return error.findings
    return in_order([*project.findings, *project.warnings, *former_names(root, project.pipelines)])


def _overlay(root: Path, environment: str | None) -> Overlay:
    overlay, findings = read_environment(root, environment_name(environment))
    if overlay is None:
        raise InvalidDeclarationError(errors(findings))
    return overlay


def _misnamed(root: Path) -> list[Finding]:
    """Files that look like declarations, but are not read."""
    found = []
    for folder in (PIPELINES, ENVIRONMENTS):
        for path in sorted((root / folder).glob("*.yml")):
            place = Place(f"{folder}/{path.name}", 1, WHOLE_FILE)
            what = "the file is not read, because its name does not end in .yaml"
            found.append(finding(place, what, f"rename it to {path.stem}.yaml", Severity.ERROR))
    return found


def _no_such_pipeline(root: Path, name: str) -> UsageError:
    step = nearest(name, names(root)) or f"write {PIPELINES}/NAME.yaml, or run `./millrace spec new NAME`"
    return UsageError(f"pipeline `{name}` does not exist", where=file_of(name), next_step=step, code=Code.UNKNOWN_NAME)


def _text(path: Path) -> str:
    """A file's text for looking words up; empty where it cannot be read."""
    try:
        return first_bytes(path).decode("utf-8", errors="replace")
    except OSError:
        return ""
