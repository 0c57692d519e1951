"""The pages' templates, and how numbers and times are written in them.

All text is escaped for HTML, and control characters in it are shown as escapes.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache

from jinja2 import Environment
from markupsafe import Markup, escape

from millrace.domain.formats.printable import printable_error, printable_lines
from millrace.domain.plans.plan import Facts, PlanStatus, PlanSummary, StoredPlan
from millrace.domain.streams.standing import Level
from millrace.errors import MillraceError
from millrace.templates import templates_of


def render(template: str, **values: object) -> str:
    """A template with these values."""
    return _environment().get_template(template).render(**values)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = templates_of("millrace.web", "templates")
    made.filters |= {
        "count": _count,
        "age": _age,
        "moment": _moment,
        "level": _level,
        "facts": _facts,
        "several_lines": _several_lines,
        "status": _status,
    }
    return made


def _several_lines(text: object) -> Markup:
    if isinstance(text, MillraceError):
        return escape(printable_error(text.lines, quotes_log=text.quotes_log))
    return escape(printable_lines(str(text)))


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _age(at: datetime, now: datetime) -> str:
    """How long ago something was, in the largest unit that fits."""
    ago = max(now - at, timedelta())
    for unit, length in (("d", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1))):
        if ago >= 2 * length:
            return f"{ago // length:,} {unit} ago"
    return f"{ago.total_seconds():.0f} s ago"


def _level(level: Level) -> str:
    return level.name.lower()


def _facts(values: Facts) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values)


def _status(found: PlanSummary | StoredPlan, now: datetime) -> str:
    """How it stands with a plan; one that nobody started in time is told so."""
    expires = found.expires if isinstance(found, PlanSummary) else found.plan.expires
    return "expired" if found.status is PlanStatus.OPEN and now >= expires else found.status.value
