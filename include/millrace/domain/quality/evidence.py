"""Evidence of a check: its documents, and what a bucket calls them.

    quality/PIPELINE.STREAM/TIME-HASH.json
    quality/PIPELINE.STREAM/TIME-HASH.html

TIME is when the check began, so that a listing is in its order; HASH begins the SHA-256 of the JSON.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from millrace.domain.quality.results import QualityCheck, RuleResult

ROOT = "quality/"


def folder_of(stream: str) -> str:
    """Where the evidence of a stream, PIPELINE.STREAM, lies."""
    return f"{ROOT}{stream}/"


def moment_of(at: datetime) -> str:
    """A moment as it stands in keys, in microseconds, so that they sort by it."""
    return at.astimezone(UTC).strftime("%Y%m%dT%H%M%S%fZ")


def document_of(check: QualityCheck) -> bytes:
    """A check as JSON: counts, ages and sources; no value of a row, and no time that one has."""
    freshness = [] if check.freshness is None else check.freshness.parts
    document = {
        "schema": "millrace.quality/1",
        "stream": check.stream,
        "began": check.began.isoformat(),
        "ended": check.ended.isoformat(),
        "actor": check.actor,
        "verdict": check.verdict.value,
        "problem": check.problem,
        "window": None if check.window is None else [at.isoformat() for at in check.window],
        "timeline": check.reached.timeline,
        "ranges": [
            {
                "topic": one.partition.topic,
                "topic_id": one.partition.topic_id,
                "partition": one.partition.partition,
                "first": one.first,
                "next": one.next,
            }
            for one in check.ranges
        ],
        "rows": check.rows,
        "freshness_seconds": {name: round(age.total_seconds(), 3) for name, age in freshness},
        "results": [_result(result) for result in check.results],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode()


def _result(result: RuleResult) -> dict[str, object]:
    return {
        "rule": result.rule,
        "kind": result.kind,
        "severity": result.severity.value,
        "outcome": result.outcome.value,
        "rows": result.rows,
        "broken": result.broken,
        "detail": result.detail,
        "sources": [str(source) for source in result.sources],
    }


def documents_of(check: QualityCheck, page: str) -> list[tuple[str, bytes]]:
    """The documents of a check by their keys; of one without a page the JSON alone."""
    data = document_of(check)
    stem = f"{folder_of(check.stream)}{moment_of(check.began)}-{hashlib.sha256(data).hexdigest()[:16]}"
    return [(f"{stem}.json", data), *([(f"{stem}.html", page.encode())] if page else [])]
