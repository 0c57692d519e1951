"""Forecasts as rows of the control database, and back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from millrace.domain.retention.forecasts.estimates import Estimate, Forecast, Limits
from millrace.domain.retention.forecasts.history import TopicLook
from millrace.domain.retention.inflow import Band, Growth

_VERSION = 1
_MILLISECOND = timedelta(milliseconds=1)


def look_of(row: Any) -> TopicLook:
    """A row with a look at a topic."""
    return TopicLook(
        row.topic, row.topic_id, row.at, int(row.ends), row.record_bytes, int(row.size_bytes), row.partitions
    )


def body_of(forecast: Forecast) -> dict[str, Any]:
    """A forecast as a document, but for when it was made."""
    limits, growth = forecast.limits, forecast.growth
    return {
        "version": _VERSION,
        "size_bytes": forecast.size_bytes,
        "inflow": _numbers(forecast.inflow),
        "growth": growth
        and {
            "a_day": _numbers(growth.a_day),
            "days": growth.days,
            "why": growth.why,
            "declared": growth.declared,
        },
        "limits": {
            "time_ms": None if limits.time is None else limits.time // _MILLISECOND,
            "size_bytes": limits.size_bytes,
            "partitions": limits.partitions,
        },
        "estimates": [
            {
                "days": one.days,
                "at": one.at.isoformat(),
                "low": one.low,
                "expected": one.expected,
                "high": one.high,
            }
            for one in forecast.estimates
        ],
        "why": forecast.why,
    }


def forecast_of(made_at: datetime, body: dict[str, Any]) -> Forecast:
    """A forecast out of its document."""
    growth, limits = body["growth"], body["limits"]
    time_ms = limits["time_ms"]
    return Forecast(
        made_at=made_at,
        size_bytes=body["size_bytes"],
        inflow=body["inflow"] and _band(body["inflow"]),
        growth=growth and Growth(**growth | {"a_day": _band(growth["a_day"])}),
        limits=Limits(
            None if time_ms is None else timedelta(milliseconds=time_ms), limits["size_bytes"], limits["partitions"]
        ),
        estimates=tuple(Estimate(**one | {"at": datetime.fromisoformat(one["at"])}) for one in body["estimates"]),
        why=body["why"],
    )


def _numbers(band: Band | None) -> list[float] | None:
    return None if band is None else [band.low, band.expected, band.high]


def _band(numbers: list[float]) -> Band:
    low, expected, high = map(float, numbers)
    return Band(low, expected, high)
