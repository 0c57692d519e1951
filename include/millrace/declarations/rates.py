"""Rates and growth as declarations write them: `500/s`, `5%/month`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from millrace.declarations.fields import Rule, Wrong, described
from millrace.domain.formats.printable import shown

SECONDS_OF = {"s": 1, "min": 60, "h": 3_600, "day": 86_400}
DAYS_OF = {"day": 1, "week": 7, "month": 30, "year": 365}
_OTHER_NAMES = {"sec": "s", "second": "s", "m": "min", "minute": "min", "hour": "h", "d": "day"}
_OTHER_SPANS = {"d": "day", "w": "week", "m": "month", "y": "year"}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"
_RATE_STEP = "write a number and a unit: 500/s, 30/min, 1200/h or 50000/day"
_GROWTH_STEP = "write a percentage and a unit: 5%/month, 1%/week, 0.1%/day or -20%/year"
_MOST_A_DAY = 1.0


def parse_rate(value: object) -> float:
    """Records a second from a rate such as `500/s`, `30/min`, `1200/h` or `50000/day`.

    Raises:
        Wrong: it is not one, or is zero or negative.
    """
    text = _text(value, "a rate", _RATE_STEP)
    found = re.fullmatch(rf"(-?)({_NUMBER}) ?/ ?([A-Za-z]*)", text)
    wrong = Wrong(f"`{shown(text)}` is not a rate", _RATE_STEP)
    if not found:
        raise wrong
    unit = _unit(found[3], f"{found[1]}{found[2]}/", SECONDS_OF, _OTHER_NAMES, wrong)
    number = float(found[2])
    if found[1] or number == 0:
        raise Wrong(f"`{shown(text)}` is {'negative' if found[1] else 'zero'}", _RATE_STEP)
    return number / unit


def parse_growth(value: object) -> float:
    """By which share a rate grows in a day, compounded, from a growth such as `5%/month` (30 days) or `-20%/year`.

    Raises:
        Wrong: it is not one, leaves nothing, or is more than doubling every day.
    """
    text = _text(value, "a growth", _GROWTH_STEP)
    found = re.fullmatch(rf"([-+]?{_NUMBER}) ?% ?/ ?([A-Za-z]*)", text)
    wrong = Wrong(f"`{shown(text)}` is not a growth", _GROWTH_STEP)
    if not found:
        raise wrong
    days = _unit(found[2], f"{found[1]}%/", DAYS_OF, _OTHER_SPANS, wrong)
    left = 1 + float(found[1]) / 100
    if left <= 0:
        raise Wrong(f"`{shown(text)}` leaves nothing", "write a growth above -100%")
    growth: float = left ** (1 / days) - 1
    if growth > _MOST_A_DAY:
        raise Wrong(f"`{shown(text)}` is more than doubling every day", "write at most 100%/day")
    return growth


def _text(value: object, name: str, step: str) -> str:
    if isinstance(value, str):
        return value.strip()
    number = isinstance(value, int | float) and not isinstance(value, bool)
    raise Wrong(described(value) + (" has no unit" if number else f" is not {name}"), step)


def _unit(word: str, before: str, units: Mapping[str, int], others: Mapping[str, str], wrong: Wrong) -> int:
    """What a unit's name stands for; `before` is what was written before it, so that the right text can be named."""
    if word in units:
        return units[word]
    one = word.lower().removesuffix("s") if len(word) > 2 else word.lower()
    meant = one if one in units else others.get(one)
    raise Wrong(wrong.what, f"did you mean `{before}{meant}`?") if meant else wrong


def _pattern(number: str, units: Mapping[str, int]) -> str:
    return f"^{number} ?/ ?({'|'.join(units)})$"


Rate = Annotated[
    float, Rule(parse_rate, {"type": "string", "pattern": _pattern(_NUMBER, SECONDS_OF), "examples": ["500/s"]})
]
Growth = Annotated[
    float,
    Rule(
        parse_growth,
        {"type": "string", "pattern": _pattern(f"[-+]?{_NUMBER} ?%", DAYS_OF), "examples": ["5%/month"]},
    ),
]
