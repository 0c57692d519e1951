"""SQL of the columns that every table of a stream has beside an app's own, for tables that tests make by hand."""

from __future__ import annotations

SOURCE = "_topic_id, _partition, _offset, _ordinal"
"""The columns that tell rows apart: a record, and the row's place among the rows of that record."""
OWN = (
    '_topic_id text COLLATE "C" NOT NULL, _partition int NOT NULL, _offset bigint NOT NULL, _ordinal int NOT NULL, '
    "_timeline int NOT NULL"
)
OWN_WITH_KEY = f"{OWN}, PRIMARY KEY ({SOURCE})"
"""The columns of a table that is appended to."""
OWN_UPSERTED = f"{OWN}, _timestamp timestamptz NOT NULL, _deleted boolean NOT NULL"
"""The columns of a table that is upserted into; its key is of the app's columns."""
