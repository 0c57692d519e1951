"""Unit tests parse each declaration once."""

from __future__ import annotations

from support.remembered_files import _declarations_are_parsed_once  # noqa: F401
