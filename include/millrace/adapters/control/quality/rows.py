"""Checks as JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from millrace.adapters.control.quality.marks import mark_body, mark_of, partition_body
from millrace.domain.quality.results import Freshness, Gain, Outcome, QualityCheck, RuleResult
from millrace.domain.quality.rules import Severity
from millrace.domain.topics.offsets import OffsetRange, SourceAt, TopicPartition

VERSION = 1


def body_of(check: QualityCheck) -> dict[str, Any]:
    """All of a check but what its row has in columns of their own."""
    return {
        "version": VERSION,
        "ended": _text(check.ended),
        "reached": mark_body(check.reached),
        "upto": mark_body(check.upto),
        "ranges": [[*partition_body(one.partition), one.first, one.next] for one in check.ranges],
        "rows": check.rows,
        "results": [_result_body(result) for result in check.results],
        "gain": None if check.gain is None else [check.gain.rows, check.gain.span.total_seconds()],
        "window": None if check.window is None else [_text(at) for at in check.window],
        "freshness": None if check.freshness is None else _freshness_body(check.freshness),
        "problem": check.problem,
        "evidence": list(check.evidence),
    }


def check_of(row: Any) -> QualityCheck:
    """A check out of its row."""
    body: Mapping[str, Any] = row.body
    window, gain, freshness = body["window"], body["gain"], body["freshness"]
    return QualityCheck(
        stream=row.stream,
        began=row.began.astimezone(UTC),
        ended=_time(body["ended"]),
        reached=mark_of(body["reached"]),
        upto=mark_of(body["upto"]),
        ranges=tuple(OffsetRange(TopicPartition(*one[:3]), one[3], one[4]) for one in body["ranges"]),
        rows=body["rows"],
        results=tuple(_result(each) for each in body["results"]),
        gain=None if gain is None else Gain(gain[0], timedelta(seconds=gain[1])),
        window=None if window is None else (_time(window[0]), _time(window[1])),
        freshness=None if freshness is None else _freshness(freshness),
        problem=body["problem"],
        identity=row.id,
        evidence=tuple(body["evidence"]),
        actor=row.actor,
    )


def _result_body(result: RuleResult) -> dict[str, Any]:
    return {
        "rule": result.rule,
        "kind": result.kind,
        "severity": result.severity.value,
        "outcome": result.outcome.value,
        "rows": result.rows,
        "broken": result.broken,
        "detail": result.detail,
        "sources": [[one.topic, one.partition, one.offset] for one in result.sources],
    }


def _result(body: Mapping[str, Any]) -> RuleResult:
    return RuleResult(
        rule=body["rule"],
        kind=body["kind"],
        severity=Severity(body["severity"]),
        outcome=Outcome(body["outcome"]),
        rows=body["rows"],
        broken=body["broken"],
        detail=body["detail"],
        sources=tuple(SourceAt(*one) for one in body["sources"]),
    )


_MOMENTS = ("record_at", "batch_at", "visible_at")


def _freshness_body(freshness: Freshness) -> dict[str, Any]:
    moments = {name: None if (at := getattr(freshness, name)) is None else _text(at) for name in _MOMENTS}
    events = {name: _text(at) for name, at in freshness.events.items()}
    return {"checked_at": _text(freshness.checked_at), "events": events, **moments}


def _freshness(body: Mapping[str, Any]) -> Freshness:
    moments = {name: None if body[name] is None else _time(body[name]) for name in _MOMENTS}
    events = {name: _time(text) for name, text in body["events"].items()}
    return Freshness(_time(body["checked_at"]), events, **moments)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
