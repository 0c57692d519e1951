"""Every stream and every backup there is, for people: what is wanted, how it is, how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from millrace.declarations import Finding, Project, load, load_pipeline
from millrace.declarations.project import file_of
from millrace.domain.declaration.pipeline import App, Pipeline, is_backup
from millrace.domain.retention.headroom import Headroom
from millrace.domain.streams.standing import former_error, last_error
from millrace.domain.streams.supervision import StreamState
from millrace.errors import Code, MillraceError, UnreachableError, UsageError
from millrace.usecases.retention.unarchived import of_backup
from millrace.usecases.streams.look import Supervised, look

if TYPE_CHECKING:
    from datetime import datetime

    from millrace.domain.streams.control import Attempt, StreamProgress
    from millrace.ports.platform import Platform


@dataclass(frozen=True, slots=True)
class StreamRow:
    """One stream. `lag` is in records; None where Kafka does not answer or the topic is not there yet.

    `last_error` is of the present epoch, `former_error` of the one before it.

    `headroom`, of a backup that is shown alone, is the unarchived record that may be deleted first; None: none may, or
    nobody can tell.
    """

    stream: str
    wanted: str
    report: Supervised
    declared: bool
    group: str = ""
    lag: int | None = None
    last_error: str = ""
    former_error: str = ""
    progress: StreamProgress | None = None
    attempts: Sequence[Attempt] = ()
    changed_by: str = ""
    changed_at: datetime | None = None
    reason: str = ""
    headroom: Headroom | None = None


@dataclass(frozen=True, slots=True)
class StreamList:
    """All streams by name, and what kept the list from being complete."""

    streams: Sequence[StreamRow]
    problems: Sequence[str] = ()
    findings: Sequence[Finding] = ()


def list_streams(platform: Platform, *, pipeline: str | None = None, with_lag: bool = True) -> StreamList:
    """Every stream or backup that is declared, was ever wanted, or lives; with `pipeline` only those of that one.

    Raises:
        UsageError: there is no such pipeline, and no stream of that name is known either.
        UnreachableError: the control database does not answer.
    """
    project = load(platform.settings.root)
    everything = _known(platform, project)
    names = sorted(name for name in everything if pipeline is None or name.partition(".")[0] == pipeline)
    findings = project.findings
    if pipeline is not None:
        file = file_of(pipeline)
        findings = tuple(finding for finding in findings if finding.file == file)
        if not names and not (platform.settings.root / file).exists():
            known = ", ".join(sorted({name.partition(".")[0] for name in everything})) or "none"
            raise UsageError(
                f"pipeline `{pipeline}` does not exist",
                next_step=f"choose one of: {known}",
                code=Code.UNKNOWN_NAME,
            )
    declared = {name: both for name, both in project.apps.items() if name in names}
    problems: list[str] = []
    lags = _lags(platform, declared, problems) if with_lag else {}
    sound = {pipeline.name for pipeline in project.pipelines}
    rows = [_row(platform, name, declared.get(name), lags) for name in names]
    rows = [_undeclared(row) if _is_undeclared(platform, row, sound) else row for row in rows]
    return StreamList(rows, problems, findings)


def _known(platform: Platform, project: Project) -> set[str]:
    wanted = {desired.stream for desired in platform.control.streams.all_desired()}
    return {*project.apps, *wanted, *platform.apps.runner().find_all()}


def show_stream(platform: Platform, name: str) -> StreamRow:
    """One stream.

    Raises:
        UsageError: there is no such stream.
        UnreachableError: the control database does not answer.
    """
    everything = list_streams(platform)
    for row in everything.streams:
        if row.stream == name:
            return replace(row, headroom=_headroom(platform, name)) if is_backup(name) and row.declared else row
    known = ", ".join(row.stream for row in everything.streams) or "none"
    raise UsageError(f"stream `{name}` does not exist", next_step=f"choose one of: {known}", code=Code.UNKNOWN_NAME)


def _headroom(platform: Platform, name: str) -> Headroom | None:
    pipeline = load_pipeline(platform.settings.root, name.partition(".")[0])
    if pipeline.backup is None:
        return None
    try:
        return of_backup(platform, pipeline.kafka, pipeline.backup)
    except MillraceError:  # the lag is not known then either, which says so
        return None


def _is_undeclared(platform: Platform, row: StreamRow, sound: set[str]) -> bool:
    """Whether no declaration names it; one whose pipeline has errors is not called undeclared."""
    pipeline = row.stream.partition(".")[0]
    return not row.declared and (pipeline in sound or not (platform.settings.root / file_of(pipeline)).exists())


def _undeclared(row: StreamRow) -> StreamRow:
    return replace(row, report=replace(row.report, state=StreamState.UNDECLARED))


def _row(
    platform: Platform, name: str, declared: tuple[Pipeline, App] | None, lags: Mapping[str, int | None]
) -> StreamRow:
    seen = look(platform, name)
    progress = platform.control.streams.progress(name)
    last = next((attempt for attempt in seen.attempts if attempt.ended_at), None)
    report = seen.report
    return StreamRow(
        stream=name,
        wanted=seen.desired.state.value if seen.desired else "stopped",
        report=report,
        declared=declared is not None,
        group=declared[1].group if declared else "",
        lag=lags.get(name),
        last_error=last_error(progress, last, report.epoch),
        former_error=former_error(last, report.epoch),
        progress=progress,
        attempts=seen.attempts,
        changed_by=seen.desired.changed_by if seen.desired else "",
        changed_at=seen.desired.changed_at if seen.desired else None,
        reason=seen.desired.reason if seen.desired else "",
    )


def _lags(
    platform: Platform, declared: Mapping[str, tuple[Pipeline, App]], problems: list[str]
) -> dict[str, int | None]:
    """The lag of each declared stream; a cluster that does not answer is asked once and named."""
    lags: dict[str, int | None] = {}
    silent: set[str] = set()
    for name, (pipeline, app) in declared.items():
        if pipeline.kafka in silent:
            continue
        try:
            lags[name] = platform.kafka.groups(pipeline.kafka).lag(app.group, app.reads)
        except UnreachableError as error:
            silent.add(pipeline.kafka)
            problems.append(str(error))
        except MillraceError as error:
            problems.append(str(error))
    return lags
