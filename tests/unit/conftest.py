"""Unit tests parse each declaration and build each command line once."""

from support.remembered_files import _command_lines_are_built_once, _declarations_are_parsed_once  # noqa: F401
