"""Shapes that the documents of a declaration share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict

from millrace.declarations.fields import pattern

ConnectionNamed = pattern(r"[a-z][a-z0-9_]{0,62}", "a Connection's name in lower case", "millrace_kafka")
ConnectionName = Annotated[str, ConnectionNamed]
FieldName = Annotated[str, pattern(r"[A-Za-z][A-Za-z0-9_]{0,62}", "a column's name", "customer_id")]


class Document(BaseModel):
    """Base of all: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)
