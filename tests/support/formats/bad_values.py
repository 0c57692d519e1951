"""Record values that are bad, each with the rule that it breaks: what every decoder has to name."""

from __future__ import annotations

import json

from millrace.domain.declaration.pipeline import Column, ColumnType, ValueFormat, ValueSchema
from millrace.domain.quarantine.rules import Rule
from support.example.purchases import PURCHASE

NOTED_PURCHASE = ValueSchema(ValueFormat.JSON, (Column("note", ColumnType.STRING), *PURCHASE.columns))
GOOD = {"note": "x", "customer_id": "7", "purchased_on": "1997-01-01", "quantity": 2, "amount": 11.77}


def changed(**fields: object) -> bytes:
    """The good purchase with other values in these fields."""
    return json.dumps({**GOOD, **fields}, separators=(",", ":")).encode()


# Half of a surrogate pair in a name, in a doubled name, in the path to one.
HALVES = (
    rb'"\ud800":1}',
    rb'"\ud800":1,"\ud800":2}',
    rb'"\udfff":1,"\uDFFF":2}',
    rb'"id":1,"x":{"\ud800":1,"\ud800":2}}',
    rb'"x":{"\ud800":{"a":1,"a":2}}}',
    rb'"x":[{"a\ud800":[{"\udc00":1,"\udc00":2}]}]}',
)

BAD: list[tuple[bytes | None, Rule]] = [
    (None, Rule.NULL_VALUE),
    (b"", Rule.EMPTY_VALUE),
    (b"nope", Rule.NOT_JSON),
    (changed()[:-5], Rule.NOT_JSON),
    (changed() + b"x", Rule.NOT_JSON),
    (b'{"a":' * 100_000, Rule.NOT_JSON),
    (b"\xff" * 900_000, Rule.NOT_JSON),
    (b"[1,2]", Rule.WRONG_TYPE),
    (b"{}", Rule.MISSING_FIELD),
    (changed(quantity="2"), Rule.WRONG_TYPE),
    (changed(quantity=2.5), Rule.WRONG_TYPE),
    (changed(quantity=None), Rule.WRONG_TYPE),
    (changed(customer_id=7), Rule.WRONG_TYPE),
    (changed(quantity=2**31), Rule.OUT_OF_RANGE),
    (changed(amount=1.559), Rule.OUT_OF_RANGE),
    (changed(amount=12345678901.0), Rule.OUT_OF_RANGE),
    (changed(amount="NaN"), Rule.WRONG_TYPE),
    (changed(amount="8.920374307884469343653E-20"), Rule.OUT_OF_RANGE),
    (changed(amount="8.920374307884469343653E-20"), Rule.OUT_OF_RANGE),
    (changed(amount="1E-41"), Rule.OUT_OF_RANGE),
    (changed(amount="1e400"), Rule.OUT_OF_RANGE),
    (changed(purchased_on="1997-02-30"), Rule.OUT_OF_RANGE),
    (changed(customer_id="a\0b"), Rule.NUL_CHARACTER),
    (changed()[:-1] + b',"quantity":3}', Rule.DUPLICATE_FIELD),
    (changed()[:-1] + b',"new":1,"new":2}', Rule.DUPLICATE_FIELD),
    (changed().replace(b'"note":"x"', b'"quantity":3'), Rule.DUPLICATE_FIELD),
    (changed()[:-1] + b',"quantity" :3}', Rule.DUPLICATE_FIELD),
    (changed()[:-1] + b',"quantity"\n:3}', Rule.DUPLICATE_FIELD),
    (changed(note=None)[:-1] + b',"quantity" :3}', Rule.DUPLICATE_FIELD),
    (changed().replace(b'"7"', b'"\xff\xfe"'), Rule.INVALID_UTF8),
    (changed()[:-1] + b',"new":"\xff"}', Rule.INVALID_UTF8),
    *((changed()[:-1] + b"," + more, Rule.NOT_JSON) for more in HALVES),
    *((b"{" + more, Rule.NOT_JSON) for more in HALVES),
]
