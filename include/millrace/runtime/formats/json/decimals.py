"""DECIMAL columns: a number is kept exactly, or it does not fit; Arrow is only given numbers that it cannot change.

Arrow (26.0.1) reads the text of a Python Decimal and moves the point by a table of 38 powers of ten. It reads past the
table where the point moves further, and forgets the digits above 128 bits. Then it stores 0 or garbage and
raises nothing. A number moves no digit out of those bounds where its last digit is not behind the column's last place
and its first digit is not before the column's first place: these two bounds are what this module asks of each number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import (
    Context,
    Decimal,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
    Rounded,
    localcontext,
)

from millrace.domain.declaration.pipeline import Column

DECIMAL_TEXT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A text that is accepted as a number: Python's Decimal takes more (`1_000`, blanks, digits of other scripts, NaN)."""
LARGEST_PRECISION = 38
"""The most digits that a DECIMAL has, and that Arrow reads from a text."""
_ZERO = Decimal(0)
_DEFAULT_PRECISION = 10
_ERRORS = [InvalidOperation, DivisionByZero, Overflow, Inexact]
# Twice the digits that a DECIMAL can have: sums of many numbers that fit are exact.
_SUMMING = Context(prec=76, traps=[*_ERRORS, Rounded])


def require_exact(column: Column, values: Sequence[Decimal]) -> None:
    """Return where Arrow stores every value exactly in the column's type.

    It looks at all of them at once. The exponent of an exact sum is the least of its terms, also of terms that are 0.

    Args:
        column: of type DECIMAL.
        values: what it is to hold; none is null.

    Raises:
        ArithmeticError: a value may not fit, so each has to be looked at: `exact_decimal`.
    """
    precision, scale = _bounds(column)
    with localcontext(_SUMMING):
        exponent = sum(values, _ZERO).as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -scale:  # no int: a NaN is among them
        raise ArithmeticError
    if max(map(Decimal.adjusted, values), default=0) >= precision - scale:
        raise ArithmeticError


def exact_decimal(column: Column, value: Decimal) -> Decimal:
    """Return the same number with as many places behind the point as the column has.

    Args:
        column: of type DECIMAL.
        value: any Decimal, also one that is no number.

    Raises:
        DecimalException: the column's type cannot hold it exactly.
    """
    precision, scale = _bounds(column)
    if value.is_nan():
        raise InvalidOperation
    return value.quantize(Decimal((0, (1,), -scale)), context=Context(prec=precision, traps=_ERRORS))


def _bounds(column: Column) -> tuple[int, int]:
    return column.precision or _DEFAULT_PRECISION, column.scale or 0
