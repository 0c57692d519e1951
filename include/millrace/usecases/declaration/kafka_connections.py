"""Declared pipelines against the Kafka Connections that can be seen here; no broker is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millrace.declarations.findings import Finding, Place, Severity, finding, in_order
from millrace.declarations.project import file_of
from millrace.domain.declaration.kafka_security import Client, notices, refusals
from millrace.domain.declaration.pipeline import Pipeline
from millrace.errors import MillraceError
from millrace.settings import Settings


@dataclass(frozen=True, slots=True)
class ConnectionFindings:
    """The answer of the Connections.

    Attributes:
        findings: pipelines whose apps cannot connect; warnings where they do, in another way than is said.
        silent: Connections that are not defined here, in a line each.
    """

    findings: tuple[Finding, ...] = ()
    silent: tuple[str, ...] = ()


def connection_findings(settings: Settings, pipelines: Iterable[Pipeline]) -> ConnectionFindings:
    """Return which pipelines have streams or a backup that Spark cannot connect for, as their Connection says.

    A Connection that is defined elsewhere only is no error: declarations are also checked where no server is. Files
    that a Connection names are looked at where apps run, by `doctor` and each start.
    """
    findings: list[Finding] = []
    silent: set[str] = set()
    for pipeline in pipelines:
        if not (pipeline.streams or pipeline.backup):
            continue
        if settings.lookup(pipeline.kafka) is None:
            silent.add(f"connection {pipeline.kafka} is not defined here: its security settings were not checked")
            continue
        place = _place(settings, pipeline)
        try:
            keys = settings.kafka(pipeline.kafka).librdkafka
        except MillraceError as error:
            findings.append(finding(place, f"{error.where}: {error.what}", error.next_step))
            continue
        step = f"change the extra of connection {pipeline.kafka} as docs/reference/connections.md says"
        findings += [
            finding(place, f"Spark cannot connect by {pipeline.kafka}: {each}", step)
            for each in refusals(keys, Client.SPARK)
        ]
        told = (f"Spark by {pipeline.kafka}: {each}" for each in notices(keys, Client.SPARK))
        findings += [finding(place, each, step, Severity.WARNING) for each in told]
    return ConnectionFindings(in_order(findings), tuple(sorted(silent)))


def _place(settings: Settings, pipeline: Pipeline) -> Place:
    """Return the line that names the Connection; the first one where the default counts."""
    file = file_of(pipeline.name)
    lines = (settings.root / file).read_text(encoding="utf-8").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if text.startswith("kafka:")), 1)
    return Place(file, line, "kafka")
