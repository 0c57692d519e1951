"""`millrace backup audit|coverage|acknowledge`: prove the archive, show what of it is there, say what you know of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from millrace.cli.archive.coverage_text import print_coverage
from millrace.cli.terminal.actor import actor
from millrace.cli.terminal.output import Text, emit, paragraph
from millrace.cli.terminal.reason import Reason
from millrace.domain.archive.audits.findings import Audit, Depth, summed_up
from millrace.domain.archive.manifest import PartitionSpan
from millrace.domain.archive.names import Incarnation
from millrace.domain.archive.proof.partition import Label
from millrace.domain.formats.shortened import shortened
from millrace.errors import Code, MillraceError, RefusedError, UsageError
from millrace.ports.platform import Platform
from millrace.settings import open_settings
from millrace.usecases.archive import audits
from millrace.usecases.archive.audit_page import page_of
from millrace.usecases.archive.audits import Backed, Kept
from millrace.usecases.declaration.lookup import all_pipelines
from millrace.wiring import open_platform

_SHOWN = 50

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Topic = Annotated[str | None, typer.Argument(help="Name one topic; default: all topics with a `backup`.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the noun they belong to."""
    for command in (audit, coverage, acknowledge):
        app.command()(command)


def audit(
    topic: Topic = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Walk the whole chain, and read the objects that are due.")
    ] = False,
    deep_all: Annotated[
        bool, typer.Option("--deep-all", help="Read every object, and compare it with all that Kafka still holds.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare archives with their topics, and keep the evidence in the bucket.

    Exit 0: all is proven, or waits for less than `max_lag`. Exit 1: broken, late, or lost without an acknowledgement.
    Exit 3: a server does not answer, no verdict.
    """
    depth = Depth.ALL if deep_all else Depth.DEEP if deep else Depth.SHALLOW
    platform, found = open_backed(topic)
    kept: list[Kept] = []
    failed: list[MillraceError] = []
    for backed, here in each_archive(platform, found, failed):
        try:
            kept.append(audits.audit(platform, backed, here, depth))
        except MillraceError as error:  # the next one is audited all the same
            failed.append(error)
    document = {
        "schema": "millrace.backup.audit/1",
        "audits": [{"audit": one.audit, "evidence": one.evidence, "page": one.page} for one in kept],
        "failures": [str(error) for error in failed] + [text for one in kept for text in one.failures],
    }
    emit(document, as_json=as_json, text=lambda console: _print_audits(console, kept))
    _end([one.audit for one in kept], failed, [text for one in kept for text in one.failures])


def coverage(
    topic: Topic = None,
    page: Annotated[Path | None, typer.Option(help="Also write the page of one topic to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Show which part of each topic is archived, with a bar for each partition.

    Makes a shallow audit and keeps no evidence. Has the exit codes of `audit`.
    """
    platform, found = open_backed(topic)
    seen: list[Audit] = []
    failed: list[MillraceError] = []
    for backed, here in each_archive(platform, found, failed):
        try:
            seen.append(audits.look_at(platform, backed, here))
        except MillraceError as error:
            failed.append(error)
    if page is not None:
        _write(page, seen)
    document = {"schema": "millrace.backup.coverage/1", "audits": seen, "failures": [str(error) for error in failed]}
    emit(document, as_json=as_json, text=lambda console: print_coverage(console, seen))
    _end(seen, failed, [])


def acknowledge(
    topic: Annotated[str, typer.Argument(help="Name the topic.")],
    reason: Reason,
    partition: Annotated[int | None, typer.Argument(help="Name the partition.")] = None,
    offsets: Annotated[
        str | None, typer.Argument(metavar="FIRST-NEXT", help="Give the offsets from FIRST to before NEXT.")
    ] = None,
    manifest: Annotated[
        int | None, typer.Option(min=0, help="Give the last missing or changed manifest, instead of offsets.")
    ] = None,
    topic_id: Annotated[str | None, typer.Option(help="Choose the archive of a topic that was created again.")] = None,
) -> None:
    """Acknowledge lost offsets or faulty manifests, so that audits of the rest can succeed again.

    For offsets it acknowledges their present fault, and no later one. The backup's app writes the acknowledgement into
    the chain within a minute, while it runs.
    """
    span = _asked(partition, offsets, manifest)
    platform, (backed, *_) = open_backed(topic)
    here = _incarnation(platform, backed, topic_id)
    console = Console()
    if span is None:
        assert manifest is not None
        audits.acknowledge_chain(platform, backed, here, manifest, actor=actor(), reason=reason)
        console.print(Text(f"{here}: manifests up to {manifest} are acknowledged"), soft_wrap=True)
        return
    spans = audits.acknowledge_loss(platform, backed, here, span, actor=actor(), reason=reason)
    named = shortened([f"[{span.first}, {span.next})" for span in spans], _SHOWN)
    console.print(
        Text(f"{here}: partition {span.partition} {named}: asked of {backed.app.qualified_name}"), soft_wrap=True
    )


def open_backed(topic: str | None) -> tuple[Platform, list[Backed]]:
    """The declared topics with a backup, or the one of a name, and what leads to them.

    Raises:
        UsageError: there is none.
    """
    settings = open_settings()
    found = audits.backed_topics(all_pipelines(settings.root), topic)
    if not found:
        raise UsageError("no topic is declared with a backup", next_step="see docs/guide/backup.md")
    return open_platform(settings), found


def each_archive(
    platform: Platform, found: Sequence[Backed], failed: list[MillraceError]
) -> Iterator[tuple[Backed, Incarnation]]:
    """Every incarnation of these topics; what kept one from being found is put to what failed."""
    for backed in found:
        try:
            incarnations = audits.incarnations(platform, backed)
        except MillraceError as error:
            failed.append(error)
            continue
        yield from ((backed, here) for here in incarnations)


def _incarnation(platform: Platform, backed: Backed, topic_id: str | None) -> Incarnation:
    """The incarnation that is meant: of several one has to be named."""
    found = audits.incarnations(platform, backed)
    meant = [here for here in found if topic_id in (None, here.topic_id)]
    if len(meant) != 1:
        ids = ", ".join(here.topic_id for here in found) or "none"
        what = "has several archives" if meant else "has no such archive"
        raise UsageError(
            f"{backed.topic.name} {what}",
            next_step=f"choose one with --topic-id: {ids}",
            code=Code.UNKNOWN_NAME,
        )
    return meant[0]


def _asked(partition: int | None, offsets: str | None, manifest: int | None) -> PartitionSpan | None:
    """The offsets that are meant; None where a manifest is."""
    if manifest is not None:
        if partition is not None:
            raise UsageError("offsets and a manifest exclude each other", next_step="give one of them")
        return None
    if partition is None or offsets is None:
        raise UsageError(
            "the command names no offsets and no manifest", next_step="give PARTITION FIRST-NEXT, or --manifest N"
        )
    return _span(partition, offsets)


def _span(partition: int, text: str) -> PartitionSpan:
    found = re.fullmatch(r"([0-9]{1,19})-([0-9]{1,19})", text)
    try:
        if found:
            return PartitionSpan(partition, int(found[1]), int(found[2]))
    except ValueError:
        pass
    raise UsageError(
        f"{text} of partition {partition} is not a range of offsets",
        next_step="write FIRST-NEXT, as 100-200: 100 to 199",
    )


def _write(page: Path, seen: Sequence[Audit]) -> None:
    if len(seen) != 1:
        raise UsageError(f"a page shows one archive, not {len(seen)}", next_step="name one topic")
    try:
        page.write_text(page_of(seen[0]), encoding="utf-8")
    except OSError as error:
        raise RefusedError(f"the page cannot be written: {error.strerror}", where=str(page)) from error


def _print_audits(console: Console, kept: Sequence[Kept]) -> None:
    for one in kept:
        console.print(Text(audits.in_a_line(one.audit)), soft_wrap=True)
        for line in list(summed_up(one.audit))[:_SHOWN]:
            console.print(Text(f"  {line}"), soft_wrap=True)
        waits = one.audit.offsets(Label.PENDING)
        if waits and one.audit.deletable_in_seconds is not None:
            left = one.audit.deletable_in_seconds
            console.print(Text(f"  {waits:,} offsets wait; the first may be deleted in {left:,.0f} s"), soft_wrap=True)
        for note in one.audit.notes:
            console.print(Text(f"  note: {note}"), soft_wrap=True)
        console.print(Text(f"  evidence: {one.page}"), soft_wrap=True)


def _end(seen: Sequence[Audit], failed: Sequence[MillraceError], notes: Sequence[str]) -> None:
    told_and_ended(failed, [audits.exit_code_of(seen)], notes)


def told_and_ended(failed: Sequence[MillraceError], found: Sequence[int], notes: Sequence[str] = ()) -> NoReturn:
    """Say what failed, and end as the worst says: something wrong goes before what gave no verdict.

    Args:
        failed: what could not be done.
        found: exit codes of what was done.
        notes: what else there is to say.
    """
    errors = Console(stderr=True)
    for text in [*map(str, failed), *dict.fromkeys(notes)]:
        errors.print(paragraph(f"millrace: {text}"), soft_wrap=True)
    codes = {*found, *(error.exit_code for error in failed)}
    raise typer.Exit(next((code for code in (1, 4, 3, 2) if code in codes), 0))
